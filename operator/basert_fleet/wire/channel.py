"""What makes a link outlive its connections: both ends number what they send and keep it until it is acknowledged.

After a broken connection the next one of the same channel goes on exactly where the other end had stopped: no item is
lost, doubled or put in another order, so nothing above knows of a cut. Resume is a property of the link, not of the
lease: an agent that executes and a gateway that waits need no code for it. A channel is lost for good, with a reason,
when it stays without a connection for too long, when too much is unacknowledged, or when the other end does not know it
any more.

It decides and does nothing: no loop, no clock (`now` comes in), no bytes. One class serves both ends. A frame that is
lost within a living connection is not its business: a connection is a byte stream, so a gap is the peer's bug.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence, Sized

Item = TypeVar("Item")
Sent = TypeVar("Sent", bound="Sized")
Received = TypeVar("Received")

ACK_AFTER_ITEMS = 32
"""Received items after which an acknowledgement is sent by itself. Chosen: with fragments of 64 KiB, 2 MiB are kept."""
ACK_AFTER_SECONDS = 0.5
"""The longest that a received item goes unacknowledged. Chosen: far below any bound, and no load on an idle link."""


class Loss(StrEnum):
    """Why a channel is gone for good."""

    NOT_RESUMED = "not_resumed"
    """It was without a connection for too long."""
    BACKLOG = "backlog"
    """The other end acknowledges more slowly than this one sends."""
    FORGOTTEN = "forgotten"
    """The other end does not know it any more: it was restarted, or gave it up."""
    MALFORMED = "malformed"
    """The other end sent what no correct peer sends."""
    CLOSED = "closed"
    """This end closed it."""
    CLOSED_BY_PEER = "closed_by_peer"
    """The other end closed it."""


class BrokenSequence(ValueError):
    """The other end's numbers contradict what was sent; the two ends do not speak of one channel."""


