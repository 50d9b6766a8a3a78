"""From pools, nodes and reports to what each agent is told: runs `core.plan` and remembers what it wanted.

Absence is never an instruction: a node that is away keeps its workers in the desired set, and an agent leaves alone
what it is not told about. What a worker should be is only ever replaced by a newer revision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from basert_fleet.core.api import WorkerState
from basert_fleet.core.lifecycle import State
from basert_fleet.core.plan import Plan, WorkerView, plan
from basert_fleet.wire.messages import Desired, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from basert_fleet.core.api import BasertPool, BasertWorker
    from basert_fleet.core.plan import NodeView

SERVING = frozenset({State.READY.value, State.TESTING.value})
"""Phases in which taking a worker away would be felt: one that runs a canary serves again in a moment."""


class Planner:
    """The desired set of workers, and what of it each node has been told."""

    def __init__(self) -> None:
        self._plan = Plan(workers=())
        self._told: dict[str, tuple[bytes, ...]] = {}
        self._revision = 0

    @property
    def workers(self) -> tuple[BasertWorker, ...]:
        """Every worker of the last plan, those that are to stop included."""
        return self._plan.workers

    @property
    def running(self) -> tuple[BasertWorker, ...]:
        """The workers of the last plan that should run."""
        return tuple(worker for worker in self._plan.workers if worker.spec.state is WorkerState.RUNNING)

    @property
    def unplaceable(self) -> Mapping[str, str]:
        """Pools that get fewer workers than they ask for, and why."""
        return self._plan.unplaceable

    @property
    def unchecked(self) -> Mapping[str, str]:
        """Pools whose memory could not be checked against a node's, and why."""
        return self._plan.unchecked

    def node_lost(self, node: str) -> None:
        """Forget what the node was told: its next session is told everything again."""
        self._told.pop(node, None)

    def replan(
        self, pools: Iterable[BasertPool], nodes: Sequence[NodeView], reports: Mapping[str, WorkerStatus]
    ) -> dict[str, Desired]:
        """Plan anew, and return what is news for each connected node.

        `reports` holds the last word of each worker's agent, and only while that agent is connected.
        """
        self._plan = plan(pools, nodes, [_view(worker, reports) for worker in self._plan.workers])
        return {node.name: news for node in nodes if node.connected and (news := self._news(node.name)) is not None}

    def _news(self, node: str) -> Desired | None:
        documents = tuple(
            worker.model_dump_json(by_alias=True).encode() for worker in self._plan.workers if worker.spec.node == node
        )
        if self._told.get(node, ()) == documents:
            return None
        self._told[node] = documents
        self._revision += 1
        return Desired(self._revision, documents)


def _view(worker: BasertWorker, reports: Mapping[str, WorkerStatus]) -> WorkerView:
    report = reports.get(worker.metadata.name)
    if report is None:
        return WorkerView(worker)
    told_to_stop = worker.spec.state is WorkerState.STOPPED
    return WorkerView(
        worker,
        template=report.template,
        ready=report.phase in SERVING,
        stopped=told_to_stop and report.phase == State.STOPPED and report.pid is None,
    )
