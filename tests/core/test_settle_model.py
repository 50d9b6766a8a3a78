"""Settling against an engine that may do anything: it says idle only where the engine truly is, and always ends."""

from __future__ import annotations

from enum import Enum, auto

from hypothesis import given, settings
from hypothesis import strategies as st

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SettlePolicy, Settling, Slots, Step

SETTLE_SECONDS = 10.0


class Phase(Enum):
    """Where the request truly is. While it is ACCEPTED the slot looks idle."""

    ACCEPTED = auto()
    RUNNING = auto()
    DONE = auto()


class Walk:
    """One request, its engine, and the settling that sees of them only what is passed to it.

    Each public method is one thing that can happen; where it cannot, nothing does. A probe is answered by the engine
    when it is asked, and read at any time later.
    """

    def __init__(self, slots: Slots, counters: int, *, read_before: bool) -> None:
        self.phase = Phase.ACCEPTED
        self.slots = slots
        self.counters = counters
        self.now = 0.0
        self.over_at: float | None = None
        self.asked: tuple[float, Probe] | None = None
        self.step = Step.WAIT
        self.settling = Settling(SettlePolicy(SETTLE_SECONDS, slots), self._slot() if read_before else None)

    def engine_starts(self) -> None:
        """Also long after its connection was closed."""
        if self.phase is Phase.ACCEPTED:
            self.phase, self.counters = Phase.RUNNING, 2

    def engine_resets_while_idle(self) -> None:
        if self.phase is Phase.ACCEPTED:
            self.counters = 0

    def engine_sends_its_head(self) -> None:
        if self.phase is not Phase.ACCEPTED and self.over_at is None:
            self._follow(self.settling.head_seen())

    def engine_finishes(self) -> None:
        if self.phase is Phase.RUNNING:
            self.phase, self.counters = Phase.DONE, 3

    def end_mark_arrives(self) -> None:
        if self.phase is Phase.DONE and self.over_at is None:
            self.over_at = self.now
            self._follow(self.settling.end_mark(self.now))

    def engine_sends_all_but_is_busy(self) -> None:
        """An end mark does not mean that the slot is free (C02)."""
        if self.phase is Phase.RUNNING and self.over_at is None and self.slots is Slots.PRESENT:
            self.over_at = self.now
            self._follow(self.settling.end_mark(self.now))

    def engine_hangs_up(self) -> None:
        if self.over_at is None:
            self._close()

    def client_leaves(self) -> None:
        self._follow(self.settling.cancel())

    def first_byte_is_late(self) -> None:
        self._follow(self.settling.first_byte_expired(self.now))

    def probe_is_asked(self) -> None:
        if self.slots is Slots.PRESENT:
            self.asked = (self.now, self._slot())

    def probe_is_read(self) -> None:
        if self.asked is not None:
            (asked_at, answer), self.asked = self.asked, None
            self._follow(self.settling.probe(answer, asked_at=asked_at, now=self.now))

    def time_passes(self) -> None:
        self.now += 1.0

    def time_runs_out(self) -> None:
        """Tick once settle_seconds after the end, or at once if there is none yet."""
        if self.over_at is not None:
            self.now = max(self.now, self.over_at + SETTLE_SECONDS)
        self._follow(self.settling.probe(None, asked_at=self.now, now=self.now))
        assert self.over_at is None or self.step in {Step.IDLE, Step.KILL}

    def _slot(self) -> Probe:
        return Probe(self.phase is Phase.RUNNING, self.counters, self.counters)

    def _follow(self, step: Step) -> None:
        """Do as told, as a slot runner would, and hold what was said against the truth."""
        self.step = step
        if step is Step.IDLE:
            assert self.phase is Phase.DONE
            assert self.over_at is not None
        if step is Step.CLOSE:
            assert self.over_at is None
            self._close()

    def _close(self) -> None:
        self.over_at = self.now
        self._follow(self.settling.closed(self.now))


EVENTS = [name for name in vars(Walk) if not name.startswith("_")]


@settings(max_examples=500)
@given(
    slots=st.sampled_from([Slots.PRESENT, Slots.PRESENT, Slots.ABSENT]),
    counters=st.integers(0, 3),
    read_before=st.booleans(),
    events=st.lists(st.sampled_from(EVENTS), min_size=5, max_size=30),
)
def test_idle_is_said_of_a_finished_request_only(
    slots: Slots, counters: int, read_before: bool, events: list[str]
) -> None:
    """However events and late probes are ordered, IDLE is true; settle_seconds after its end all is settled."""
    walk = Walk(slots, counters, read_before=read_before)
    for event in [*events, "engine_hangs_up", "time_runs_out"]:
        getattr(walk, event)()
        if walk.step in {Step.IDLE, Step.KILL}:
            break
    assert walk.step in {Step.IDLE, Step.KILL}


@settings(max_examples=200)
@given(counters=st.integers(0, 3), waits=st.lists(st.sampled_from(["probe_is_asked", "probe_is_read", "time_passes"])))
def test_an_honest_engine_is_never_killed(counters: int, waits: list[str]) -> None:
    """A request that runs and ends while probes come back in time is proven idle, however often it was looked at."""
    walk = Walk(Slots.PRESENT, counters, read_before=True)
    for event in ("engine_starts", "engine_sends_its_head", "engine_finishes"):
        for each in (*waits, event):
            getattr(walk, each)()
            assert walk.step is Step.WAIT
    for event in ("end_mark_arrives", "probe_is_asked", "probe_is_read"):
        getattr(walk, event)()
    assert walk.step is Step.IDLE
