"""What a plan takes from a worker's report, and what of a plan is written anew."""

from __future__ import annotations

import pytest

from basert_fleet.core.lifecycle import State
from basert_fleet.core.plan import NodeView
from basert_fleet.gateway.planning import SILENCE, Placement, Planner, Standing, standing
from basert_fleet.wire.messages import WorkerStatus
from support.scripted_agent import pool

MAC = NodeView("mac-1", None, connected=True)


def report(phase: State, *, pid: int | None = 1) -> WorkerStatus:
    """Return what an agent says of a worker in a phase."""
    return WorkerStatus("qwen-0", "qwen", phase.value, 1, "t1" if pid is not None else "", "", pid=pid)


@pytest.mark.parametrize("phase", [phase for phase in State if phase not in {State.READY, State.TESTING}])
def test_a_worker_with_a_process_that_does_not_serve_stands_as_one_of_which_nothing_is_known(phase: State) -> None:
    """So a start that gets on is no reason to plan."""
    assert standing(report(phase)) == standing(None) == SILENCE


def test_a_canary_between_two_requests_changes_nothing() -> None:
    """A worker that is tested serves again in a moment."""
    assert standing(report(State.TESTING)) == standing(report(State.READY)) == Standing("t1", has_none=False)


def test_only_a_stopped_worker_without_a_process_has_none() -> None:
    """One that waits for its next try may have another at any time."""
    assert standing(report(State.STOPPED, pid=None)).has_none
    assert not standing(report(State.BACKOFF, pid=None)).has_none


def test_a_plan_that_changes_nothing_writes_and_tells_nothing() -> None:
    """The documents are the very ones of the last plan, and no node has news."""
    planner = Planner()
    pools = [pool(replicas=3)]
    (news,) = planner.replan(pools, [MAC], lambda _: None, Placement.OPEN).values()
    assert news.workers == planner.documents
    before = planner.documents
    assert planner.replan(pools, [MAC], lambda _: None, Placement.OPEN) == {}
    assert all(one is other for one, other in zip(before, planner.documents, strict=True))
