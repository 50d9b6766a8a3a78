"""What one answer to `check` says, and whether it is the right one.

A call is right only if it is the only one, of exactly the tool and with exactly the argument that was asked for: the
report's corrupted calls were well-formed and differed by a few characters. Of a text only the shape can be judged: it
is whole, not empty, and holds no character that was cut in two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec

from basert_fleet.cli.shapes import COMPLETIONS_PATH, Question
from basert_fleet.core.calibration import Probe

LONGEST_QUOTE = 60
"""Characters of an answer that a person is shown; chosen to fit a terminal's line."""
CUT_CHARACTER = "\N{REPLACEMENT CHARACTER}"
OK = 200
NOT_SERVED = (404, 405, 501)
"""What servers answer where they have no such endpoint."""


class Outcome(StrEnum):
    """What an answer is worth."""

    RIGHT = "right"
    WRONG = "wrong"
    """An answer that looks whole and is not what was asked for: the fault that `check` is there to find."""
    ERROR = "error"
    """No answer: an HTTP error, a lost connection, or no JSON. Bad, but nobody is misled by it."""
    UNJUDGED = "unjudged"
    """A completion, and either the server has none or the model wrote no call in a form that is known here."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, read."""

    question: Question
    outcome: Outcome
    got: str
    """For a person: the call, the text's beginning, or the error."""
    seconds: float
    """From sending to the last byte."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    attempts: int | None = None
    """How many workers it took, where a fleet says so."""
    settled: Probe | None = None
    """The counters of the server's only slot after it; None where they cannot be told apart from other requests'."""


def read_answer(question: Question, status: int, body: bytes, seconds: float) -> Answer:
    """Read one HTTP response."""
    if status != OK:
        answer = failed(question, f"HTTP {status} {_error(body)}".rstrip(), seconds)
        is_absent = question.path == COMPLETIONS_PATH and status in NOT_SERVED
        return replace(answer, outcome=Outcome.UNJUDGED) if is_absent else answer
    try:
        decoded = msgspec.json.decode(body, type=_Body)
        choice = decoded.choices[0]
        calls = _calls(question, choice)
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError, RecursionError) as error:
        return failed(question, f"no answer in OpenAI's form: {error}", seconds)
    usage = decoded.usage or _Usage()
    return Answer(
        question=question,
        outcome=_outcome(question, choice, calls),
        got=_told(question, choice, calls, usage),
        seconds=seconds,
        finish_reason=choice.finish_reason,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
    )


def failed(question: Question, explanation: str, seconds: float) -> Answer:
    """Return the answer that never came."""
    return Answer(question, Outcome.ERROR, explanation, seconds)


def judged_together(answers: Sequence[Answer]) -> tuple[Answer, ...]:
    """Judge completions without a call by their neighbours: a model that wrote one call can write the others."""
    if all(answer.outcome in (Outcome.UNJUDGED, Outcome.ERROR) for answer in answers):
        return tuple(answers)
    return tuple(
        replace(answer, outcome=Outcome.WRONG) if answer.outcome is Outcome.UNJUDGED else answer for answer in answers
    )


def _outcome(question: Question, choice: _Choice, calls: Sequence[_Named]) -> Outcome:
    wanted = question.wanted
    if wanted is None:
        return Outcome.RIGHT if _is_whole(choice) and not calls else Outcome.WRONG
    if question.path == COMPLETIONS_PATH and not calls:
        return Outcome.UNJUDGED
    right = [_Named(wanted.tool, {wanted.parameter: wanted.value})]
    return Outcome.RIGHT if list(calls) == right else Outcome.WRONG


def _is_whole(choice: _Choice) -> bool:
    """Say whether a text is one; at the limit of its tokens, its last character may be cut."""
    text = choice.written
    if choice.finish_reason == "length":
        text = text.rstrip(CUT_CHARACTER)
    return choice.finish_reason in ("stop", "length") and bool(text.strip()) and CUT_CHARACTER not in text


def _told(question: Question, choice: _Choice, calls: Sequence[_Named], usage: _Usage) -> str:
    if calls:
        return _quoted(" ".join(map(str, calls)))
    if question.wanted is None:
        return _quoted(choice.written.strip()) or "an empty text"
    return f"no call ({choice.finish_reason}, {usage.completion_tokens} tokens)"


@dataclass(frozen=True, slots=True)
class _Named:
    tool: str
    arguments: object
    """Decoded; the text itself where it is no JSON."""

    def __str__(self) -> str:
        return f"{self.tool}({msgspec.json.encode(self.arguments).decode()})"


def _calls(question: Question, choice: _Choice) -> list[_Named]:
    if question.path == COMPLETIONS_PATH:
        return _calls_in_text(choice.written)
    return [_Named(call.function.name, _decoded(call.function.arguments)) for call in choice.message.tool_calls or []]


_BLOCK = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_XML_CALL = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\s*(.*?)\s*(?:</parameter>|\Z)", re.DOTALL)


def _calls_in_text(text: str) -> list[_Named]:
    """Find calls in either of the forms that Qwen's models write: JSON, or XML (baseRT issue 21)."""
    calls = []
    for block in _BLOCK.findall(text):
        xml = _XML_CALL.findall(block)
        calls += [_Named(name, dict(_XML_PARAMETER.findall(inner))) for name, inner in xml] or [_json_call(block)]
    return calls


def _json_call(block: str) -> _Named:
    decoded = _decoded(block)
    if isinstance(decoded, Mapping):
        return _Named(str(decoded.get("name")), decoded.get("arguments"))
    return _Named("", decoded)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _error(body: bytes) -> str:
    """Return an OpenAI-style error's code and message, or the body's beginning."""
    try:
        error = msgspec.json.decode(body, type=_Failure).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _quoted(body.decode("utf-8", "replace"))
    return f"{error.code or error.type or 'error'}: {error.message}"


def _quoted(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}…"


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    text: str | None = None
    finish_reason: str | None = None

    @property
    def written(self) -> str:
        """The text of a chat or of a completion; a model that thinks may have come no further than its thoughts."""
        return self.text or self.message.content or self.message.reasoning_content or ""


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Error(msgspec.Struct):
    message: str
    type: str | None = None
    code: str | int | None = None


class _Failure(msgspec.Struct):
    error: _Error
