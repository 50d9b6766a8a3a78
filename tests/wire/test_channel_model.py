"""Two channels over connections that break at any moment: what is delivered is always a prefix of what was sent."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basert_fleet.wire.channel import Channel, ChannelLimits, Frame

LIMITS = ChannelLimits(resume_seconds=1e9, unacknowledged_bytes=10**6, frame_bytes=3)
SIDES = st.sampled_from(["agent", "gateway"])


class End:
    """One end: its channel, what its user sent and heard, and the frames on their way to it."""

    def __init__(self) -> None:
        self.channel: Channel[str, str] = Channel(0.0, LIMITS)
        self.sent: list[str] = []
        self.heard: list[str] = []
        self.coming: deque[Frame[str]] = deque()


class LinksLoseNothing(RuleBasedStateMachine):
    """Frames in flight are lost with their connection, both ways; an end may notice a cut long after the other."""

    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.ends = {"agent": End(), "gateway": End()}
        self.dialled: int | None = None  # what the agent said it had received, on its way to the gateway
        self.answered: int | None = None  # what the gateway said, on its way back

    def other(self, side: str) -> End:
        return self.ends["gateway" if side == "agent" else "agent"]

    def write(self, side: str, *frames: Frame[str] | None) -> None:
        """Put frames on their way; those written to a connection that the other end has left never arrive."""
        if self.ends[side].channel.is_attached:
            self.other(side).coming.extend(frame for frame in frames if frame is not None)

    @rule(side=SIDES, texts=st.lists(st.text("abc", max_size=3), max_size=3))
    def user_sends(self, side: str, texts: list[str]) -> None:
        end = self.ends[side]
        items = [f"{len(end.sent) + place}{text}" for place, text in enumerate(texts)]
        end.sent += items
        if items:
            self.write(side, end.channel.send(items))

    @precondition(lambda self: any(end.coming for end in self.ends.values()))
    @rule(side=SIDES, times=st.integers(1, 2))
    def frame_arrives(self, side: str, times: int) -> None:
        """A frame arrives, perhaps twice."""
        end = self.ends[side]
        if end.coming and end.channel.is_attached:
            frame = end.coming.popleft()
            for _ in range(times):
                end.heard += end.channel.received(frame, self.now)

    @rule(seconds=st.floats(0, 2))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for side, end in self.ends.items():
            self.write(side, end.channel.tick(self.now))

    @rule(side=SIDES)
    def connection_breaks(self, side: str) -> None:
        """One end notices; what was on its way either way is gone, and the other end may notice later."""
        for end in self.ends.values():
            end.coming.clear()
        self.ends[side].channel.detached(self.now)
        self.dialled = self.answered = None

    @precondition(lambda self: not self.ends["agent"].channel.is_attached and self.dialled is None)
    @rule()
    def agent_dials(self) -> None:
        """It may have given up a connection whose answer was on its way: nobody hears that any more."""
        self.answered = None
        self.dialled = self.ends["agent"].channel.received_up_to

    @precondition(lambda self: self.dialled is not None)
    @rule()
    def gateway_answers(self) -> None:
        """It replaces a connection that is still there: that one may be half open (C40)."""
        for end in self.ends.values():
            end.coming.clear()
        gateway = self.ends["gateway"].channel
        gateway.detached(self.now)
        self.answered = gateway.received_up_to
        frames = gateway.attached(self.dialled, self.now)
        self.dialled = None
        self.write("gateway", *frames)

    @precondition(lambda self: self.answered is not None)
    @rule()
    def agent_hears_the_answer(self) -> None:
        frames = self.ends["agent"].channel.attached(self.answered, self.now)
        self.answered = None
        self.write("agent", *frames)

    @invariant()
    def what_is_heard_is_a_prefix_of_what_was_sent(self) -> None:
        for side, end in self.ends.items():
            assert end.heard == self.other(side).sent[: len(end.heard)]

    @invariant()
    def what_the_other_end_has_not_received_is_kept(self) -> None:
        for side, end in self.ends.items():
            missing = end.sent[len(self.other(side).heard) :]
            assert sum(map(len, missing)) <= end.channel.unacknowledged_bytes <= sum(map(len, end.sent))

    def teardown(self) -> None:
        """However it went: with one connection that holds, all arrives and nothing is kept."""
        if not hasattr(self, "ends"):
            return
        self.connection_breaks("agent")
        self.agent_dials()
        self.gateway_answers()
        self.agent_hears_the_answer()
        for _ in range(2):  # the second time for the acknowledgements
            for side, end in self.ends.items():
                while end.coming:
                    self.frame_arrives(side, times=1)
            self.time_passes(1.0)
        for side, end in self.ends.items():
            while end.coming:
                self.frame_arrives(side, times=1)
        for side, end in self.ends.items():
            assert end.heard == self.other(side).sent
            assert end.channel.unacknowledged_bytes == 0


TestLinksLoseNothing = LinksLoseNothing.TestCase
