"""Settling against an engine that may do anything: it says idle only where the engine truly is, and always ends.

The world is small enough to be walked completely: every order of events, with at most a few ticks of time, is tried.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from enum import Enum, auto

import pytest

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SettlePolicy, Settling, SlotsPage, Step

SETTLE_SECONDS = 10.0
TICKS = 2  # enough for a probe to be asked before, at and after an end


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

    def __init__(self, slots: SlotsPage, counters: int, *, read_before: bool) -> None:
        self.phase = Phase.ACCEPTED
        self.slots = slots
        self.counters = counters
        self.now = 0.0
        self.over_at: float | None = None
        self.asked: tuple[float, Probe] | None = None
        self.step = Step.WAIT
        self.trace: tuple[str, ...] = ()
        self.settling = Settling(SettlePolicy(SETTLE_SECONDS, slots), self._slot() if read_before else None)

    def _after(self, event: str) -> Walk:
        """Return the walk that goes on from here with this event."""
        following = copy(self)
        following.settling = copy(self.settling)
        following.trace = (*self.trace, event)
        getattr(following, event)()
        return following

    def _place(self) -> tuple[object, ...]:
        """Return all that what follows can depend on."""
        own = {name: value for name, value in vars(self).items() if name not in {"settling", "trace"}}
        return (*own.values(), *vars(self.settling).values())

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
        if self.phase is Phase.RUNNING and self.over_at is None and self.slots is SlotsPage.PRESENT:
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
        if self.slots is SlotsPage.PRESENT and self.asked is None:
            self.asked = (self.now, self._slot())

    def probe_is_read(self) -> None:
        if self.asked is not None:
            (asked_at, answer), self.asked = self.asked, None
            self._follow(self.settling.probe(answer, asked_at=asked_at, now=self.now))

    def time_passes(self) -> None:
        self.now = min(self.now + 1, TICKS)

    def time_runs_out(self) -> None:
        """Tick once settle_seconds after the end, or at once if there is none yet."""
        if self.over_at is not None:
            self.now = max(self.now, self.over_at + SETTLE_SECONDS)
        self._follow(self.settling.probe(None, asked_at=self.now, now=self.now))
        assert self.over_at is None or self.step in FINAL, self.trace

    def _slot(self) -> Probe:
        return Probe(self.phase is Phase.RUNNING, self.counters, self.counters)

    def _follow(self, step: Step) -> None:
        """Do as told, as a slot runner would, and hold what was said against the truth."""
        self.step = step
        if step is Step.IDLE:
            assert self.phase is Phase.DONE, self.trace
            assert self.over_at is not None, self.trace
        if step is Step.CLOSE:
            assert self.over_at is None, self.trace
            self._close()

    def _close(self) -> None:
        self.over_at = self.now
        self._follow(self.settling.closed(self.now))


EVENTS = [name for name in vars(Walk) if not name.startswith("_")]
FINAL = {Step.IDLE, Step.KILL}


@pytest.mark.parametrize("slots", SlotsPage)
@pytest.mark.parametrize("read_before", [True, False])
def test_idle_is_said_of_a_finished_request_only(slots: SlotsPage, read_before: bool) -> None:
    """In every order of events and late probes IDLE is true, and settle_seconds after its end a request is settled."""
    start = Walk(slots, counters=1, read_before=read_before)
    reached, frontier = {start._place()}, deque([start])
    ends = set()
    while frontier:
        here = frontier.popleft()
        for event in EVENTS:
            there = here._after(event)
            if there.step in FINAL:
                ends.add(there.step)
            elif there._place() not in reached:
                reached.add(there._place())
                frontier.append(there)
    assert ends == FINAL


@pytest.mark.parametrize("before_start", [(), ("probe_is_asked", "probe_is_read", "time_passes")])
def test_an_honest_engine_is_never_killed(before_start: tuple[str, ...]) -> None:
    """A request that runs and ends while probes come back in time is proven idle, however often it was looked at."""
    walk = Walk(SlotsPage.PRESENT, counters=1, read_before=True)
    for event in (*before_start, "engine_starts", "probe_is_asked", "probe_is_read", "engine_sends_its_head"):
        walk = walk._after(event)
    for event in ("engine_finishes", "end_mark_arrives", "time_passes", "probe_is_asked"):
        walk = walk._after(event)
        assert walk.step is Step.WAIT
    assert walk._after("probe_is_read").step is Step.IDLE
