"""Who is there: nodes, their sessions, what they report of their workers, and what each has been told to be.

A plan is made anew, once per loop turn, when something changed that it depends on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from basert_fleet.core.plan import NodeView
from basert_fleet.gateway.planning import SERVING, Placement, Planner, standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from basert_fleet.core.api import BasertPool, BasertWorker
    from basert_fleet.gateway.sessions import Session
    from basert_fleet.wire.messages import WorkerStatus


def keep_nothing(_documents: tuple[bytes, ...]) -> None:
    """Keep no plan: for a fleet whose agent lives and ends with its gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginnings:
    """What a gateway starts from, and what it leaves for the next one."""

    plan: tuple[BasertWorker, ...] = ()
    """The workers of the last plan."""
    arrival_seconds: float = 0.0
    """How long no worker is placed anew, so that agents which are just dialling again can say what they have."""
    keep: Callable[[tuple[bytes, ...]], None] = keep_nothing
    """Called with all workers of a plan, as JSON, when they have changed; must not fail."""


FROM_NOTHING = Beginnings()
"""No last plan, nobody to wait for, and nothing to keep."""


class Roster:
    """The nodes that have been seen, and the workers they should have."""

    def __init__(
        self, planned: Callable[[], None], wall: Callable[[], float], beginnings: Beginnings = FROM_NOTHING
    ) -> None:
        """Begin with nobody; `planned` is called after each plan, `wall` tells Unix time."""
        self._loop = asyncio.get_running_loop()
        self._planned = planned
        self._wall = wall
        self._keep = beginnings.keep
        self._pools: tuple[BasertPool, ...] | None = None
        self._sessions: dict[str, Session] = {}
        self._nodes: dict[str, NodeView] = {}
        self._last_ready: dict[str, float] = {}
        self._due: asyncio.Handle | None = None
        self._arrivals: asyncio.TimerHandle | None = None
        if beginnings.arrival_seconds > 0:
            self._arrivals = self._loop.call_later(beginnings.arrival_seconds, self._open_placement)
        self.planner = Planner(beginnings.plan)
        self._kept = self.planner.documents

    @property
    def nodes(self) -> Sequence[NodeView]:
        """Every node that has been seen, those that are away included."""
        return tuple(self._nodes.values())

    @property
    def missing(self) -> Sequence[str]:
        """Nodes that the plan has workers on and that have not been seen since the start."""
        return sorted({worker.spec.node for worker in self.planner.workers} - self._nodes.keys())

    @property
    def awaits_nodes(self) -> bool:
        """Whether a node may still come that workers can be placed on: nobody is here yet, or all are just dialling."""
        return self._arrivals is not None or not self._nodes

    def version_of(self, node: str) -> str | None:
        """Return the version of the node's agent, if it is connected."""
        session = self._sessions.get(node)
        return session.hello.version if session is not None else None

    def report_of(self, worker: BasertWorker) -> WorkerStatus | None:
        """Return the worker's last status from the node that it is planned on, if its agent is connected."""
        session = self._sessions.get(worker.spec.node)
        return session.reports.get(worker.metadata.name) if session is not None else None

    def reports(self) -> Iterator[WorkerStatus]:
        """Yield the last status of every worker whose agent is connected."""
        return (report for session in self._sessions.values() for report in session.reports.values())

    def last_ready(self, worker: BasertWorker) -> float:
        """Return when the worker was last ready, or became desired; Unix seconds, now for one that is ready."""
        report = self.report_of(worker)
        if report is not None and report.phase in SERVING:
            return self._wall()
        return self._last_ready.setdefault(worker.metadata.name, self._wall())

    def apply(self, pools: Sequence[BasertPool]) -> None:
        """Want these pools from now on; planned at once."""
        self._pools = tuple(pools)
        self._plan()

    def open(self, session: Session) -> bool:
        """Take in an agent; False if its node has a session that does not give way.

        One that does is given up first: its owner hears that it is lost before this returns.
        """
        before = self._sessions.get(session.node)
        if before is not None:
            if not before.gives_way_to(session):
                return False
            before.give_up()
        self._sessions[session.node] = session
        self._see(session)
        return True

    def adopt(self, session: Session) -> tuple[str, ...]:
        """Plan with the workers that an agent brought; return what is wrong with those that cannot be."""
        return self.planner.adopt(session.node, session.hello.workers)

    def reach_changed(self, session: Session) -> None:
        """Take in that an agent is out of reach, or in reach again; what it said of its workers still holds."""
        self._see(session)

    def reported(self, status: WorkerStatus, before: WorkerStatus | None) -> None:
        """Take in a worker's status; a start that gets on, or a canary between two requests, is no reason to plan."""
        if before is not None and before.phase in SERVING:
            self._last_ready[status.worker] = self._wall()
        if standing(status) != standing(before):
            self._plan_soon()

    def lose(self, session: Session) -> None:
        """Take in that an agent is away. Its workers stay desired where they are."""
        for name, report in session.reports.items():
            if report.phase in SERVING:
                self._last_ready[name] = self._wall()
        del self._sessions[session.node]
        self.planner.node_lost(session.node)
        self._see(session)

    def close(self) -> None:
        """End all sessions, and plan no more."""
        for timer in (self._due, self._arrivals):
            if timer is not None:
                timer.cancel()
        for session in list(self._sessions.values()):
            session.close()

    def _see(self, session: Session) -> None:
        self._nodes[session.node] = NodeView(session.node, session.hello.memory_bytes, connected=session.in_reach)
        self._plan_soon()

    def _open_placement(self) -> None:
        self._arrivals = None
        self._plan()

    def _plan_soon(self) -> None:
        if self._due is None:
            self._due = self._loop.call_soon(self._plan)

    def _plan(self) -> None:
        """Plan now; before the first `apply` nobody has said what is wanted, and that is not nothing."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._pools is None:
            return
        placement = Placement.OPEN if self._arrivals is None else Placement.HELD
        news = self.planner.replan(self._pools, self.nodes, self.report_of, placement)
        if self.planner.documents != self._kept:
            self._kept = self.planner.documents
            self._keep(self._kept)
        for node, desired in news.items():
            self._sessions[node].send(desired)
        known = {worker.metadata.name for worker in self.planner.workers}
        for name in known:
            self._last_ready.setdefault(name, self._wall())
        for name in self._last_ready.keys() - known:
            del self._last_ready[name]
        self._planned()
