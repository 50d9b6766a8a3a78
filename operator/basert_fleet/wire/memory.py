"""A link within one process: what `basert-fleet up` runs on, and what tests use to see both ends."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from basert_fleet.wire.link import Receiver

T = TypeVar("T")
SentByA = TypeVar("SentByA")
SentByB = TypeVar("SentByB")


class _Lost:
    """Stands in a pipe for the end of the link, so that it is told after the messages before it."""


class _Pipe(Generic[T]):
    """One direction: hands messages to its receiver, in order, from the event loop."""

    def __init__(self, receiver: Receiver[T]) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._inbox: deque[T | _Lost] = deque()
        self._scheduled = False
        self._closed = False

    def put(self, message: T) -> None:
        """Queue a message, unless the pipe was closed."""
        if not self._closed:
            self._append(message)

    def close(self) -> None:
        """End the pipe; its receiver is told once."""
        if not self._closed:
            self._closed = True
            self._append(_Lost())

    def _append(self, item: T | _Lost) -> None:
        self._inbox.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        # Only what had arrived by now: a receiver that answers at once must not keep the loop from everybody else.
        try:
            for _ in range(len(self._inbox)):
                item = self._inbox.popleft()
                if isinstance(item, _Lost):
                    self._receiver.link_lost()
                else:
                    self._receiver.message_received(item)
        finally:  # a receiver's bug loses its own message and no other
            self._scheduled = bool(self._inbox)
            if self._scheduled:
                self._loop.call_soon(self._drain)


class MemoryLink(Generic[T]):
    """The sending side of one end of an in-memory connection; `connect` makes both."""

    def __init__(self, outgoing: _Pipe[T], closes: tuple[_Pipe[SentByA], _Pipe[SentByB]]) -> None:
        self._outgoing = outgoing
        self._closes = closes

    def send(self, message: T) -> None:
        """Queue a message for the other end; dropped if the link is closed."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Close both directions; each receiver learns of it once, after the messages already sent to it."""
        for pipe in self._closes:
            pipe.close()


def connect(a: Receiver[SentByB], b: Receiver[SentByA]) -> tuple[MemoryLink[SentByA], MemoryLink[SentByB]]:
    """Join two receivers; return the link on which `a` sends to `b`, and the one on which `b` sends to `a`."""
    to_a, to_b = _Pipe(a), _Pipe(b)
    return MemoryLink(to_b, (to_a, to_b)), MemoryLink(to_a, (to_a, to_b))
