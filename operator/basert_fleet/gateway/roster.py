"""Who is there: nodes, their sessions, what they report of their workers, and what each has been told to be.

A plan is made anew, once per loop turn, when something changed that it depends on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from basert_fleet.core.plan import NodeView
from basert_fleet.gateway.planning import SERVING, Planner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from basert_fleet.core.api import BasertPool
    from basert_fleet.gateway.sessions import Session
    from basert_fleet.wire.messages import WorkerStatus


class Roster:
    """The nodes that have been seen, and the workers they should have."""

    def __init__(self, planned: Callable[[], None], wall: Callable[[], float]) -> None:
        """Begin with nobody; `planned` is called after each plan, `wall` tells Unix time."""
        self._loop = asyncio.get_running_loop()
        self._planned = planned
        self._wall = wall
        self._pools: tuple[BasertPool, ...] = ()
        self._sessions: dict[str, Session] = {}
        self._nodes: dict[str, NodeView] = {}
        self._last_ready: dict[str, float] = {}
        self._due: asyncio.Handle | None = None
        self.planner = Planner()

    @property
    def nodes(self) -> Sequence[NodeView]:
        """Every node that has been seen, those that are away included."""
        return tuple(self._nodes.values())

    def version_of(self, node: str) -> str | None:
        """Return the version of the node's agent, if it is connected."""
        session = self._sessions.get(node)
        return session.hello.version if session is not None else None

    def report_of(self, worker: str) -> WorkerStatus | None:
        """Return the worker's last status, if its agent is connected."""
        return next((s.reports[worker] for s in self._sessions.values() if worker in s.reports), None)

    def reports(self) -> dict[str, WorkerStatus]:
        """Return the last status of every worker whose agent is connected."""
        return {name: report for session in self._sessions.values() for name, report in session.reports.items()}

    def last_ready(self, worker: str) -> float:
        """Return when the worker was last ready, or became desired; Unix seconds, now for one that is ready."""
        report = self.report_of(worker)
        if report is not None and report.phase in SERVING:
            return self._wall()
        return self._last_ready.setdefault(worker, self._wall())

    def apply(self, pools: Sequence[BasertPool]) -> None:
        """Want these pools from now on; planned at once."""
        self._pools = tuple(pools)
        self._plan()

    def open(self, session: Session) -> bool:
        """Take in an agent; False if its node has a live session already."""
        if session.node in self._sessions:
            return False
        self._sessions[session.node] = session
        self._nodes[session.node] = NodeView(session.node, session.hello.memory_bytes, connected=True)
        self._plan_soon()
        return True

    def reported(self, status: WorkerStatus, before: WorkerStatus | None) -> None:
        """Take in a worker's status."""
        if before is not None and before.phase in SERVING:
            self._last_ready[status.worker] = self._wall()
        if before is None or _matters(status) != _matters(before):
            self._plan_soon()

    def lose(self, session: Session) -> None:
        """Take in that an agent is away. Its workers stay desired where they are."""
        for name, report in session.reports.items():
            if report.phase in SERVING:
                self._last_ready[name] = self._wall()
        del self._sessions[session.node]
        self._nodes[session.node] = NodeView(session.node, session.hello.memory_bytes, connected=False)
        self.planner.node_lost(session.node)
        self._plan_soon()

    def close(self) -> None:
        """End all sessions, and plan no more."""
        if self._due is not None:
            self._due.cancel()
        for session in list(self._sessions.values()):
            session.close()

    def _plan_soon(self) -> None:
        if self._due is None:
            self._due = self._loop.call_soon(self._plan)

    def _plan(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        news = self.planner.replan(self._pools, self.nodes, self.reports())
        for node, desired in news.items():
            self._sessions[node].send(desired)
        known = {worker.metadata.name for worker in self.planner.workers}
        for name in known:
            self._last_ready.setdefault(name, self._wall())
        for name in self._last_ready.keys() - known:
            del self._last_ready[name]
        self._planned()


def _matters(status: WorkerStatus) -> tuple[bool, str, str]:
    """Return what a plan depends on: a canary between two requests is no reason to plan."""
    phase = "serving" if status.phase in SERVING else status.phase
    return status.pid is None, status.template, phase
