"""The link of one agent: two production channels, and connections that break under them.

Each item travels in a frame of its own, which allows more interleavings than frames of several. A cut loses all that is
on its way; what had arrived before is the interleaving in which it was delivered first. Acknowledgements travel with
items going the other way, so that an end often keeps what had arrived: those are the resumes that could double it.

All messages keep their order here. In production those of one worker do, and small ones may overtake large ones of
another worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from basert_fleet.wire.channel import Channel, ChannelLimits, Frame, Loss
from model.machine import Event, Machine, Move, Output

LIMITS = ChannelLimits(resume_seconds=30.0, unacknowledged_bytes=10**9, frame_bytes=1)
AGENT, GATEWAY = "agent", "gateway"
SIDES = (AGENT, GATEWAY)
OTHER = {AGENT: GATEWAY, GATEWAY: AGENT}


class LinkSide:
    """Both ends of a link, by the name of their side; an end that does not exist (any more) is None."""

    def __init__(self, *, breakable: bool) -> None:
        """Make a connected link. One that never breaks resends nothing, so what was acknowledged does not matter."""
        self._breakable = breakable
        self._ends: dict[str, Channel[str, str] | None] = {}
        self._coming: dict[str, deque[Frame[str]]] = {}
        """What is on its way to each side."""
        self._dial()

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Take one event; outputs are what the two sides are told."""
        match event:
            case ("send", str(side), str(item)):
                self._send(side, item)
                return ()
            case ("deliver", str(side)):
                end = self._end(side)
                return tuple((side, "message", item) for item in end.received(self._coming[side].popleft(), 0.0))
            case ("cut",):
                return self._cut()
            case ("resume",):
                return self._resume()
            case ("give up", str(side)):
                self._end(side).tick(LIMITS.resume_seconds)
                return ((side, "lost"),)
            case ("dial",):
                outputs = ((GATEWAY, "lost"),) if self._lives(GATEWAY) else ()
                self._dial()
                return (*outputs, (GATEWAY, "dialled"), (AGENT, "dialled"))
            case ("restart", str(side)):
                self._cut()
                self._ends[side] = None
                return ((OTHER[side], "suspended"),) if self._lives(OTHER[side]) else ()
        raise ValueError(f"a link cannot see {event}")

    def moves(self) -> tuple[Move, ...]:
        """Return what a connected link delivers, or how one without a connection goes on.

        A cut is a fault of the world, and giving up is its free consequence.
        """
        if self._is_connected:
            return tuple((("deliver", side), None) for side in SIDES if self._coming[side])
        return ((("resume",), None),) if self._lives(AGENT) else ((("dial",), None),)

    def stored(self) -> Callable[[], Machine]:
        """Keep it as it is; whoever takes it makes the copy."""
        return self.copy

    def copy(self) -> LinkSide:
        """Return an independent link in the same state."""
        other = LinkSide.__new__(LinkSide)
        other._breakable = self._breakable
        other._ends = {side: end.copy() if end is not None else None for side, end in self._ends.items()}
        other._coming = {side: frames.copy() for side, frames in self._coming.items()}
        return other

    def key(self) -> Hashable:
        """Return the channels' states, with numbers counted from what was acknowledged."""
        return tuple(self._side_key(side) for side in SIDES)

    def view(self) -> Hashable:
        """Return whether it is connected, whether nothing is on its way, and which ends could give up now."""
        calm = self._is_connected and not any(self._coming.values())
        waiting = () if self._is_connected else tuple(filter(self._lives, SIDES))
        return self._is_connected, calm, waiting

    @property
    def _is_connected(self) -> bool:
        return all(end is not None and end.is_attached for end in self._ends.values())

    def _lives(self, side: str) -> bool:
        end = self._ends[side]
        return end is not None and end.lost is None

    def _end(self, side: str) -> Channel[str, str]:
        end = self._ends[side]
        if end is None:
            raise ValueError(f"the {side} has no end of this link")
        return end

    def _dial(self) -> None:
        for side in SIDES:
            channel: Channel[str, str] = Channel(0.0, LIMITS)
            channel.attached(0, 0.0)
            self._ends[side], self._coming[side] = channel, deque()

    def _send(self, side: str, item: str) -> None:
        end = self._ends[side]
        frame = end.send([item]) if end is not None else None
        if frame is not None:
            self._coming[OTHER[side]].append(frame)

    def _cut(self) -> tuple[Output, ...]:
        told = tuple((side, "suspended") for side in SIDES if self._lives(side))
        for side in SIDES:
            self._coming[side].clear()
            end = self._ends[side]
            if end is not None:
                end.detached(0.0)
        return told

    def _resume(self) -> tuple[Output, ...]:
        """The agent dials on: both ends go on where they were, or it learns that the gateway does not know it."""
        agent = self._end(AGENT)
        if not self._lives(GATEWAY):
            agent.lose(Loss.FORGOTTEN)
            return ((AGENT, "lost"),)
        gateway = self._end(GATEWAY)
        known = agent.received_up_to, gateway.received_up_to
        self._coming[AGENT].extend(gateway.attached(known[0], 0.0))
        self._coming[GATEWAY].extend(agent.attached(known[1], 0.0))
        return ((AGENT, "resumed"), (GATEWAY, "resumed"))

    def _side_key(self, side: str) -> Hashable:
        end, other = self._ends[side], self._ends[OTHER[side]]
        if end is None or not self._lives(side):
            return None
        if other is None or not self._lives(OTHER[side]):
            return "alone"  # whatever it keeps or knows, it will only hear that it was forgotten
        items = tuple(frame.items for frame in self._coming[side])
        if not self._breakable:
            return items
        sent, acknowledged, kept, received, *_ = end.state()
        acks = tuple(frame.acknowledged - acknowledged for frame in self._coming[side])
        return end.is_attached, sent - acknowledged, kept, received - other.state()[1], items, acks
