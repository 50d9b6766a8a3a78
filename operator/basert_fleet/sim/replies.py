"""Answers in OpenAI's shapes: whole, and as server-sent events."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, NamedTuple

from basert_fleet.sim.ask import Kind
from basert_fleet.sim.pieces import CallPart, Chunking, Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.sim.answer import Answer
    from basert_fleet.sim.connection import Exchange
    from basert_fleet.sim.engine import Generation
    from basert_fleet.sim.errors import Refusal

Json = dict[str, object]
DONE = b"data: [DONE]\n\n"


class Wish(NamedTuple):
    """How the client wants its answer."""

    model: str
    stream: bool = False
    include_usage: bool = False


def encode(value: object) -> bytes:
    """Return compact JSON with non-ASCII text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def usage(generation: Generation, produced: int) -> Json:
    """Return the token counts of one generation."""
    prompt = generation.prompt_tokens
    return {"prompt_tokens": prompt, "completion_tokens": produced, "total_tokens": prompt + produced}


class WholeReply:
    """Answers once, when the generation has ended; `shape` makes the body."""

    def __init__(self, exchange: Exchange, shape: Callable[[Generation, int], Json]) -> None:
        self._exchange, self._shape = exchange, shape

    def begun(self, generation: Generation) -> None:
        """Wait for the end."""

    def piece(self, piece: Piece) -> None:
        """Wait for the end."""

    def ended(self, generation: Generation, produced: int) -> None:
        """Send the whole answer."""
        self._exchange.respond(200, encode(self._shape(generation, produced)))

    def failed(self, refusal: Refusal) -> None:
        """Send the error."""
        self._exchange.respond(refusal.status, encode(refusal.body()))

    def cut_short(self, generation: Generation) -> None:
        """Send half of the answer under the length of the whole."""
        self._exchange.cut_short(encode(self._shape(generation, generation.answer.tokens)))


class ChatStream:
    """Streams a chat answer: a role chunk, deltas, a finish, usage if wished, `[DONE]`."""

    object_name = "chat.completion.chunk"

    def __init__(self, exchange: Exchange, wish: Wish, chunking: Chunking) -> None:
        self._exchange, self._wish, self._chunking = exchange, wish, chunking
        self._id = ""
        self._held: Piece | None = None  # in MIXED, the newest piece waits, since the last one carries the finish

    def begun(self, generation: Generation) -> None:
        """Send the head and the role."""
        self._id = answer_id(generation)
        self._exchange.start_stream()
        self._send(self._opening())

    def piece(self, piece: Piece) -> None:
        """Send one delta."""
        ready: Piece | None = piece
        if self._chunking is Chunking.MIXED:
            ready, self._held = self._held, piece
        if ready is not None:
            self._send(self._choice(self._delta(ready), None))

    def ended(self, generation: Generation, produced: int) -> None:
        """Send the finish, usage and end marks."""
        self._send(self._choice(self._delta(self._held), str(generation.answer.finish)))
        if self._wish.include_usage:
            self._send({"choices": [], "usage": usage(generation, produced)})
        self._exchange.send(DONE)
        self._exchange.end_stream()

    def failed(self, refusal: Refusal) -> None:
        """Send the error: as a status if nothing was sent, else as an event without `[DONE]`."""
        if not self._exchange.status:
            self._exchange.respond(refusal.status, encode(refusal.body()))
            return
        self._exchange.send(_event(refusal.body()))
        self._exchange.end_stream()

    def cut_short(self, generation: Generation) -> None:
        """Close without `[DONE]` and without the chunked end."""
        del generation
        self._exchange.cut_short()

    def _opening(self) -> Json | None:
        return self._choice({"role": "assistant", "content": ""}, None)

    def _delta(self, piece: Piece | None) -> Json:
        delta: Json = {}
        if piece is not None and piece.text is not None:
            delta["content"] = piece.text
        if piece is not None and piece.call is not None:
            delta["tool_calls"] = [self._call_delta(piece.call)]
        return delta

    def _call_delta(self, part: CallPart) -> Json:
        delta: Json = {} if self._chunking is Chunking.UNINDEXED else {"index": part.place}
        if part.name is not None:
            return delta | {"id": call_id(self._id, part.place), "type": "function",
                            "function": {"name": part.name, "arguments": part.arguments}}  # fmt: skip
        return delta | {"function": {"arguments": part.arguments}}

    def _choice(self, delta: Json, finish: str | None) -> Json:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def _send(self, fields: Json | None) -> None:
        if fields is not None:
            self._exchange.send(_event(_envelope(self._id, self.object_name, self._wish.model) | fields))


class CompletionStream(ChatStream):
    """Streams a plain completion: the same frame around `text` instead of deltas, and no role."""

    object_name = "text_completion"

    def _opening(self) -> Json | None:
        return None

    def _choice(self, delta: Json, finish: str | None) -> Json:
        return {"choices": [{"index": 0, "text": delta.get("content", ""), "finish_reason": finish}]}


def chat_completion(wish: Wish) -> Callable[[Generation, int], Json]:
    """Return what shapes a whole chat answer."""

    def shape(generation: Generation, produced: int) -> Json:
        answer = generation.answer
        message: Json = {"role": "assistant", "content": None if answer.calls else "".join(answer.text)}
        if answer.calls:
            message["tool_calls"] = _calls(answer, answer_id(generation))
        choice = {"index": 0, "message": message, "finish_reason": str(answer.finish)}
        return _envelope(answer_id(generation), "chat.completion", wish.model) | {
            "choices": [choice],
            "usage": usage(generation, produced),
        }

    return shape


def text_completion(wish: Wish) -> Callable[[Generation, int], Json]:
    """Return what shapes a whole plain completion."""

    def shape(generation: Generation, produced: int) -> Json:
        answer = generation.answer
        choice = {"index": 0, "text": "".join(answer.text), "finish_reason": str(answer.finish)}
        return _envelope(answer_id(generation), "text_completion", wish.model) | {
            "choices": [choice],
            "usage": usage(generation, produced),
        }

    return shape


def answer_id(generation: Generation) -> str:
    """Return the id of a generation's answer, unique within its process."""
    return f"{'cmpl' if generation.ask.kind is Kind.COMPLETION else 'chatcmpl'}-{generation.number}"


def call_id(answer: str, index: int) -> str:
    """Return the id of one tool call."""
    return f"call_{answer.rpartition('-')[2]}_{index}"


def _calls(answer: Answer, answer_name: str) -> list[Json]:
    return [
        {
            "id": call_id(answer_name, index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments()},
        }
        for index, call in enumerate(answer.calls)
    ]


def _envelope(answer: str, object_name: str, model: str) -> Json:
    return {"id": answer, "object": object_name, "created": int(time.time()), "model": model}


def _event(value: Json) -> bytes:
    return b"data: " + encode(value) + b"\n\n"
