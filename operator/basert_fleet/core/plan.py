"""Which workers there should be: pools × nodes × the workers there are -> the whole new desired set.

One pass is a pure function of what is known now, and passes repeat: planning its own result changes nothing. So a pass
may be lost, late or repeated without harm. What a worker does to reach its desired state (drain, stop, start) is its
agent's business.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from basert_fleet.core.api import (
    BasertPool,
    BasertWorker,
    WorkerMetadata,
    WorkerSpec,
    WorkerState,
    format_quantity,
    template_hash,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node as it is known now."""

    name: str
    memory_bytes: int | None
    """What workers may use; None when the node cannot tell, and then nothing limits the placement on it."""
    connected: bool
    """Nothing new is placed on a node that is away; what lives there stays."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker of the last plan, and what its agent said of it since. Without word from it the defaults hold."""

    worker: BasertWorker
    template: str = ""
    """The template its process runs with; empty while there is none."""
    ready: bool = False
    stopped: bool = False
    """Its agent said, after it was told to stop it, that no process of it is left. Silence is not that."""

    @property
    def serves(self) -> bool:
        """Whether it is ready with the process it should have: taking it down would be felt."""
        return self.ready and self.template == self.worker.spec.template

    @property
    def wanted(self) -> bool:
        """Whether it should run."""
        return self.worker.spec.state is WorkerState.RUNNING


@dataclass(frozen=True, slots=True)
class Plan:
    """What should be, and what cannot be."""

    workers: tuple[BasertWorker, ...]
    """Every worker, by name. One that is to go is Stopped in here until it is known to have stopped."""
    unplaceable: Mapping[str, str] = field(default_factory=dict)
    """Pools that get fewer workers than they ask for, or whose change has to wait for memory, and why."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """Pools whose memory could not be held against a node's, and why: a check that did not happen says so (C19)."""


def plan(pools: Iterable[BasertPool], nodes: Sequence[NodeView], workers: Iterable[WorkerView]) -> Plan:
    """Return the desired set of workers.

    A pool is served in the order of its name. Scale-in takes the not ready first, then the highest index. A rollout
    replaces outdated workers that serve nobody at once, the others within `update.maxUnavailable`, counting every
    worker of the pool that does not serve. A worker of a pool that is gone is stopped.
    """
    known = [view for view in workers if not (view.stopped and not view.wanted)]
    ledger = _Ledger(nodes, known)
    by_pool: dict[str, list[WorkerView]] = defaultdict(list)
    for view in known:
        by_pool[view.worker.spec.pool].append(view)
    drafts = [
        _Draft(pool, by_pool.pop(pool.metadata.name, []), ledger)
        for pool in sorted(pools, key=lambda pool: pool.metadata.name)
    ]
    for draft in drafts:
        draft.scale_in()
    moved = True
    while moved:  # what one pool gives up may be room for another; every worker moves once at most, so this ends
        moved = sum(draft.scale_out() + draft.roll_out() for draft in drafts) > 0
    orphans = [stopped(view.worker) for views in by_pool.values() for view in views]
    planned = [*orphans, *(worker for draft in drafts for worker in draft.workers())]
    return Plan(
        workers=tuple(sorted(planned, key=_order)),
        unplaceable={draft.name: draft.problem for draft in drafts if draft.problem},
        unchecked={draft.name: text for draft in drafts if (text := ledger.unchecked(draft.memory))},
    )


def worker_name(pool: str, index: int) -> str:
    """Return the only name that this worker of this pool can have."""
    return f"{pool}-{index}"


def worker_index(worker: BasertWorker) -> int:
    """Return which of its pool's workers this is."""
    return int(worker.metadata.name.rpartition("-")[2])


def has_planned_name(worker: BasertWorker) -> bool:
    """Say whether a worker is called as a plan would call it; whatever else it is, no plan can hold it."""
    index = worker.metadata.name.rpartition("-")[2]
    return index.isdecimal() and worker.metadata.name == worker_name(worker.spec.pool, int(index))


