"""The requests that the fleet itself sends to an engine: canaries, scrubs and calibration, and what a canary must say.

All are bodies for POST /v1/chat/completions. When one is due, and what its result means, `core.isolation` decides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

CHAT_PATH = "/v1/chat/completions"
CANARY_MAX_TOKENS = 256
"""Design: the report's right answers took up to 142 tokens."""
SHORT_LENGTH_TOKENS, LONG_LENGTH_TOKENS = 4, 16
"""Design: two lengths far enough apart to tell a slope of 0 from one of 1."""
STOP_MAX_TOKENS = 512
"""Chosen: room for a thinking model to come to its end; one that does not is calibrated later."""
CANCELLED_MAX_TOKENS = 1024
"""Chosen: long enough to be still running when it is cancelled."""
SCRUB_MAX_TOKENS = 4
"""Chosen: a scrub is there for its prompt, not for its answer."""

LOOKUP_TOOL = {
    "type": "function",
    "function": {
        "name": "lookup_key",
        "description": "Lookup a key",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
"""The tool of the bug report, word for word."""


class CalibrationRequests(NamedTuple):
    """Plain chats whose endings show how this build's counters move."""

    short_length: bytes
    """Ends by `length` after SHORT_LENGTH_TOKENS."""
    long_length: bytes
    """Ends by `length` after LONG_LENGTH_TOKENS."""
    stop: bytes
    """Ends by `stop`."""
    cancelled: bytes
    """Streams for long, so that it can be cancelled."""


def lookup_key_request(key: str, model: str, *, max_tokens: int = 2048, stream: bool = False) -> bytes:
    """Return the report's request, the one that corrupted."""
    request = _chat(f"Call lookup_key with key {key}.", model, max_tokens=max_tokens, stream=stream)
    return msgspec.json.encode(request | {"tools": [LOOKUP_TOOL]})


def canary_request(nonce: str, model: str) -> bytes:
    """Return a request with one known right answer: a call of lookup_key with this nonce. A nonce serves once."""
    return lookup_key_request(nonce, model, max_tokens=CANARY_MAX_TOKENS)


def scrub_request(nonce: str, model: str) -> bytes:
    """Return a cheap plain chat whose prompt shares no prefix with a canary or with the scrub before."""
    return msgspec.json.encode(_chat(f"{nonce}: say ok.", model, max_tokens=SCRUB_MAX_TOKENS, stream=False))


def calibration_requests(model: str) -> CalibrationRequests:
    """Return the requests from whose readings a fresh process's baseline is fitted."""
    count = "Count from 1 to 1000, one number per line."
    return CalibrationRequests(
        short_length=msgspec.json.encode(_chat(count, model, max_tokens=SHORT_LENGTH_TOKENS, stream=False)),
        long_length=msgspec.json.encode(_chat(count, model, max_tokens=LONG_LENGTH_TOKENS, stream=False)),
        stop=msgspec.json.encode(_chat("Reply with the word ok.", model, max_tokens=STOP_MAX_TOKENS, stream=False)),
        cancelled=msgspec.json.encode(_chat(count, model, max_tokens=CANCELLED_MAX_TOKENS, stream=True)),
    )


def canary_failure(body: bytes, nonce: str) -> str | None:
    """Say what is wrong with the answer to a canary; None means that it passed.

    It passes only with exactly one call, of exactly lookup_key, with exactly this key: the report's corrupted calls
    were well-formed and differed by a few characters.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        calls = answer.choices[0].message.tool_calls or []
        arguments = [msgspec.json.decode(call.function.arguments) for call in calls]
    except (msgspec.DecodeError, IndexError, RecursionError) as error:
        return f"the answer is no chat completion with tool calls ({error})"
    found = [(call.function.name, values) for call, values in zip(calls, arguments, strict=True)]
    if found == [("lookup_key", {"key": nonce})]:
        return None
    finish = answer.choices[0].finish_reason
    return f"expected one call lookup_key({{'key': {nonce!r}}}), got {found!r:.400} (finish_reason {finish!r:.40})"


def _chat(content: str, model: str, *, max_tokens: int, stream: bool) -> dict[str, Any]:
    request = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "temperature": 0,
    }
    return request | {"stream": True} if stream else request


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
