"""Settling against an engine that may do anything: it says idle only where the engine truly is, and always ends."""

from __future__ import annotations

from enum import Enum, auto

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SettlePolicy, Settling, Slots, Step

SETTLE_SECONDS = 10.0


class Phase(Enum):
    """Where the request truly is. Between ACCEPTED and RUNNING the slot looks idle."""

    ACCEPTED = auto()
    RUNNING = auto()
    DONE = auto()


class IdleIsProven(RuleBasedStateMachine):
    """However events and late probes are ordered, IDLE is said of a finished request only."""

    @initialize(slots=st.sampled_from(Slots), read_before=st.booleans(), counters=st.integers(0, 3))
    def request_is_sent(self, slots: Slots, read_before: bool, counters: int) -> None:
        self.phase = Phase.ACCEPTED
        self.counters = counters
        self.slots = slots
        self.connected = True
        self.now = 0.0
        self.over_at: float | None = None
        self.probe_asked: tuple[float, Probe] | None = None
        self.settling = Settling(SettlePolicy(SETTLE_SECONDS, slots), self.slot() if read_before else None)
        self.step = Step.WAIT

    def slot(self) -> Probe:
        return Probe(self.phase is Phase.RUNNING, self.counters, self.counters)

    def over(self) -> None:
        self.connected = False
        if self.over_at is None:
            self.over_at = self.now

    @rule(seconds=st.sampled_from([0.0, 0.5, 4.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.step = self.settling.probe(None, asked_at=self.now, now=self.now)
        if self.over_at is not None and self.now - self.over_at >= SETTLE_SECONDS:
            assert self.step in {Step.IDLE, Step.KILL}

    @precondition(lambda self: self.phase is Phase.ACCEPTED)
    @rule(counters=st.integers(1, 3))
    def engine_starts(self, counters: int) -> None:
        """Also long after its connection was closed."""
        self.phase = Phase.RUNNING
        self.counters = counters

    @precondition(lambda self: self.phase is Phase.ACCEPTED)
    @rule()
    def engine_resets_while_idle(self) -> None:
        self.counters = 0

    @precondition(lambda self: self.phase is Phase.RUNNING and self.connected)
    @rule()
    def engine_sends_its_head(self) -> None:
        self.step = self.settling.head_seen()

    @precondition(lambda self: self.phase is Phase.RUNNING)
    @rule()
    def engine_finishes(self) -> None:
        self.phase = Phase.DONE

    @precondition(lambda self: self.phase is Phase.DONE and self.connected)
    @rule()
    def end_mark_arrives(self) -> None:
        self.over()
        self.step = self.settling.end_mark(self.now)

    @precondition(lambda self: self.connected)
    @rule()
    def engine_hangs_up(self) -> None:
        self.over()
        self.step = self.settling.closed(self.now)

    @rule()
    def client_leaves(self) -> None:
        self.step = self.settling.cancel()

    @rule()
    def first_byte_is_late(self) -> None:
        self.step = self.settling.first_byte_expired(self.now)

    @precondition(lambda self: self.step is Step.CLOSE)
    @rule()
    def runner_closes(self) -> None:
        assert self.connected
        self.over()
        self.step = self.settling.closed(self.now)

    @precondition(lambda self: self.slots is Slots.PRESENT)
    @rule()
    def probe_is_asked(self) -> None:
        """Answered at once by the engine; its answer may be read much later."""
        self.probe_asked = (self.now, self.slot())

    @precondition(lambda self: self.probe_asked is not None)
    @rule(fresh=st.booleans())
    def probe_is_answered(self, fresh: bool) -> None:
        asked_at, answer = self.probe_asked
        self.probe_asked = None
        self.step = self.settling.probe(self.slot() if fresh else answer, asked_at=asked_at, now=self.now)

    @invariant()
    def idle_is_true(self) -> None:
        if getattr(self, "step", None) is Step.IDLE:
            assert self.phase is Phase.DONE
            assert self.over_at is not None

    @invariant()
    def a_running_response_is_closed_only_for_a_reason(self) -> None:
        if getattr(self, "step", None) is Step.CLOSE:
            assert self.over_at is None


TestIdleIsProven = IdleIsProven.TestCase
