"""In which pieces, and at which of its tokens, an answer is streamed.

The pieces of a right answer and of its damaged twin lie at the same places, so an answer that is decided anew
half-way goes on in the middle: a client then sees the wrong half of an argument, as from the real engine.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from basert_fleet.sim.answer import Answer
    from basert_fleet.sim.ask import ToolCall


class Chunking(StrEnum):
    """How tool calls are cut into deltas."""

    SPLIT = "split"  # id and name first, then the arguments in several pieces; finish_reason in a chunk of its own
    MIXED = "mixed"  # text beside the first tool delta, and finish_reason in the last one
    UNINDEXED = "unindexed"  # as split, without `index` (C38)


class CallPart(NamedTuple):
    """A part of one tool call's deltas."""

    place: int  # among the answer's calls
    name: str | None  # only in the first part, together with the id
    arguments: str


class Piece(NamedTuple):
    """One delta and the token that brings it, counted from 1."""

    at_token: int
    text: str | None = None
    call: CallPart | None = None


def pieces_of(answer: Answer, chunking: Chunking) -> tuple[Piece, ...]:
    """Return an answer's deltas, placed at its last tokens: what a model thinks before them is not told."""
    if answer.calls:
        parts = [part for index, call in enumerate(answer.calls) for part in _call_parts(index, call)]
        pieces = [Piece(0, call=part) for part in parts]
        if chunking is Chunking.MIXED:
            pieces[0] = pieces[0]._replace(text="Calling.")
    else:
        pieces = [Piece(0, text=text) for text in answer.text]
    first = answer.tokens - len(pieces) + 1
    return tuple(piece._replace(at_token=max(1, first + place)) for place, piece in enumerate(pieces))


def _call_parts(index: int, call: ToolCall) -> tuple[CallPart, ...]:
    arguments = call.arguments()
    before, value, after = arguments.partition(call.value)
    pieces = (before, value, after) if value and after else (arguments[:1], arguments[1:-1], arguments[-1:])
    return (CallPart(index, call.name, ""), *(CallPart(index, None, piece) for piece in pieces))
