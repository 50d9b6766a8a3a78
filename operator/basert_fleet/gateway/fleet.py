"""One gateway's fleet: its traffic, its roster, and what joins the two.

What agents say reaches both: a status concerns the roster, an offer or a frame the traffic. `apply` gives both the
pools; a plan tells the traffic which pools can have a worker at all.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from basert_fleet.gateway import observed
from basert_fleet.gateway.errors import Code, Failure, RequestFault
from basert_fleet.gateway.outcomes import OUTCOMES
from basert_fleet.gateway.reports import Tallies
from basert_fleet.gateway.roster import FROM_NOTHING, Roster
from basert_fleet.gateway.sessions import Session
from basert_fleet.gateway.traffic import BUFFER_BYTES, Traffic
from basert_fleet.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from basert_fleet.core.api import BasertPool
    from basert_fleet.gateway.ask import Ask
    from basert_fleet.gateway.exchange import Exchange
    from basert_fleet.gateway.roster import Beginnings
    from basert_fleet.gateway.sessions import Frame
    from basert_fleet.telemetry.gauges import FleetGauges
    from basert_fleet.telemetry.logs import FleetLog
    from basert_fleet.wire.messages import Offer, Withdraw, WorkerStatus


class AgentNews(StrEnum):
    """What became of a node's agent."""

    CONNECTED = "connected"
    OUT_OF_REACH = "out of reach"
    """Its connection broke; what it runs goes on, and it has some time to come back."""
    BACK = "back"
    """Within that time: nothing was lost."""
    GONE = "gone"
    """What it ran runs elsewhere, if nobody has seen anything of it."""
    REFUSED = "refused"
    """Another agent of that name is connected."""


