"""A completion's answer turned into a chat's: the one place where an engine's text becomes messages and tool calls.

What comes out is what an engine writes for a chat, so that all that reads it (splitter, judge, delivery, canaries)
knows nothing of it. Usage, model and times are the engine's own; what the text says is for `spoken_answer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from basert_fleet.engine.chunks import EMPTY_STRING, Choice, Fields, is_filled
from basert_fleet.engine.spoken_answer import Content, Reasoning, Speech, SpokenAnswer
from basert_fleet.engine.toolcalls import Call

CHUNK, WHOLE = msgspec.Raw(b'"chat.completion.chunk"'), msgspec.Raw(b'"chat.completion"')
TRUNCATED, STOPPED, CALLED = "length", "stop", "tool_calls"

_TEXT = msgspec.json.Decoder(str | None)
_encode = msgspec.json.Encoder().encode


class ChatFromCompletion:
    """Rewrites the answer to one request, as chunks or whole."""

    def __init__(self, speech: Speech, request_id: str) -> None:
        self._speech, self._request_id = speech, request_id
        self._answers: dict[int, SpokenAnswer] = {}
        self._called: dict[int, int] = {}  # how many calls each choice has made

    def chunk(self, fields: Fields, choices: list[Choice]) -> Fields | None:
        """Return a chunk of a completion as one of a chat, all it tells in one delta; None if it tells nothing yet.

        Raises:
            msgspec.DecodeError: a choice's text is none.
        """
        deltas = [delta for choice in choices if (delta := self._delta(choice)) is not None]
        if choices and not deltas and not is_filled(fields.get("usage")):
            return None
        return {**fields, "object": CHUNK, "choices": msgspec.Raw(_encode(deltas))}

    def whole(self, fields: Fields, choices: list[Choice]) -> Fields:
        """Return a whole completion as a chat's answer.

        Raises:
            msgspec.DecodeError: a choice's text is none.
        """
        messages = [self._message(choice) for choice in choices]
        return {**fields, "object": WHOLE, "choices": msgspec.Raw(_encode(messages))}

    def _delta(self, choice: Choice) -> Mapping[str, Any] | None:
        delta: dict[str, Any] = {}
        if choice.index not in self._answers:
            delta |= {"role": "assistant", "content": ""}
        delta |= self._told(choice)
        if not delta and choice.finish_reason is None:
            return None
        return {"index": choice.index, "delta": delta, "finish_reason": self._finish_reason(choice)}

    def _message(self, choice: Choice) -> Mapping[str, Any]:
        told = self._told(choice)
        calls = [{key: call[key] for key in ("id", "type", "function")} for call in told.get("tool_calls", ())]
        message = {"role": "assistant", "content": None if calls else "", **told}
        if calls:
            message["tool_calls"] = calls  # as their place tells their index
        return {"index": choice.index, "message": message, "finish_reason": self._finish_reason(choice)}

    def _told(self, choice: Choice) -> dict[str, Any]:
        """Return what the choice's text adds, by the names of a message's members, and all the rest if it ends."""
        answer = self._answers.setdefault(choice.index, SpokenAnswer(self._speech))
        said = answer.feed(_TEXT.decode(choice.fields.get("text", EMPTY_STRING)) or "")
        if choice.finish_reason is not None:
            said += answer.finish(truncated=choice.finish_reason == TRUNCATED)
        told = {
            "reasoning_content": "".join(one.text for one in said if isinstance(one, Reasoning)),
            "content": "".join(one.text for one in said if isinstance(one, Content)),
            "tool_calls": [self._call(one, choice.index) for one in said if isinstance(one, Call)],
        }
        return {name: value for name, value in told.items() if value}

    def _call(self, call: Call, index: int) -> Mapping[str, Any]:
        place = self._called.get(index, 0)
        self._called[index] = place + 1
        return {
            "index": place,
            "id": f"call_{self._request_id.rpartition('-')[2]}_{index}_{place}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _finish_reason(self, choice: Choice) -> str | None:
        """Return the engine's finish_reason; for it a call is a text like any other, for a chat it is a reason."""
        return CALLED if choice.finish_reason == STOPPED and self._called.get(choice.index) else choice.finish_reason