class Frame(msgspec.Struct, Generic[Item], frozen=True, array_like=True):
    """Consecutive items of one direction, and how far the other direction has come."""

    first: int
    """The number of the first item; numbers start at 1. Without items, that of the next one."""
    acknowledged: int
    """The number of the last item that the sender of this frame has received."""
    items: tuple[Item, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """What a channel bears."""

    resume_seconds: float = 30.0
    """How long it lives without a connection (design 3, `resumeSeconds`)."""
    unacknowledged_bytes: int = 256 * 1024**2
    """Past it the channel is lost. Four of the largest messages (`fragments.MAX_MESSAGE_BYTES`)."""
    frame_bytes: int = 256 * 1024
    """About what one frame holds when items are sent again."""


class Channel(Generic[Sent, Received]):
    """One end. It begins without a connection; items that are sent meanwhile are kept for it."""

    __slots__ = (
        "_acknowledged", "_detached_since", "_limits", "_owed", "_owed_since", "_sent", "_unacknowledged",
        "_unacknowledged_bytes", "is_attached", "lost", "received_up_to",
    )  # fmt: skip

    def __init__(self, now: float, limits: ChannelLimits) -> None:
        self._limits = limits
        self._sent = 0
        self._acknowledged = 0
        self._unacknowledged: deque[Sent] = deque()
        self._unacknowledged_bytes = 0
        self._owed = 0
        self._owed_since = now
        self._detached_since = now
        self.is_attached = False
        """Whether it has a connection."""
        self.received_up_to = 0
        """The number of the last item received: what the other end must be told when a connection is made."""
        self.lost: Loss | None = None
        """Why it is gone; set once."""

    @property
    def unacknowledged_bytes(self) -> int:
        """Of the items that are kept."""
        return self._unacknowledged_bytes

    # --- Items

    def send(self, items: Sequence[Sent]) -> Frame[Sent] | None:
        """Number and keep items; return the frame to write now, or None without a connection."""
        if self.lost is not None:
            return None
        first = self._sent + 1
        self._sent += len(items)
        self._unacknowledged.extend(items)
        self._unacknowledged_bytes += sum(map(len, items))
        if self._unacknowledged_bytes > self._limits.unacknowledged_bytes:
            self.lose(Loss.BACKLOG)
            return None
        return self._frame(first, tuple(items)) if self.is_attached else None

    def received(self, frame: Frame[Received], now: float) -> tuple[Received, ...]:
        """Take a frame; return its items that were not received before, in order.

        Raises:
            BrokenSequence: items are missing before it, or it acknowledges what was never sent.
        """
        if self.lost is not None:
            return ()
        if frame.first > self.received_up_to + 1 or frame.first < 1:
            raise BrokenSequence(f"item {self.received_up_to + 1} should come next, not {frame.first}")
        self._forget_up_to(max(frame.acknowledged, self._acknowledged))
        fresh = frame.items[self.received_up_to + 1 - frame.first :]
        self.received_up_to += len(fresh)
        if frame.items:
            self._owed_since = self._owed_since if self._owed else now
            self._owed += len(frame.items)
        return fresh

    # --- Connections

    def attached(self, peer_received: int, now: float) -> tuple[Frame[Sent], ...]:
        """Go on with a new connection, whose other end has received that much; return the frames to write first.

        Raises:
            BrokenSequence: the other end has received less than it acknowledged, or more than was sent.
        """
        if peer_received < self._acknowledged:
            raise BrokenSequence(f"the other end acknowledged {self._acknowledged} items and now knows {peer_received}")
        self._forget_up_to(peer_received)
        self.is_attached = True
        self._owed = 0  # the handshake has told the other end
        self._owed_since = now
        return tuple(self._again())

    def detached(self, now: float) -> None:
        """Take note that the connection is gone; what is sent from now on waits for the next one."""
        if self.is_attached:
            self.is_attached = False
            self._detached_since = now

    def lose(self, loss: Loss) -> None:
        """Give the channel up; nothing is kept any more. A later reason changes nothing."""
        if self.lost is None:
            self.lost = loss
            self._unacknowledged.clear()
            self._unacknowledged_bytes = 0
            self._owed = 0

    # --- Time

    def tick(self, now: float) -> Frame[Sent] | None:
        """Do what is due: return a bare acknowledgement to write, or become lost."""
        due = self.next_wake()
        if due is None or now < due:
            return None
        if self.is_attached:
            return self._frame(self._sent + 1, ())
        self.lose(Loss.NOT_RESUMED)
        return None

    def next_wake(self) -> float | None:
        """Return when `tick` has something to do; None for never, if nothing else happens."""
        if self.lost is not None:
            return None
        if not self.is_attached:
            return self._detached_since + self._limits.resume_seconds
        if self._owed == 0:
            return None
        return self._owed_since + (0.0 if self._owed >= ACK_AFTER_ITEMS else ACK_AFTER_SECONDS)

    # --- For a model checker

    def copy(self) -> Channel[Sent, Received]:
        """Return an independent channel in the same state."""
        other: Channel[Sent, Received] = Channel.__new__(Channel)
        for name in Channel.__slots__:
            setattr(other, name, getattr(self, name))
        other._unacknowledged = self._unacknowledged.copy()
        return other

    def state(self) -> tuple[Hashable, ...]:
        """Return all that decides what the channel does next; equal states behave alike."""
        return (
            self._sent,
            self._acknowledged,
            tuple(self._unacknowledged),
            self.received_up_to,
            self._owed,
            self._owed_since if self._owed else None,
            None if self.is_attached else self._detached_since,
            self.lost,
        )

    # --- Inside

    def _frame(self, first: int, items: tuple[Sent, ...]) -> Frame[Sent]:
        self._owed = 0
        return Frame(first, self.received_up_to, items)

    def _again(self) -> Sequence[Frame[Sent]]:
        frames: list[Frame[Sent]] = []
        number, batch, size = self._acknowledged + 1, list[Sent](), 0
        for item in self._unacknowledged:
            batch.append(item)
            size += len(item)
            if size >= self._limits.frame_bytes:
                frames.append(self._frame(number, tuple(batch)))
                number, batch, size = number + len(batch), [], 0
        return [*frames, self._frame(number, tuple(batch))] if batch else frames

    def _forget_up_to(self, acknowledged: int) -> None:
        if acknowledged > self._sent:
            raise BrokenSequence(f"item {acknowledged} is acknowledged, but the last one sent was {self._sent}")
        while self._acknowledged < acknowledged:
            self._acknowledged += 1
            self._unacknowledged_bytes -= len(self._unacknowledged.popleft())