class Fleet:
    """Pools, agents and requests of one gateway. Belongs to the loop in which it was made."""

    def __init__(
        self,
        log: FleetLog,
        *,
        beginnings: Beginnings = FROM_NOTHING,
        wall: Callable[[], float] = time.time,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """Make a fleet without pools.

        `wall` tells Unix time, for timestamps that people read; `buffer_bytes` bounds what one slow client may leave
        unread.
        """
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._wall = wall
        self._applied_at: float | None = None
        self._draining = False
        self._doubled: set[str] = set()
        """Nodes of which a second agent was refused since the first one came: it dials again and again."""
        self._tallies = Tallies()
        self.metrics = Metrics(self.gauges)
        self.metrics.declare_refusals(OUTCOMES)
        self.traffic = Traffic(self.metrics, log, buffer_bytes=buffer_bytes)
        self.roster = Roster(self._planned, wall, beginnings)
        self.on_phase: list[Callable[[WorkerStatus], None]] = []
        """Called with a worker's status when its phase has changed."""
        self.on_agent: list[Callable[[str, AgentNews], None]] = []
        """Called with a node's name when something has become of its agent."""

    # --- Desired and observed -----------------------------------------------------------------------------------------

    def apply(self, pools: Sequence[BasertPool]) -> None:
        """Serve exactly these pools from now on, and tell the agents which workers that takes."""
        self._applied_at = self._wall()
        self.traffic.apply(pools)
        self.roster.apply(pools)
        for node in self.roster.nodes:
            self.metrics.declare_node(node.name, [pool.metadata.name for pool in pools])

    def observed(self) -> dict[str, Any]:
        """Return the fleet as it is now, as values that JSON can hold."""
        return observed.page(self.traffic, self.roster, self._loop.time())

    def gauges(self) -> FleetGauges:
        """Return what a scrape exports."""
        return observed.gauges(self.traffic, self.roster, self._loop.time(), self._applied_at)

    def models(self) -> dict[str, str]:
        """Return every name that a client may ask for, and the pool behind it."""
        return {model: pool.name for pool in self.traffic.pools for model in pool.models}

    def ready(self) -> bool:
        """Say whether requests can be taken: a desired state is known, and the gateway is not draining."""
        return self._applied_at is not None and not self._draining

    def _planned(self) -> None:
        """Let requests wait only where a worker can come.

        While nodes may still come, it can: after a restart the agents are just dialling.
        """
        placed = {worker.spec.pool for worker in self.roster.planner.running}
        for pool in list(self.traffic.pools):
            placeable = pool.name in placed or self.roster.awaits_nodes
            self.traffic.set_capacity(pool, possible=pool.resource.spec.replicas > 0 and placeable)

    # --- Requests -----------------------------------------------------------------------------------------------------

    def submit(self, ask: Ask, abort: Callable[[], None]) -> Exchange:
        """Queue a request; its exchange tells what becomes of it. `abort` must drop the client's connection.

        Raises:
            RequestFault: it cannot be queued; the failure says why.
        """
        if self._draining:
            raise RequestFault(Failure(Code.DRAINING, "This gateway is shutting down.", retry_after_seconds=1.0))
        return self.traffic.submit(ask, abort)

    async def drain(self, limit_seconds: float) -> bool:
        """Take no new requests, and wait for those in progress; say whether all got their answer in time.

        Past the limit, or when cancelled, the rest get an error.
        """
        self._draining = True
        try:
            async with asyncio.timeout(limit_seconds):
                await self.traffic.idle()
        except TimeoutError:
            return False
        finally:
            self.traffic.fail_all(Failure(Code.DRAINING, "This gateway shut down before the response was complete."))
        return True

    def close(self) -> None:
        """End all sessions with agents."""
        self.roster.close()

    # --- Agents (the owner of sessions) -------------------------------------------------------------------------------

    def new_session(self) -> Session:
        """Return the endpoint for a new agent's link."""
        return Session(self)

    def session_opened(self, session: Session) -> str:
        """Take in an agent that said who it is; if its node has another one, say so."""
        if not self.roster.open(session):
            if session.node not in self._doubled:
                self._log.events.warning("second session of a node refused", node=session.node)
                self._doubled.add(session.node)
            self._tell(session, AgentNews.REFUSED)
            return (
                f"another agent is connected as {session.node}. Stop that one, or give this one a --node name of its "
                "own; if it was cloned, also a --state-dir of its own."
            )
        self._doubled.discard(session.node)
        for problem in self.roster.adopt(session):
            self._log.events.warning("worker not taken over", node=session.node, problem=problem)
        self.metrics.declare_node(session.node, [pool.name for pool in self.traffic.pools])
        self._tell(session, AgentNews.CONNECTED)
        return ""

    def worker_reported(self, session: Session, status: WorkerStatus, before: WorkerStatus | None) -> None:
        """Take in a worker's status."""
        metrics = self.traffic.metrics_of(status.pool)
        if metrics is not None:
            metrics.declare_engine(status.engine)
            self._tallies.take(session.node, session.hello.incarnation, status, metrics)
        self.roster.reported(status, before)
        if before is None or before.phase != status.phase:
            for callback in self.on_phase:
                callback(status)

    def offered(self, session: Session, offer: Offer) -> None:
        """Take in an offer; one of a worker that is another node's is dropped and counted."""
        if self.roster.planner.is_elsewhere(session.node, offer.worker):
            self.traffic.offered_elsewhere(session, offer)
        else:
            self.traffic.offered(session, offer)

    def withdrawn(self, session: Session, withdraw: Withdraw) -> None:
        """Take in that an offer does not hold any more."""
        self.traffic.withdrawn(session, withdraw)

    def frame_received(self, session: Session, frame: Frame) -> None:
        """Take in a message of one lease."""
        self.traffic.frame_received(session, frame)

    def session_suspended(self, session: Session) -> None:
        """Take in that an agent is out of reach."""
        self.traffic.agent_suspended(session)
        self.roster.reach_changed(session)
        self._tell(session, AgentNews.OUT_OF_REACH)

    def session_resumed(self, session: Session) -> None:
        """Take in that an agent is in reach again."""
        self.traffic.agent_resumed(session)
        self.roster.reach_changed(session)
        self._tell(session, AgentNews.BACK)

    def session_lost(self, session: Session) -> None:
        """Take in that an agent is away."""
        self.traffic.agent_lost(session)
        self.roster.lose(session)
        self._tell(session, AgentNews.GONE)

    def _tell(self, session: Session, news: AgentNews) -> None:
        for callback in self.on_agent:
            callback(session.node, news)
