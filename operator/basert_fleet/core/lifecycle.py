"""The life of one worker process, as a table.

A worker is driven by exactly one loop: it performs what a step says to do, and what comes of it is the next event. The
table decides every move; whoever asks for one that is not in it has a bug. Docs draw this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a worker is. Metrics, status and logs use these very words as its phase."""

    STOPPED = "STOPPED"
    STARTING = "STARTING"
    """It waits for its turn to start, or its process does not listen yet."""
    WARMING = "WARMING"
    """It listens; canaries and calibration run. No request of a user reaches it."""
    READY = "READY"
    """It serves leases one after another."""
    TESTING = "TESTING"
    """A scrub and a canary must pass before it is offered again."""
    DRAINING = "DRAINING"
    """It finishes the lease it has, and takes no other."""
    STOPPING = "STOPPING"
    """Its process group is being ended."""
    BACKOFF = "BACKOFF"
    """It waits before the next try to start."""
    FATAL = "FATAL"
    """It failed too often; only a changed spec or an operator brings it back."""


class Event(StrEnum):
    """What can happen to a worker."""

    WANTED = "wanted"
    UNWANTED = "unwanted"
    """It shall stop: scaled in, spec changed, agent ends."""
    LISTENING = "listening"
    START_FAILED = "start_failed"
    WARM = "warm"
    WARM_UP_FAILED = "warm_up_failed"
    CHECK_DUE = "check_due"
    PROVEN = "proven"
    CONTAMINATED = "contaminated"
    """A verdict or a failed canary says that the process mixes things up."""
    DIED = "died"
    """The process is gone or was killed for want of a proof."""
    DRAINED = "drained"
    RESTART = "restart"
    """The old process group is gone, and a new one may start at once."""
    BACK_OFF = "back_off"
    """The old process group is gone, and the next start has to wait."""
    GIVE_UP = "give_up"
    """The old process group is gone, and starting again makes no sense."""
    REMOVED = "removed"
    """The old process group is gone, and no other is wanted."""


class Do(StrEnum):
    """What the loop performs on entering a state; its result is the next event."""

    AWAIT_WANTED = "await_wanted"
    START_PROCESS = "start_process"
    WARM_UP = "warm_up"
    SERVE = "serve"
    TEST = "test"
    FINISH_LEASE = "finish_lease"
    STOP_GROUP = "stop_group"
    """Let the process drain, within a limit, then end its group."""
    KILL_GROUP = "kill_group"
    WAIT_BACKOFF = "wait_backoff"
    AWAIT_CHANGE = "await_change"


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the table: where it goes, and what is done there."""

    state: State
    do: Do


class UnexpectedEvent(Exception):
    """An event that the state cannot see: a bug in the caller, not a fault of a worker."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"a worker in {state} cannot see the event {event}")
        self.state, self.event = state, event


_START = Step(State.STARTING, Do.START_PROCESS)
_STOP = Step(State.STOPPING, Do.STOP_GROUP)
_KILL = Step(State.STOPPING, Do.KILL_GROUP)

TRANSITIONS: Mapping[tuple[State, Event], Step] = MappingProxyType({
    (State.STOPPED,  Event.WANTED):         _START,
    (State.STARTING, Event.LISTENING):      Step(State.WARMING, Do.WARM_UP),
    (State.STARTING, Event.START_FAILED):   _KILL,
    (State.STARTING, Event.UNWANTED):       _KILL,
    (State.WARMING,  Event.WARM):           Step(State.READY, Do.SERVE),
    (State.WARMING,  Event.WARM_UP_FAILED): _KILL,
    (State.WARMING,  Event.DIED):           _KILL,
    (State.WARMING,  Event.UNWANTED):       _KILL,
    (State.READY,    Event.CHECK_DUE):      Step(State.TESTING, Do.TEST),
    (State.READY,    Event.CONTAMINATED):   _KILL,
    (State.READY,    Event.DIED):           _KILL,
    (State.READY,    Event.UNWANTED):       Step(State.DRAINING, Do.FINISH_LEASE),
    (State.TESTING,  Event.PROVEN):         Step(State.READY, Do.SERVE),
    (State.TESTING,  Event.CONTAMINATED):   _KILL,
    (State.TESTING,  Event.DIED):           _KILL,
    (State.TESTING,  Event.UNWANTED):       _KILL,
    (State.DRAINING, Event.DRAINED):        _STOP,
    (State.DRAINING, Event.CONTAMINATED):   _KILL,
    (State.DRAINING, Event.DIED):           _KILL,
    (State.STOPPING, Event.RESTART):        _START,
    (State.STOPPING, Event.BACK_OFF):       Step(State.BACKOFF, Do.WAIT_BACKOFF),
    (State.STOPPING, Event.GIVE_UP):        Step(State.FATAL, Do.AWAIT_CHANGE),
    (State.STOPPING, Event.REMOVED):        Step(State.STOPPED, Do.AWAIT_WANTED),
    (State.BACKOFF,  Event.RESTART):        _START,
    (State.BACKOFF,  Event.UNWANTED):       Step(State.STOPPED, Do.AWAIT_WANTED),
    (State.FATAL,    Event.RESTART):        _START,
    (State.FATAL,    Event.UNWANTED):       Step(State.STOPPED, Do.AWAIT_WANTED),
})  # fmt: skip

INITIAL = Step(State.STOPPED, Do.AWAIT_WANTED)


def advance(state: State, event: Event) -> Step:
    """Return where the worker goes and what to do there.

    Raises:
        UnexpectedEvent: the state cannot see this event.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise UnexpectedEvent(state, event) from None


SPEC_CHANGED = "spec_changed"
"""Why a process that served was replaced, beside the judge's reasons."""

FIRST_BACKOFF_SECONDS = 0.5
"""Chosen: long enough that a crash loop costs little, short enough that one bad start is hardly seen."""
LONGEST_BACKOFF_SECONDS = 60.0
"""Chosen: a model takes about as long to load; waiting longer would only delay the way back."""
FAILURES_UNTIL_FATAL = 10
"""Chosen: with doubling delays two to three minutes of trying, enough to outlive a transient lack of memory."""


@dataclass(frozen=True, slots=True)
class StartRecord:
    """How often in a row a fresh process failed before it had proved itself.

    Only failures of the process itself count: one that dies while it executes a request is restarted at once, for else
    one bad prompt could take a worker out of service (promise 7).
    """

    failures: int = 0

    def failed(self) -> StartRecord:
        """Count one more process that did not prove itself."""
        return StartRecord(self.failures + 1)

    def proved(self) -> StartRecord:
        """Forget the failures: a process served, or idled long enough."""
        return StartRecord()

    def after_stop(self, *, wanted: bool) -> Event:
        """Say what follows once the old process group is gone."""
        if not wanted:
            return Event.REMOVED
        if self.failures == 0:
            return Event.RESTART
        return Event.GIVE_UP if self.failures >= FAILURES_UNTIL_FATAL else Event.BACK_OFF

    def backoff_seconds(self, jitter: float) -> float:
        """Return how long to wait before the next start.

        Args:
            jitter: in [0, 1), drawn by the caller; spreads the delay over its upper half, so that workers that failed
                together do not start together.
        """
        delay = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** max(0, self.failures - 1))
        return delay * (0.5 + 0.5 * jitter)