def _order(worker: BasertWorker) -> tuple[str, int]:
    return worker.spec.pool, worker_index(worker)


def stopped(worker: BasertWorker) -> BasertWorker:
    """Return the worker as it is to be asked to stop."""
    return worker.model_copy(update={"spec": worker.spec.model_copy(update={"state": WorkerState.STOPPED})})


class _Draft:
    """One pool's workers while a plan is made."""

    def __init__(self, pool: BasertPool, views: Iterable[WorkerView], ledger: _Ledger) -> None:
        self.name = pool.metadata.name
        self.memory = pool.spec.resources.memory
        self.problem = ""
        self._spec = pool.spec
        self._template = template_hash(pool.spec)
        self._ledger = ledger
        self._leaving: list[BasertWorker] = []
        self._staying: dict[int, WorkerView] = {}
        for view in views:
            if view.wanted:
                self._staying[worker_index(view.worker)] = self._refreshed(view)
            else:
                self._leaving.append(view.worker)

    def workers(self) -> list[BasertWorker]:
        """Return what was planned."""
        return [*self._leaving, *(view.worker for view in self._staying.values())]

    def scale_in(self) -> None:
        """Stop what is too many."""
        surplus = len(self._staying) - self._spec.replicas
        victims = sorted(self._staying, key=lambda index: (self._staying[index].serves, -index))
        for index in victims[: max(surplus, 0)]:
            self._leave(index)

    def scale_out(self) -> bool:
        """Place what is missing, as far as there is room; say whether anything was placed."""
        self.problem = ""
        before = len(self._staying)
        while len(self._staying) < self._spec.replicas:
            node = self._ledger.roomiest(self.name, self.memory)
            if node is None:
                missing = self._spec.replicas - len(self._staying)
                self.problem = (
                    f"{missing} of {self._spec.replicas} workers cannot be placed: {self._ledger.explain(self.memory)}"
                )
                break
            self._create(node)
        return len(self._staying) > before

    def roll_out(self) -> bool:
        """Replace outdated workers: those that do not serve at once, the others by budget; say whether any was."""
        outdated = [i for i, view in sorted(self._staying.items()) if view.worker.spec.template != self._template]
        budget = self._spec.update.max_unavailable - sum(not view.serves for view in self._staying.values())
        replaced = 0
        for index in outdated:
            serves = self._staying[index].serves
            if serves and budget <= 0:
                continue
            if self._replace(index):
                budget -= serves
                replaced += 1
        return replaced > 0

    def _replace(self, index: int) -> bool:
        """Give a worker its new template where it is, or else a successor on another node; False if neither fits."""
        old = self._staying[index].worker
        if self._ledger.exchange(old.spec.node, old.spec.resources.memory, self.memory):
            self._staying[index] = WorkerView(self._desired(index, old.spec.node))
            return True
        node = self._ledger.roomiest(self.name, self.memory)
        if node is None:
            self.problem = self.problem or f"the change waits for memory: {self._ledger.explain(self.memory)}"
            return False
        self._leave(index)
        self._create(node)
        return True

    def _leave(self, index: int) -> None:
        self._leaving.append(stopped(self._staying.pop(index).worker))

    def _create(self, node: str) -> None:
        taken = self._staying.keys() | {worker_index(worker) for worker in self._leaving}
        index = next(index for index in range(len(taken) + 1) if index not in taken)
        self._ledger.take(self.name, node, self.memory)
        self._staying[index] = WorkerView(self._desired(index, node))

    def _desired(self, index: int, node: str) -> BasertWorker:
        spec = self._spec
        return BasertWorker(
            metadata=WorkerMetadata(name=worker_name(self.name, index)),
            spec=WorkerSpec(
                pool=self.name,
                node=node,
                state=WorkerState.RUNNING,
                template=self._template,
                model=spec.model,
                server=spec.server,
                resources=spec.resources,
                isolation=spec.isolation,
            ),
        )

    def _refreshed(self, view: WorkerView) -> WorkerView:
        """Give a worker at once whatever a running process takes as it is; the rest waits for its turn.

        One that was made from this very spec is left as the object it is: most passes change nothing, and with many
        workers would take most of their time for making equal ones.
        """
        old = view.worker
        if self._was_made_from_this(old.spec):
            return view
        if old.spec.template == self._template:
            worker = self._desired(worker_index(old), old.spec.node)
        else:
            model = self._spec.model.model_copy(update={"path": old.spec.model.path})
            news = {"model": model, "isolation": self._spec.isolation}
            worker = old.model_copy(update={"spec": old.spec.model_copy(update=news)})
        return WorkerView(worker, view.template, view.ready, view.stopped)

    def _was_made_from_this(self, made: WorkerSpec) -> bool:
        spec = self._spec
        return (
            made.template == self._template
            and made.model is spec.model
            and made.server is spec.server
            and made.resources is spec.resources
            and made.isolation is spec.isolation
        )


