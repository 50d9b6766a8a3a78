"""What the engine answers: the right answer, and the wrong ones a contaminated engine gives.

An answer is a value: how fast it is told, and whether as a stream, is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from itertools import cycle, islice
from typing import NamedTuple

from basert_fleet.sim.ask import Ask, Kind, ToolCall
from basert_fleet.sim.directives import without_directives
from basert_fleet.sim.finish import Finish
from basert_fleet.sim.rendered import CallForm

ECHO_HEX_DIGITS = 12
TEXT_TOKENS = 24  # chosen: more than 16, so that a chat with max_tokens 16 ends by `length`
CALL_TOKENS = 16  # chosen: what one call needs at least; with fewer max_tokens there is no call
REPORTED_COMPLETION_TOKENS = (142, 102, 90, 82, 120)  # report: the first five requests of one prefix
WORD_CHARACTERS = 12  # chosen: texts without spaces are cut into words of this length
THOUGHT = "I know.\n</think>\n\n"
"""What a completion says first whose prompt has opened a thought."""
NO_TOKENS = frozenset({Kind.EMBEDDING, Kind.RERANK, Kind.TRANSCRIPTION})


class Answer(NamedTuple):
    """One whole answer: calls, or a text in pieces of one token each."""

    finish: Finish
    tokens: int
    text: tuple[str, ...] = ()
    calls: tuple[ToolCall, ...] = ()


class Damage(Enum):
    """In which way an answer is wrong."""

    PARAMETER_NAME = "the parameter's name instead of its value"
    STALE_VALUE = "the value of somebody else's request"
    LOST_PREFIX = "the value without its first character"
    LOST_ENDS = "the value without its first character and its last dashed part"
    RUNAWAY = "tokens up to the limit and no call"


def expected_echo(content: str) -> str:
    """Return how a right text answer to this last message begins, so that a client can tell whose answer it got."""
    return f"echo {_echo_hash(content)}"


def wrong_echo(content: str) -> str:
    """Return how a contaminated engine's text answer begins; never the expected echo."""
    return f"echo {_echo_hash(content).translate(_NEXT_HEX_DIGIT)}"


def right_answer(ask: Ask, reuses: int) -> Answer:
    """Return what a healthy engine answers; `reuses` only moves the number of tokens, as in the report."""
    if ask.kind in NO_TOKENS:
        return Answer(Finish.STOP, 0, (expected_echo(ask.content),))
    if ask.calls:
        return _calling(ask, ask.calls, reuses)
    if ask.schema is not None:
        return _text(ask, _cut(json.dumps(_instance(ask.schema, ask.content), ensure_ascii=False)))
    return _text(ask, _echoing(expected_echo(ask.content), ask))


def damaged_answer(ask: Ask, damage: Damage, stale_value: str | None, reuses: int) -> Answer:
    """Return a wrong answer; in no case does it carry the right arguments or the right echo."""
    if ask.kind in NO_TOKENS:
        return Answer(Finish.STOP, 0, (wrong_echo(ask.content),))
    if damage is Damage.RUNAWAY:
        words = islice(cycle(("key", " key")), ask.max_tokens)
        return Answer(Finish.LENGTH, ask.max_tokens, tuple(words))
    if ask.calls:
        wrong = tuple(call._replace(value=_wrong_value(call, damage, stale_value)) for call in ask.calls)
        return _calling(ask, wrong, reuses)
    return _text(ask, _echoing(wrong_echo(ask.content), ask))


def call_in_text(call: ToolCall, form: CallForm) -> str:
    """Return a call as a model writes it into a plain completion."""
    if form is CallForm.XML:
        parameter = f"<parameter={call.parameter}>\n{call.value}\n</parameter>"
        return f"<tool_call>\n<function={call.name}>\n{parameter}\n</function>\n</tool_call>"
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments()}}}\n</tool_call>'


def _calling(ask: Ask, calls: tuple[ToolCall, ...], reuses: int) -> Answer:
    if ask.max_tokens < CALL_TOKENS * len(calls):
        return Answer(Finish.LENGTH, ask.max_tokens)
    wanted = max(REPORTED_COMPLETION_TOKENS[reuses % len(REPORTED_COMPLETION_TOKENS)], CALL_TOKENS * len(calls))
    tokens = min(wanted, ask.max_tokens)
    if ask.kind is Kind.COMPLETION:
        written = "\n".join(call_in_text(call, ask.call_form) for call in calls)
        return Answer(Finish.STOP, tokens, _thought(ask) + _cut(written))
    return Answer(Finish.TOOL_CALLS, tokens, calls=calls)


def _thought(ask: Ask) -> tuple[str, ...]:
    return (THOUGHT,) if ask.is_thinking else ()


def _text(ask: Ask, said: tuple[str, ...]) -> Answer:
    pieces = _thought(ask) + said
    if len(pieces) > ask.max_tokens:
        return Answer(Finish.LENGTH, ask.max_tokens, pieces[: ask.max_tokens])
    return Answer(Finish.STOP, len(pieces), pieces)


def _echoing(echo: str, ask: Ask) -> tuple[str, ...]:
    """Return `echo HASH` and then the message's own words, over and over."""
    start, _, rest = echo.partition(" ")
    length = TEXT_TOKENS if ask.directives.tokens is None else max(1, ask.directives.tokens)
    words = [part for word in without_directives(ask.content).split() for part in _slices(word, WORD_CHARACTERS)]
    pieces = (start, f" {rest}", *(f" {word}" for word in islice(cycle(words or ["ok"]), max(0, length - 2))))
    return pieces[:length]


def _cut(text: str) -> tuple[str, ...]:
    return tuple(_slices(text, 4))


def _slices(text: str, length: int) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]


def _wrong_value(call: ToolCall, damage: Damage, stale_value: str | None) -> str:
    shortened = call.value[1:]
    wrong = {
        Damage.STALE_VALUE: stale_value,
        Damage.LOST_PREFIX: shortened,
        Damage.LOST_ENDS: shortened.rpartition("-")[0],
    }.get(damage)
    candidates = (wrong, call.parameter, f"{call.parameter}-{call.parameter}")
    return next(value for value in candidates if value and value != call.value)


def _instance(schema: object, content: str) -> object:
    """Return a small value of the schema's shape; its strings carry the echo."""
    if not isinstance(schema, Mapping):
        return expected_echo(content)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    properties = schema.get("properties")
    match schema.get("type"):
        case "string":
            return expected_echo(content)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return []
        case _ if isinstance(properties, Mapping):
            return {name: _instance(inner, content) for name, inner in properties.items()}
        case _:
            return {"echo": expected_echo(content)}


def _echo_hash(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:ECHO_HEX_DIGITS]


_NEXT_HEX_DIGIT = str.maketrans("0123456789abcdef", "123456789abcdef0")
