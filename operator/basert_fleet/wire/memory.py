"""A link within one process: what `basert-fleet up` runs on, and what tests use to see both ends."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Generic, TypeVar

from basert_fleet.wire.link import Receiver

Sent = TypeVar("Sent")


class MemoryLink(Generic[Sent]):
    """One end of an in-memory connection; make both with `connect`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._peer: MemoryLink[Any] | None = None
        self._receiver: Receiver[Any] | None = None
        self._inbox: deque[Any] = deque()
        self._draining = False

    def send(self, message: Sent) -> None:
        """Queue a message for the other end; dropped if the link is closed."""
        if self._peer is not None:
            self._peer._deliver(message)

    def close(self) -> None:
        """Close both ends; each receiver learns of it once, after the messages already sent to it."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        peer._peer = None
        for end in (self, peer):
            end._deliver(None)

    def _deliver(self, message: Any) -> None:
        self._inbox.append(message)
        if not self._draining:
            self._draining = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        # Only what had arrived by now: a receiver that answers at once must not keep the loop from everybody else.
        self._draining = False
        receiver = self._receiver
        assert receiver is not None
        for _ in range(len(self._inbox)):
            message = self._inbox.popleft()
            if message is None:
                receiver.link_lost()
            else:
                receiver.message_received(message)


SentByA = TypeVar("SentByA")
SentByB = TypeVar("SentByB")


def connect(a: Receiver[SentByB], b: Receiver[SentByA]) -> tuple[MemoryLink[SentByA], MemoryLink[SentByB]]:
    """Join two receivers; return the link on which `a` sends to `b`, and the one on which `b` sends to `a`."""
    of_a: MemoryLink[SentByA] = MemoryLink()
    of_b: MemoryLink[SentByB] = MemoryLink()
    of_a._peer, of_b._peer = of_b, of_a
    of_a._receiver, of_b._receiver = a, b
    return of_a, of_b
