"""What has been released to one client and not been written yet.

Frames arrive by callbacks and never wait; the one writer takes them when the client reads. In between they are bounded:
an exclusive slot does not wait for a slow client, so the client is cut instead.
"""

from __future__ import annotations

import asyncio


class Outbox:
    """A response on its way: its head, then pieces, then its end. One side fills it, one side empties it."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._changed = asyncio.Event()
        self.opened = False
        """Whether the head is decided: from then on an error can only be told within the body."""
        self.closed = False
        """Whether nothing will be added any more."""

    def open(self) -> None:
        """Decide the head."""
        self.opened = True
        self._changed.set()

    def put(self, data: bytes) -> bool:
        """Add a piece; return whether it fitted. A closed outbox takes anything and keeps nothing.

        One piece always fits an empty outbox, however large: a whole response is one piece.
        """
        if self.closed:
            return True  # nobody will read it
        if self._pieces and self._size + len(data) > self._limit:
            return False
        self._pieces.append(data)
        self._size += len(data)
        self._changed.set()
        return True

    def close(self, last: bytes = b"") -> None:
        """Say that nothing more will come but this. What is in the outbox is still written."""
        if last:
            self._pieces.append(last)  # whatever the limit: the client must learn how it ended
        self.closed = True
        self._changed.set()

    def discard(self) -> None:
        """Drop what nobody will read, and close."""
        self._pieces.clear()
        self._size = 0
        self.close()

    def take(self) -> bytes:
        """Return all that waits, in one piece; empty if nothing does."""
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        return data

    async def wait(self) -> None:
        """Return once something has changed since the last wait."""
        await self._changed.wait()
        self._changed.clear()
