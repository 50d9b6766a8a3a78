"""One chunk of a streamed answer: which parts it holds, and the same in one chunk per part.

The values of fields that decide nothing are passed on as the engine wrote them, byte for byte. What changes: the id is
the request's, a role is told once per choice (OpenAI's Python library would join two to "assistantassistant"), usage is
left out unless the client asked for it, and a chunk that mixes text, calls and an ending becomes one chunk for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, TypeGuard

import msgspec

from basert_fleet.core.delivery import Part
from basert_fleet.engine.endpoints import Kind
from basert_fleet.engine.request import Prepared

Fields: TypeAlias = dict[str, msgspec.Raw]
"""The members of a JSON object, their values undecoded."""

ENVELOPE = frozenset({"id", "object", "created", "model", "system_fingerprint", "service_tier"})
"""What every chunk of a stream repeats; anything else is told once, in the last chunk of a split."""
CALL_KEYS = frozenset({"tool_calls", "function_call"})
ORDER = (Part.OPENING, Part.TEXT, Part.TOOL_CALL, Part.ENDING)
EMPTY = frozenset({b"null", b'""', b"[]", b"{}"})
LONGEST_EMPTY = max(map(len, EMPTY))
NULL = msgspec.Raw(b"null")
EMPTY_STRING = msgspec.Raw(b'""')

_FIELDS = msgspec.json.Decoder(Fields)
_CHOICES = msgspec.json.Decoder(list[msgspec.Raw] | None)
_MESSAGE = msgspec.json.Decoder(Fields | None)
_encode = msgspec.json.Encoder().encode


def decode_fields(data: bytes | msgspec.Raw) -> Fields:
    """Return the members of a JSON object.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _FIELDS.decode(data)


class _Told(msgspec.Struct):
    """What is looked at in every choice."""

    index: int = 0
    delta: Fields | msgspec.UnsetType | None = msgspec.UNSET
    message: msgspec.Raw = NULL
    finish_reason: str | None = None


_TOLD = msgspec.json.Decoder(_Told)


class Choice:
    """One choice of a chunk or of a whole response, decoded as far as anybody looks at it."""

    __slots__ = ("_whole", "finish_reason", "index", "message")

    def __init__(self, whole: msgspec.Raw) -> None:
        """Read one.

        Raises:
            msgspec.DecodeError: it is none.
        """
        told = _TOLD.decode(whole)
        self._whole = whole
        self.index = told.index
        """The first, if the engine does not say."""
        delta = _MESSAGE.decode(told.message) if told.delta is msgspec.UNSET else told.delta
        self.message: Fields = delta or {}
        """Its `delta` or `message`; empty where it has neither."""
        self.finish_reason = told.finish_reason or None

    @property
    def fields(self) -> Fields:
        """All of its members, decoded only now: of a plain text nobody looks at them."""
        return _FIELDS.decode(self._whole)

    @property
    def is_plain_text(self) -> bool:
        """Whether it only goes on with a text, as nearly all chunks do."""
        return self.finish_reason is None and len(self.message) == 1 and is_filled(self.message.get("content"))


def decode_choices(fields: Fields) -> list[Choice]:
    """Return the choices of a response or a chunk; none if it has no such field.

    Raises:
        msgspec.DecodeError: they are not a list of choices.
    """
    return [Choice(whole) for whole in _CHOICES.decode(fields.get("choices", NULL)) or ()]


def is_filled(value: msgspec.Raw | None) -> TypeGuard[msgspec.Raw]:
    """Say whether a field is there and tells anything."""
    return value is not None and (len(value) > LONGEST_EMPTY or bytes(value) not in EMPTY)


