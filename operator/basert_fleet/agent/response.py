"""One response on its way out: read as it arrives, passed on or held, and released or dropped by the verdict."""

from __future__ import annotations

from collections.abc import Callable

from basert_fleet.core.delivery import Admission, Gate
from basert_fleet.engine.connection import ResponseHead
from basert_fleet.engine.request import Prepared
from basert_fleet.engine.response import Piece, Reader, ResponseFacts, reader_for
from basert_fleet.wire.messages import Body, Head, Lease

HELD_BYTES = 64 * 1024**2
"""Chosen: far above any answer of a model; more is an engine that went wrong."""

Send = Callable[[Head | Body], None]


class Response:
    """The sink of a lease's generation.

    Nothing leaves before `core.delivery.Gate` lets it; Head goes out with the first piece.
    """

    def __init__(self, lease: Lease, prepared: Prepared, send: Send, whole: Callable[[Response], None]) -> None:
        """Read a response; `whole` is called with it once its body is."""
        self._lease, self._prepared, self._send, self._whole = lease, prepared, send, whole
        self._gate = Gate(lease.verify, structured=prepared.structured)
        self._status = 0
        self._reader: Reader | None = None
        self._facts: ResponseFacts | None = None
        """Of the whole response: to find them again would parse and check its tool calls again."""
        self._head_sent = False
        self._held: list[Piece] = []
        self._held_bytes = 0

    @property
    def overflowed(self) -> bool:
        """Whether more had to be held than is allowed: what was held is dropped, and the response worth nothing."""
        return self._held_bytes > HELD_BYTES

    def head(self, head: ResponseHead) -> None:
        """Take status and headers."""
        self._status, self._reader = head.status, reader_for(self._prepared, head)

    def data(self, data: bytes) -> None:
        """Take a piece of the body."""
        if self._reader is not None:
            self._offer(self._reader.feed(data))

    def end(self) -> None:
        """Take note that the body is whole."""
        if self._reader is not None:
            self._offer(self._reader.finish())
            self._facts = self._reader.facts()
            self._whole(self)

    def facts(self) -> ResponseFacts | None:
        """Return what was found in the response so far; None if none began."""
        if self._facts is None and self._reader is not None:
            return self._reader.facts()
        return self._facts

    def release(self) -> None:
        """Let out what was held."""
        held, self._held = self._held, []
        for piece in held:
            self._pass(piece)

    def _offer(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self._gate.admit(piece.part) is Admission.PASS:
                self._pass(piece)
            else:
                self._hold(piece)

    def _hold(self, piece: Piece) -> None:
        self._held_bytes += len(piece.data)
        if self.overflowed:
            self._held.clear()
        else:
            self._held.append(piece)

    def _pass(self, piece: Piece) -> None:
        if not self._head_sent and self._reader is not None:
            self._head_sent = True
            self._send(Head(self._lease.worker, self._lease.epoch, self._status, self._reader.content_type))
        self._send(Body(self._lease.worker, self._lease.epoch, piece.data, piece.part))
