"""The table of a worker's life: every pair walked, every state left again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.core.lifecycle import (
    FAILURES_UNTIL_FATAL,
    INITIAL,
    LONGEST_BACKOFF_SECONDS,
    TRANSITIONS,
    Do,
    Event,
    StartRecord,
    State,
    UnexpectedEvent,
    advance,
)

RESULTS: dict[Do, set[Event]] = {
    Do.AWAIT_WANTED: {Event.WANTED},
    Do.START_PROCESS: {Event.LISTENING, Event.START_FAILED, Event.UNWANTED},
    Do.WARM_UP: {Event.WARM, Event.WARM_UP_FAILED, Event.DIED, Event.UNWANTED},
    Do.SERVE: {Event.CHECK_DUE, Event.CONTAMINATED, Event.DIED, Event.UNWANTED},
    Do.TEST: {Event.PROVEN, Event.CONTAMINATED, Event.DIED, Event.UNWANTED},
    Do.FINISH_LEASE: {Event.DRAINED, Event.CONTAMINATED, Event.DIED},
    Do.STOP_GROUP: {Event.RESTART, Event.BACK_OFF, Event.GIVE_UP, Event.REMOVED},
    Do.KILL_GROUP: {Event.RESTART, Event.BACK_OFF, Event.GIVE_UP, Event.REMOVED},
    Do.WAIT_BACKOFF: {Event.RESTART, Event.UNWANTED},
    Do.AWAIT_CHANGE: {Event.RESTART, Event.UNWANTED},
}
"""What each activity of the agent's loop may report."""


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_moves_or_is_refused(state: State, event: Event) -> None:
    """A pair of the table moves; any other names state and event in its error."""
    if (state, event) in TRANSITIONS:
        assert advance(state, event) == TRANSITIONS[state, event]
    else:
        with pytest.raises(UnexpectedEvent, match=rf"{state} cannot see .* {event}"):
            advance(state, event)


def test_the_table_answers_exactly_what_activities_report() -> None:
    """Each state sees every result of the activity that runs in it, and no event that nothing reports."""
    activities: dict[State, set[Do]] = {INITIAL.state: {INITIAL.do}}
    for step in TRANSITIONS.values():
        activities.setdefault(step.state, set()).add(step.do)
    for state in State:
        reported = set().union(*(RESULTS[do] for do in activities[state]))
        assert {event for (source, event) in TRANSITIONS if source is state} == reported, state


@pytest.mark.parametrize("state", State)
def test_every_state_can_reach_ready_and_stopped(state: State) -> None:
    """No state is a trap: service and rest stay reachable from everywhere."""
    reached, border = {state}, [state]
    while border:
        source = border.pop()
        for (start, _), step in TRANSITIONS.items():
            if start is source and step.state not in reached:
                reached.add(step.state)
                border.append(step.state)
    assert {State.READY, State.STOPPED} <= reached


def test_a_doubtful_process_is_never_drained() -> None:
    """After contamination, death or a failed start the group is killed at once; only an idle one may drain."""
    for (_, event), step in TRANSITIONS.items():
        if step.state is State.STOPPING:
            assert (step.do is Do.STOP_GROUP) == (event is Event.DRAINED)


def test_a_recycle_after_service_starts_at_once() -> None:
    """A process that had proved itself is replaced without a delay: a contaminating build must still serve."""
    assert StartRecord(3).proved().after_stop(wanted=True) is Event.RESTART


def test_failures_back_off_and_then_give_up() -> None:
    """Fresh processes that fail again and again lead to FATAL, not to a storm of starts."""
    record = StartRecord()
    for _ in range(FAILURES_UNTIL_FATAL - 1):
        record = record.failed()
        assert record.after_stop(wanted=True) is Event.BACK_OFF
    assert record.failed().after_stop(wanted=True) is Event.GIVE_UP


def test_an_unwanted_worker_is_removed_whatever_happened() -> None:
    """Stopping is not delayed by a history of failures."""
    assert StartRecord(99).after_stop(wanted=False) is Event.REMOVED


@given(st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded_and_spread(failures: int, jitter: float) -> None:
    """A delay is never zero, never beyond the cap, and at least half of what the failures ask for."""
    longest = StartRecord(failures).backoff_seconds(1.0)
    assert longest / 2 <= StartRecord(failures).backoff_seconds(jitter) <= longest <= LONGEST_BACKOFF_SECONDS
