"""Messages as bytes: msgpack, one WebSocket binary frame for all that one turn of the loop produced.

Unknown fields are ignored, so a newer peer may add some; a new message class needs a new protocol version
(`handshake`). What does not decode is told as one error, which ends the link: a peer that sends nonsense once is not
believed again.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import msgspec

from basert_fleet.core.errors import FleetError
from basert_fleet.wire.channel import Frame
from basert_fleet.wire.fragments import AHEAD, FRAGMENT_BYTES, Fragment
from basert_fleet.wire.messages import (
    Accepted,
    Body,
    Cancel,
    Desired,
    End,
    Head,
    Hello,
    Lease,
    Message,
    Offer,
    Recall,
    Refused,
    Rejected,
    ToAgent,
    ToGateway,
    Withdraw,
    WorkerStatus,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FRAME_BYTES = 1024**2
"""Of one WebSocket frame. A sender stops at 256 KiB, give or take two fragments."""

_MARK_BYTES = 16
"""Of what stands for a large payload while the message around it is encoded: random, so nobody can send the same."""
_MARK_HEADER = bytes((0xC4, _MARK_BYTES))
"""msgpack's `bin 8`."""
_PAYLOAD_HEADER = b"\xc6"
"""msgpack's `bin 32`, with four bytes of length after it: what every payload above 64 KiB has."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received", bound=Message)


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The link's last item: its sender has closed it."""


Item: TypeAlias = Received | Fragment | Bye


class MalformedFrame(FleetError):
    """The other end sent what no correct peer sends."""

    code = "malformed_frame"


class Codec(Generic[Sent, Received]):
    """One end's messages, to and from bytes. It keeps nothing: all links of a process may share one."""

    def __init__(
        self, frames: msgspec.msgpack.Decoder[Frame[Item[Received]]], messages: msgspec.msgpack.Decoder[Received]
    ) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._mark = secrets.token_bytes(_MARK_BYTES)
        self._frames = frames
        self._messages = messages

    def encode(self, message: Sent | Body | Bye) -> bytes:
        """Return one message as an item of a frame."""
        return self._encoder.encode(message)

    def encode_parts(self, message: Sent | Body) -> tuple[bytes, ...]:
        """Return one message as parts that follow each other; a large payload is one of them, as it was given.

        Encoded in one piece, a lease of 32 MiB holds the loop for 20 ms (measured): the kernel must find that memory.
        """
        match message:
            case Lease(body=payload) if len(payload) > FRAGMENT_BYTES:
                return self._around(payload, msgspec.structs.replace(message, body=self._mark))
            case Body(data=payload) if len(payload) > FRAGMENT_BYTES:
                return self._around(payload, msgspec.structs.replace(message, data=self._mark))
            case _:
                return (self._encoder.encode(message),)

    def _around(self, payload: bytes, marked: Message) -> tuple[bytes, ...]:
        before, _, after = self._encoder.encode(marked).partition(_MARK_HEADER + self._mark)
        return (before + _PAYLOAD_HEADER + len(payload).to_bytes(4, "big"), payload, after)

    def encode_frame(self, frame: Frame[bytes]) -> bytes:
        """Return a frame whose items are already encoded."""
        items = tuple(msgspec.Raw(item) for item in frame.items)
        return self._encoder.encode((frame.first, frame.acknowledged, items))

    def decode_frame(self, data: bytes) -> Frame[Item[Received]]:
        """Read a frame.

        Raises:
            MalformedFrame: it is none.
        """
        try:
            return self._frames.decode(data)
        except _UNREADABLE as error:
            raise MalformedFrame(f"a frame of {len(data)} bytes is unreadable: {error}") from error

    def decode_message(self, data: bytes) -> Received:
        """Read a message that came in fragments.

        Raises:
            MalformedFrame: it is none.
        """
        try:
            return self._messages.decode(data)
        except _UNREADABLE as error:
            raise MalformedFrame(f"a message of {len(data)} bytes is unreadable: {error}") from error


def agent_codec() -> Codec[ToGateway, ToAgent]:
    """Return what an agent sends and reads."""
    return Codec(
        msgspec.msgpack.Decoder(Frame[Desired | Lease | Cancel | Recall | Rejected | Fragment | Bye]),
        msgspec.msgpack.Decoder(Desired | Lease | Cancel | Recall | Rejected),
    )


def gateway_codec() -> Codec[ToAgent, ToGateway]:
    """Return what a gateway sends and reads."""
    return Codec(
        msgspec.msgpack.Decoder(
            Frame[Hello | WorkerStatus | Offer | Withdraw | Accepted | Refused | Head | Body | End | Fragment | Bye]
        ),
        msgspec.msgpack.Decoder(Hello | WorkerStatus | Offer | Withdraw | Accepted | Refused | Head | Body | End),
    )


def lane_of(message: Message) -> str:
    """Return the worker that a message concerns; empty for none, and the lane that nothing overtakes for a Hello."""
    if isinstance(message, Hello):
        return AHEAD
    return getattr(message, "worker", "")


def joined(messages: Iterable[Sent]) -> list[Sent | Body]:
    """Join what was released of one response, one after the other, into one Body; other workers' messages go between.

    Each worker's messages keep their order, and only bodies of the same epoch and part are joined.
    """
    result: list[Sent | Body] = []
    last: dict[str, int] = {}
    for message in messages:
        lane = lane_of(message)
        place = last.get(lane)
        before = None if place is None else result[place]
        if place is not None and isinstance(message, Body) and isinstance(before, Body) and _continues(before, message):
            result[place] = Body(message.worker, message.epoch, before.data + message.data, message.part)
        else:
            last[lane] = len(result)
            result.append(message)
    return result


def _continues(before: Body, message: Body) -> bool:
    return before.part is message.part and before.epoch == message.epoch