class _Ledger:
    """What each node still has to give while a plan is made.

    A worker counts until it is known to have stopped, and with what its next process needs.
    """

    def __init__(self, nodes: Sequence[NodeView], views: Iterable[WorkerView]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._used: dict[str, int] = defaultdict(int)
        self._workers: dict[tuple[str, str], int] = defaultdict(int)
        for view in views:
            spec = view.worker.spec
            self.take(spec.pool, spec.node, spec.resources.memory)

    def take(self, pool: str, node: str, memory: int | None) -> None:
        """Note one more worker."""
        self._used[node] += memory or 0
        self._workers[pool, node] += 1

    def exchange(self, node: str, old: int | None, new: int | None) -> bool:
        """Let a worker stay on its node with other needs; False, and nothing changed, if there is no room for that.

        A worker that needs no more than before always stays, even on a node that is away or has become too small.
        """
        more = (new or 0) - (old or 0)
        if more > 0 and not self._has_room(node, more):
            return False
        self._used[node] += more
        return True

    def roomiest(self, pool: str, memory: int | None) -> str | None:
        """Return the connected node with the fewest workers of the pool, then the most memory left, if any has room."""
        fitting = [node for node in self._nodes.values() if node.connected and self._has_room(node.name, memory)]
        return min((node.name for node in fitting), key=lambda name: self._preference(pool, name), default=None)

    def explain(self, memory: int | None) -> str:
        """Say, node by node, why nothing more fits."""
        if not self._nodes:
            return "there is no node"
        reasons = [self._refusal(node, memory) for _, node in sorted(self._nodes.items())]
        return f"0 of {len(reasons)} nodes can take one more: {'; '.join(reasons)}"

    def unchecked(self, memory: int | None) -> str:
        """Say which nodes could not be held against what a worker needs; empty when all could, or nothing is asked."""
        if memory is None:
            return ""
        silent = sorted(node.name for node in self._nodes.values() if node.memory_bytes is None)
        return f"{', '.join(silent)}: memory unknown, {_amount(memory)} per worker not checked" if silent else ""

    def _left(self, node: str) -> int | None:
        memory = self._nodes[node].memory_bytes if node in self._nodes else 0
        return None if memory is None else memory - self._used[node]

    def _has_room(self, node: str, memory: int | None) -> bool:
        left = self._left(node)
        return memory is None or left is None or memory <= left

    def _preference(self, pool: str, node: str) -> tuple[int, bool, int, str]:
        left = self._left(node)
        return self._workers[pool, node], left is not None, -(left or 0), node

    def _refusal(self, node: NodeView, memory: int | None) -> str:
        if not node.connected:
            return f"{node.name} is not connected"
        left = max(self._left(node.name) or 0, 0)
        return (
            f"{node.name} has {_amount(left)} of {_amount(node.memory_bytes or 0)} left, {_amount(memory or 0)} needed"
        )


def _amount(size: int) -> str:
    """Write bytes short enough for a message; rounded down, so that what is left is never told too high."""
    mebibytes = size // 1024**2
    return format_quantity(mebibytes * 1024**2) if mebibytes else format_quantity(size)
