"""A link that outlives its connections: one channel, what waits for it, and the connection of the moment.

Both ends use it; they differ in how a connection comes about (`server`, `dialling`). All that one turn of the loop
sends goes out as one frame; a large message takes several, and several turns. On a busy link, pieces of responses wait
until 5 ms after the last frame and are joined (measured: half the gateway's cost per chunk); a lone piece and every
other message go at once, because a slot stands idle for as long as an Offer or a Lease is held back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from basert_fleet.wire.alarm import Alarm
from basert_fleet.wire.channel import BrokenSequence, Channel, ChannelLimits, Loss
from basert_fleet.wire.codec import Bye, Codec, MalformedFrame, joined, lane_of
from basert_fleet.wire.fragments import Assembly, Fragment, Lanes, OversizedMessage
from basert_fleet.wire.messages import Body, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from basert_fleet.wire.channel import Frame
    from basert_fleet.wire.codec import Item
    from basert_fleet.wire.link import Endpoint

Sent = TypeVar("Sent", bound=Message)
Received = TypeVar("Received", bound=Message)

COALESCE_SECONDS = 0.005
"""After a frame, how long pieces of responses wait for more. Measured: it halves the cost, 10 ms save little more."""
FRAME_BYTES = 256 * 1024
"""About what one frame holds."""
FRAMES_PER_TURN = 4
"""What is written before the loop turns to others: 1 MiB takes 1 ms; a lease of 32 MiB at once took up to 118 ms."""


class Connection(Protocol):
    """A connection that carries frames, while it lasts."""

    @property
    def writable(self) -> bool:
        """Whether what is written would go out soon; while not, it is better kept in lanes, where others overtake."""

    def write(self, data: bytes) -> None:
        """Send one frame."""

    def close(self) -> None:
        """End the connection after what was written."""

    def abort(self) -> None:
        """End the connection now."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """What a link bears before it gives up a connection, or itself. All spans are seconds."""

    resume_seconds: float = 30.0
    """How long a link lives without a connection (design 3, `resumeSeconds`)."""
    backlog_bytes: int = 256 * 1024**2
    """Of messages that the other end has not acknowledged: four of the largest ones. Past it the link is lost."""
    ping_idle_seconds: float = 5.0
    """Silence after which an end asks whether the other still lives (C40)."""
    ping_reply_seconds: float = 5.0
    """What an answer to that may take: a peer that died without a word is noticed within 10 s."""
    handshake_seconds: float = 5.0
    """What the other end has for its first frame."""

    @property
    def channel(self) -> ChannelLimits:
        """The part that the channel keeps to."""
        return ChannelLimits(self.resume_seconds, self.backlog_bytes, FRAME_BYTES)


DEFAULT_LIMITS = LinkLimits()
"""What holds unless a pool's or a test's own limits are given."""


@dataclass(slots=True)
class LinkCounts:
    """What a transport noticed since it started; each number only ever grows."""

    opened: int = 0
    """New links."""
    resumed: int = 0
    """Links that went on with another connection."""
    lost: int = 0
    """Links that ended without being closed by either end."""
    refused: int = 0
    """Connections turned away: wrong token, no common version, no Open."""
    malformed: int = 0
    """Frames that no correct peer sends. Each one ended its connection, and its link."""
    duplicates: int = 0
    """Messages that came again after a resume and were dropped."""


class ResumableLink(Generic[Sent, Received]):
    """One end of a link. It belongs to the loop in which it was made; the transport tells it of each connection."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint[Sent, Received],
        codec: Codec[Sent, Received],
        *,
        limits: LinkLimits,
        counts: LinkCounts,
        over: Callable[[ResumableLink[Sent, Received]], None],
    ) -> None:
        """Make a link without a connection. `over` is called once, when the link is lost or closed."""
        self._loop = asyncio.get_running_loop()
        self.name = name
        """The channel's name, by which a new connection asks to go on with it."""
        self._endpoint = endpoint
        self._codec = codec
        self._limits = limits
        self.counts = counts
        """Where it counts what it notices; its transport may add to them."""
        self._over = over
        self._channel: Channel[bytes, Item[Received]] = Channel(self._loop.time(), limits.channel)
        self._connection: Connection | None = None
        self._closing = False
        self._ended = False
        self._outgoing: list[Sent] = []
        self._lanes = Lanes()
        self._next_pump: asyncio.Handle | None = None
        self._flush_timer: asyncio.Handle | None = None
        self._flush_is_due = False
        self._flushed_at = self._loop.time() - COALESCE_SECONDS
        self._inbox: deque[Item[Received]] = deque()
        self._assembly = Assembly()
        self._alarm = Alarm(self._tick)

    # --- The sending side (Link)

    def send(self, message: Sent) -> None:
        """Queue one message; on a lost or closed link it is dropped."""
        if self._closing or self._channel.lost is not None:
            return
        self._outgoing.append(message)
        if self._flush_is_due:
            return
        if isinstance(message, Body):
            wait = self._flushed_at + COALESCE_SECONDS - self._loop.time()
            if wait > 0:
                if self._flush_timer is None:
                    self._flush_timer = self._loop.call_later(wait, self._flush)
                return
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        self._flush_is_due = True
        self._flush_timer = self._loop.call_soon(self._flush)

    def close(self) -> None:
        """End the link; both receivers are told, the other one after all that was sent to it."""
        if not self._closing and self._channel.lost is None:
            self._closing = True
            self._loop.call_soon(self._say_goodbye)

    # --- Connections

    @property
    def received_up_to(self) -> int:
        """What the other end must be told when a connection is made."""
        return self._channel.received_up_to

    def open(self, connection: Connection) -> None:
        """Begin, with the first connection."""
        self.counts.opened += 1
        self._connection = connection
        self._channel.attached(0, self._loop.time())
        self._endpoint.bind(self)

    def resume(self, connection: Connection, peer_received: int) -> None:
        """Go on with another connection; one that is still there is replaced, for it may be half open (C40)."""
        replaced = self._connection
        if replaced is not None:
            self.connection_lost(replaced)
            replaced.abort()
        try:
            frames = self._channel.attached(peer_received, self._loop.time())
        except BrokenSequence:
            connection.abort()
            self.lose(Loss.FORGOTTEN)
            return
        self.counts.resumed += 1
        self._connection = connection
        for frame in frames:
            connection.write(self._codec.encode_frame(frame))
        self._pump()
        if self._connection is not None:
            self._endpoint.link_resumed()

    def connection_lost(self, connection: Connection) -> None:
        """Take note that a connection is gone; nothing happens unless it is the current one."""
        if connection is self._connection:
            self._connection = None
            self._channel.detached(self._loop.time())
            self._arm()
            self._endpoint.link_suspended()

    def connection_writable(self, connection: Connection) -> None:
        """Go on writing."""
        if connection is self._connection:
            self._pump()

    def frame_received(self, connection: Connection, data: bytes) -> None:
        """Take one frame; from a connection that was replaced, it is dropped."""
        if connection is not self._connection:
            return
        now = self._loop.time()
        try:
            frame = self._codec.decode_frame(data)
            fresh = self._channel.received(frame, now)
        except (MalformedFrame, BrokenSequence):
            self._give_up_on_peer()
            return
        self.counts.duplicates += len(frame.items) - len(fresh)
        self._inbox.extend(fresh)
        self._deliver()
        self._acknowledge(now)

    def lose(self, loss: Loss) -> None:
        """Give the link up and tell the receiver, from a callback of the loop; on a lost link nothing happens."""
        self._channel.lose(loss)
        self._end()

    # --- Sending

    def _flush(self) -> None:
        """Put what was sent into lanes, and write."""
        self._flush_timer, self._flush_is_due = None, False
        if self._channel.lost is not None:
            return
        self._flushed_at = self._loop.time()
        messages, self._outgoing = self._outgoing, []
        for message in joined(messages) if len(messages) > 1 else messages:
            self._lanes.put(lane_of(message), *self._codec.encode_parts(message))
        self._pump()

    def _pump(self) -> None:
        """Write a turn's worth of what waits, as far as the connection takes it, and go on in the next turn.

        A turn that has its pump already gets no second one: what was put into lanes goes with that, in its order. A
        link whose other end takes nothing is given up.
        """
        if self._next_pump is not None:
            return
        for _ in range(FRAMES_PER_TURN):
            if not self._can_write():
                break
            self._write(self._channel.send(self._lanes.take(FRAME_BYTES)))
            if self._channel.lost is not None:
                self._end()
                return
        if self._can_write():
            self._next_pump = self._loop.call_soon(self._pump_on)
        if self._lanes.waiting_bytes + self._channel.unacknowledged_bytes > self._limits.backlog_bytes:
            self.lose(Loss.BACKLOG)

    def _pump_on(self) -> None:
        self._next_pump = None
        self._pump()

    def _can_write(self) -> bool:
        return bool(self._lanes) and self._connection is not None and self._connection.writable

    def _write(self, frame: Frame[bytes] | None) -> None:
        if frame is not None and self._connection is not None:
            self._connection.write(self._codec.encode_frame(frame))

    def _say_goodbye(self) -> None:
        """Write all that waits, whether it goes out soon or not, and the end after it."""
        self._flush()
        connection = self._connection
        while self._lanes and connection is not None:
            self._write(self._channel.send(self._lanes.take(FRAME_BYTES)))
        self._write(self._channel.send([self._codec.encode(Bye())]))
        self.lose(Loss.CLOSED)

    # --- Receiving

    def _deliver(self) -> None:
        """Hand over what arrived. A receiver that fails does not cost the messages after the one it failed on."""
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        except (MalformedFrame, OversizedMessage):
            self._give_up_on_peer()
        finally:
            if self._inbox:
                self._loop.call_soon(self._deliver)

    def _take(self, item: Item[Received]) -> None:
        if isinstance(item, Fragment):
            whole = self._assembly.add(item)
            if whole is not None:
                self._hand_over(self._codec.decode_message(whole))
        elif isinstance(item, Bye):
            self.lose(Loss.CLOSED_BY_PEER)
        else:
            self._hand_over(item)

    def _hand_over(self, message: Received) -> None:
        if not self._closing:
            self._endpoint.message_received(message)

    def _give_up_on_peer(self) -> None:
        self.counts.malformed += 1
        self.lose(Loss.MALFORMED)

    # --- Time

    def _acknowledge(self, now: float) -> None:
        """Write an acknowledgement that is due, unless a frame that carries it follows in this turn."""
        if not self._flush_is_due:
            self._write(self._channel.tick(now))
        self._arm()

    def _arm(self) -> None:
        """See to it that time reaches the channel."""
        self._alarm.set_by(self._channel.next_wake())

    def _tick(self) -> None:
        self._write(self._channel.tick(self._loop.time()))
        if self._channel.lost is not None:
            self._end()
        else:
            self._arm()

    # --- The end

    def _end(self) -> None:
        """Let go of everything, and tell; once."""
        if self._ended:
            return
        self._ended = True
        loss = self._channel.lost
        if loss not in {Loss.CLOSED, Loss.CLOSED_BY_PEER}:
            self.counts.lost += 1
        self._alarm.cancel()
        for handle in (self._flush_timer, self._next_pump):
            if handle is not None:
                handle.cancel()
        self._outgoing.clear()
        self._inbox.clear()
        self._lanes, self._assembly = Lanes(), Assembly()
        connection, self._connection = self._connection, None
        if connection is not None:
            if loss is Loss.CLOSED:
                connection.close()  # the goodbye must still arrive
            else:
                connection.abort()
        self._over(self)
        self._endpoint.link_lost()
