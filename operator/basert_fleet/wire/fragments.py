"""How a large message travels without stalling small ones: in fragments, between which other workers' messages go.

Each worker has a lane, and what concerns no worker has one, too. A lane is strictly first in, first out, so a Cancel
never overtakes its Lease; lanes take turns, each of which ends with the item that makes it a fragment's worth. Only
what is in the lane `AHEAD` goes whole before all others.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

FRAGMENT_BYTES = 64 * 1024
"""What one lane sends in its turn, and the largest message that travels whole. Chosen: 5 ms at 100 Mbit/s."""
MAX_MESSAGE_BYTES = 65 * 1024**2
"""An engine's largest whole response (64 MiB, `engine.response`), and room for what stands around it."""
MAX_INCOMPLETE_BYTES = 256 * 1024**2
"""Of messages whose last fragment has not come yet, all lanes of a link together; what the sender keeps at most."""


AHEAD = "*"
"""The lane that no other overtakes; no worker can be called so. For an introduction, without which nothing is read."""


class OversizedMessage(ValueError):
    """The other end sends more than any message may have."""


class Fragment(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A piece of an encoded message; the pieces of one lane follow each other."""

    lane: str
    data: bytes
    last: bool = False


class _Slice(msgspec.Struct, frozen=True, tag=Fragment.__name__, omit_defaults=True):
    """A Fragment as its sender encodes it: from a view of the message, so that its bytes are copied once."""

    lane: str
    data: memoryview
    last: bool = False


class _Large:
    """What is left of a message that goes in fragments. Its parts are cut where they lie, and never joined here."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = deque(memoryview(part) for part in parts if part)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def take(self) -> memoryview:
        """Take out what the next fragment holds, of one part."""
        part = self._parts.popleft()
        if len(part) > FRAGMENT_BYTES:
            self._parts.appendleft(part[FRAGMENT_BYTES:])
        return part[:FRAGMENT_BYTES]


class Lanes:
    """Encoded messages that wait for the connection."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._lanes: dict[str, deque[bytes | _Large]] = {}
        self._turns: deque[str] = deque()
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._turns)

    def put(self, lane: str, *parts: bytes) -> None:
        """Queue an encoded message, in parts that follow each other, behind those of its lane."""
        waiting = self._lanes.get(lane)
        if waiting is None:
            waiting = self._lanes[lane] = deque()
            self._line_up(lane)
        size = sum(map(len, parts))
        waiting.append(_Large(parts) if size > FRAGMENT_BYTES else b"".join(parts))
        self.waiting_bytes += size

    def take(self, budget_bytes: int) -> list[bytes]:
        """Take out what goes next: encoded messages and fragments, until the budget is reached.

        It is passed by less than two fragments.
        """
        taken: list[bytes] = []
        end = self.waiting_bytes - budget_bytes
        while self._turns and self.waiting_bytes > end:
            lane = self._turns.popleft()
            self._take_turn(lane, taken)
            if self._lanes[lane]:
                self._line_up(lane)
            else:
                del self._lanes[lane]
        return taken

    def _line_up(self, lane: str) -> None:
        if lane == AHEAD:
            self._turns.appendleft(lane)
        else:
            self._turns.append(lane)

    def _take_turn(self, lane: str, taken: list[bytes]) -> None:
        waiting = self._lanes[lane]
        left = FRAGMENT_BYTES
        while waiting and left > 0:
            message = waiting[0]
            if isinstance(message, _Large):
                piece = message.take()
                size, last = len(piece), not message
                taken.append(self._encoder.encode(_Slice(lane, piece, last)))
            else:
                size, last = len(message), True
                taken.append(message)
            if last:
                waiting.popleft()
            self.waiting_bytes -= size
            left -= size


class Assembly:
    """Messages of which fragments have arrived, but not the last one."""

    def __init__(self) -> None:
        self._lanes: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, fragment: Fragment) -> bytes | None:
        """Take a fragment; return the whole message if it was the last one.

        Raises:
            OversizedMessage: one message, or all incomplete ones together, are larger than allowed.
        """
        size = self._sizes.get(fragment.lane, 0) + len(fragment.data)
        self._sizes[fragment.lane] = size
        self._lanes.setdefault(fragment.lane, []).append(fragment.data)
        if size > MAX_MESSAGE_BYTES or sum(self._sizes.values()) > MAX_INCOMPLETE_BYTES:
            raise OversizedMessage(f"{size} bytes of one message, {sum(self._sizes.values())} of incomplete ones")
        if not fragment.last:
            return None
        del self._sizes[fragment.lane]
        return b"".join(self._lanes.pop(fragment.lane))