class ChunkSplitter:
    """Rewrites the chunks of one stream, in order."""

    def __init__(self, prepared: Prepared) -> None:
        self._id = msgspec.Raw(_encode(prepared.request_id))
        self._strips_usage = prepared.strip_usage
        self._is_chat = prepared.endpoint.kind is Kind.CHAT
        self._roles: set[int] = set()

    def split(self, fields: Fields, choices: list[Choice]) -> list[tuple[Part, bytes]]:
        """Return what the client gets of this chunk, in the order in which it must get it; may be nothing."""
        has_usage = is_filled(fields.get("usage"))
        if self._strips_usage:
            fields.pop("usage", None)
        if "id" in fields:
            fields["id"] = self._id
        if not choices:
            if has_usage:
                return [] if self._strips_usage else [(Part.ENDING, _encode(fields))]
            return [(Part.OPENING, _encode(fields))]
        if len(choices) == 1 and choices[0].is_plain_text:
            return [(Part.TEXT, _encode(fields))]
        by_part: dict[Part, list[Fields]] = {}
        for choice in choices:
            for part, piece in self._split_choice(choice):
                by_part.setdefault(part, []).append(piece)
        return _assembled(fields, by_part)

    def _split_choice(self, choice: Choice) -> Iterator[tuple[Part, Fields]]:
        return self._split_chat(choice) if self._is_chat else _split_completion(choice)

    def _split_chat(self, choice: Choice) -> Iterator[tuple[Part, Fields]]:
        delta = self._with_one_role(choice)
        calls = {key: value for key, value in delta.items() if key in CALL_KEYS and is_filled(value)}
        rest = {key: value for key, value in delta.items() if key not in calls}
        deltas: list[tuple[Part, Fields]] = []
        if any(key != "role" and is_filled(value) for key, value in rest.items()):
            deltas.append((Part.TEXT, rest))
            rest = {}
        if calls:
            deltas.append((Part.TOOL_CALL, rest | calls))
            rest = {}
        if choice.finish_reason is not None:
            deltas.append((Part.ENDING, rest))
        if not deltas and (delta or not choice.message):  # else it told nothing but a role that was told before
            deltas.append((Part.OPENING, rest))
        values = [(part, msgspec.Raw(_encode(piece))) for part, piece in deltas]
        return _pieces(choice.fields, "delta", values)

    def _with_one_role(self, choice: Choice) -> Fields:
        """Return the choice's delta without a role that was told before."""
        delta = choice.message
        if "role" not in delta:
            return delta
        if choice.index not in self._roles:
            self._roles.add(choice.index)
            return delta
        return {key: value for key, value in delta.items() if key != "role"}


def _split_completion(choice: Choice) -> Iterator[tuple[Part, Fields]]:
    text = choice.fields.get("text", EMPTY_STRING)
    values: list[tuple[Part, msgspec.Raw]] = []
    if is_filled(text):
        values.append((Part.TEXT, text))
    if choice.finish_reason is not None:
        values.append((Part.ENDING, EMPTY_STRING if values else text))
    return _pieces(choice.fields, "text", values or [(Part.OPENING, text)])


def _pieces(choice: Fields, key: str, values: list[tuple[Part, msgspec.Raw]]) -> Iterator[tuple[Part, Fields]]:
    """Yield the choice once per value: log probabilities go with the first, all that ends it with the last."""
    for position, (part, told) in enumerate(values):
        piece = choice | {key: told}
        if position > 0 and "logprobs" in piece:
            piece["logprobs"] = NULL
        if position < len(values) - 1:
            kept = {"index", key, "logprobs"}
            piece = {name: value for name, value in piece.items() if name in kept} | {"finish_reason": NULL}
        yield part, piece


def _assembled(fields: Fields, by_part: dict[Part, list[Fields]]) -> list[tuple[Part, bytes]]:
    chunks: list[tuple[Part, bytes]] = []
    parts = [part for part in ORDER if part in by_part]
    for part in parts:
        chunk = dict(fields) if part is parts[-1] else {key: fields[key] for key in fields if key in ENVELOPE}
        chunk["choices"] = msgspec.Raw(_encode(by_part[part]))
        chunks.append((part, _encode(chunk)))
    return chunks
