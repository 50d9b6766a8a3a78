"""From pools, nodes and reports to what each agent is told: runs `core.plan` and remembers what it wanted.

Absence is never an instruction: a node that is away keeps its workers in the desired set, and an agent leaves alone
what it is not told about. What a worker should be is only ever replaced by a newer revision.

What agents bring is planned around: a gateway that has lost its own plan takes over the workers that run. One whose
name it has on another node is a stray: two workers of one name cannot both serve, so it is told to stop.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pydantic import ValidationError

from basert_fleet.core.api import BasertWorker, WorkerState
from basert_fleet.core.lifecycle import State
from basert_fleet.core.plan import Plan, WorkerView, has_planned_name, plan, stopped
from basert_fleet.wire.messages import Desired, WorkerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from basert_fleet.core.api import BasertPool
    from basert_fleet.core.plan import NodeView

ReportOf: TypeAlias = "Callable[[BasertWorker], WorkerStatus | None]"
"""The last word of a worker's agent, while that agent is connected."""

SERVING = frozenset({State.READY.value, State.TESTING.value})
"""Phases in which taking a worker away would be felt: one that runs a canary serves again in a moment."""
HELD = "no worker is placed anew yet: after its start the gateway waits until agents had time to come back"


class Placement(Enum):
    """Whether workers may be placed that were not there before."""

    OPEN = auto()
    HELD = auto()
    """Nodes that are just dialling would get none, or bring workers that were placed elsewhere meanwhile."""


class _Document(NamedTuple):
    """A worker, and the same as JSON."""

    worker: BasertWorker
    text: bytes


NOTHING_WRITTEN: Mapping[str, _Document] = MappingProxyType({})


class Planner:
    """The desired set of workers, and what of it each node has been told."""

    def __init__(self, workers: Iterable[BasertWorker] = ()) -> None:
        """Begin with the last plan, if there was one."""
        self._plan = Plan(workers=tuple(workers))
        self._documents = _documents(self._plan.workers)
        self._placement = Placement.OPEN
        self._strays: defaultdict[str, dict[str, BasertWorker]] = defaultdict(dict)
        """By node and name: what is to stop there because its name is another node's."""
        self._told: dict[str, tuple[bytes, ...]] = {}
        self._revision = 0

    @property
    def documents(self) -> tuple[bytes, ...]:
        """Every worker of the last plan, as JSON."""
        return tuple(document.text for document in self._documents.values())

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
        if self._placement is Placement.HELD:
            return dict.fromkeys(self._plan.unplaceable, HELD)
        return self._plan.unplaceable

    @property
    def unchecked(self) -> Mapping[str, str]:
        """Pools whose memory could not be checked against a node's, and why."""
        return self._plan.unchecked

    def is_elsewhere(self, node: str, worker: str) -> bool:
        """Say whether a worker of this name is another node's, so that this node has at most a stray."""
        document = self._documents.get(worker)
        return document is not None and document.worker.spec.node != node

    def adopt(self, node: str, documents: Iterable[bytes]) -> tuple[str, ...]:
        """Take in the workers that a node's agent brought; return what is wrong with those that cannot be read.

        Those are left as they are. The rest are planned from now on, as they are, unless the plan knows their name.
        """
        known = {worker.metadata.name: worker.spec.node for worker in self._plan.workers}
        problems: list[str] = []
        adopted: list[BasertWorker] = []
        for document in documents:
            try:
                worker = BasertWorker.model_validate_json(document)
            except ValidationError as error:
                problems.append(str(error))
                continue
            name = worker.metadata.name
            if not has_planned_name(worker):
                problems.append(f"{name} is no name of a worker of pool {worker.spec.pool}")
            elif name not in known:
                known[name] = node
                adopted.append(_moved(worker, node))
            elif known[name] != node:
                self._strays[node][name] = stopped(_moved(worker, node))
        self._plan = replace(self._plan, workers=(*self._plan.workers, *adopted))
        return tuple(problems)

    def node_lost(self, node: str) -> None:
        """Forget what the node was told and what it brought: its next session begins anew."""
        self._told.pop(node, None)
        self._strays.pop(node, None)

    def replan(
        self, pools: Iterable[BasertPool], nodes: Sequence[NodeView], report_of: ReportOf, placement: Placement
    ) -> dict[str, Desired]:
        """Plan anew, and return what is news for each connected node."""
        self._placement = placement
        hosts = nodes if placement is Placement.OPEN else [replace(node, connected=False) for node in nodes]
        self._plan = plan(pools, hosts, [_view(worker, report_of(worker)) for worker in self._plan.workers])
        self._documents = _documents(self._plan.workers, self._documents)
        for node, strays in self._strays.items():
            self._strays[node] = {
                name: stray for name, stray in strays.items() if not _has_stopped(stray, report_of(stray))
            }
        return {node.name: news for node in nodes if node.connected and (news := self._news(node.name)) is not None}

    def _news(self, node: str) -> Desired | None:
        """Return what a node has not been told; the first news of a session comes also when it has no workers."""
        mine = {name: one for name, one in self._documents.items() if one.worker.spec.node == node}
        documents = tuple(one.text for one in (_documents(self._strays.get(node, {}).values()) | mine).values())
        if self._told.get(node) == documents:
            return None
        self._told[node] = documents
        self._revision += 1
        return Desired(self._revision, documents)


def _documents(
    workers: Iterable[BasertWorker], written: Mapping[str, _Document] = NOTHING_WRITTEN
) -> dict[str, _Document]:
    """Return the workers as JSON, by name; a worker that is the very object of last time is not written again."""
    documents = {}
    for worker in workers:
        name = worker.metadata.name
        before = written.get(name)
        if before is not None and before.worker is worker:
            documents[name] = before
        else:
            documents[name] = _Document(worker, worker.model_dump_json(by_alias=True).encode())
    return documents


def _moved(worker: BasertWorker, node: str) -> BasertWorker:
    """Name the node that a worker was found on; its agent may have had another name before."""
    return worker.model_copy(update={"spec": worker.spec.model_copy(update={"node": node})})


class Standing(NamedTuple):
    """All that a plan takes from a worker's report."""

    serves_with: str
    """The template of the process with which it serves; empty while it does not."""
    has_none: bool
    """There is no process, and none is on its way."""


SILENCE = Standing("", has_none=False)
"""What is known of a worker without a report."""


def standing(report: WorkerStatus | None) -> Standing:
    """Read a report as a plan does."""
    if report is None:
        return SILENCE
    serves_with = report.template if report.phase in SERVING else ""
    return Standing(serves_with, has_none=report.phase == State.STOPPED and report.pid is None)


def _has_stopped(worker: BasertWorker, report: WorkerStatus | None) -> bool:
    """Say whether a worker was told to stop, and its agent said that no process of it is left."""
    return worker.spec.state is WorkerState.STOPPED and standing(report).has_none


def _view(worker: BasertWorker, report: WorkerStatus | None) -> WorkerView:
    serves_with, has_none = standing(report)
    told = worker.spec.state is WorkerState.STOPPED
    return WorkerView(worker, template=serves_with, ready=bool(serves_with), stopped=told and has_none)
