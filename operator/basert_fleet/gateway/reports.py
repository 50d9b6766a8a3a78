"""What is told of leases, requests and workers when something has become of them: metrics and the one log line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from basert_fleet.telemetry.logs import FleetLog, LeaseLine
from basert_fleet.telemetry.metrics import UNKNOWN_ENGINE

if TYPE_CHECKING:
    from basert_fleet.core.epoch import Epoch
    from basert_fleet.gateway.exchange import Exchange
    from basert_fleet.telemetry.metrics import PoolMetrics
    from basert_fleet.wire.messages import End, WorkerStatus

LINK_LOST = "link_lost"
"""The outcome, in the log, of a lease whose agent went away; how it ended there nobody can tell."""


@dataclass(slots=True)
class _Known:
    incarnation: str
    reports: dict[str, WorkerStatus] = field(default_factory=dict)


class Tallies:
    """Turns what agents count since their start into what has happened since their last report.

    An agent that only reconnects goes on where it was; a new incarnation starts from 0.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _Known] = {}

    def take(self, node: str, incarnation: str, status: WorkerStatus, metrics: PoolMetrics) -> None:
        """Count what is new in this report."""
        known = self._nodes.get(node)
        if known is None or known.incarnation != incarnation:
            known = self._nodes[node] = _Known(incarnation)
        before = known.reports.get(status.worker)
        known.reports[status.worker] = status
        metrics.canaries_passed.inc(_growth(status.canaries_passed, before.canaries_passed if before else 0))
        metrics.canaries_failed.inc(_growth(status.canaries_failed, before.canaries_failed if before else 0))
        for reason, times in status.recycles.items():
            metrics.recycled(reason, _growth(times, before.recycles.get(reason, 0) if before else 0))


def _growth(now: int, before: int) -> int:
    """Return what was added. An agent whose count fell has a fault; it must not stop the gateway from counting."""
    return max(0, now - before)


def lease_ended(
    exchange: Exchange, end: End, *, report: WorkerStatus | None, metrics: PoolMetrics, log: FleetLog
) -> None:
    """Tell of a lease that its agent ended; the exchange has taken in that end, and with it what it released last."""
    engine = report.engine if report is not None else UNKNOWN_ENGINE
    metrics.declare_engine(engine)
    metrics.lease_ended(engine, end.verdict, exchange.released)
    if end.handoff_seconds is not None:
        metrics.handoff_seconds.observe(end.handoff_seconds)
    metrics.prompt_tokens.inc(end.prompt_tokens or 0)
    metrics.completion_tokens.inc(end.completion_tokens or 0)
    log.lease_ended(_line(exchange, end.worker, end.epoch, end.outcome.value, end))


def lease_lost(exchange: Exchange, worker: str, epoch: Epoch, log: FleetLog) -> None:
    """Tell of a lease whose agent went away. It has no verdict, so no verdict is counted."""
    log.lease_ended(_line(exchange, worker, epoch, LINK_LOST, None))


def _line(exchange: Exchange, worker: str, epoch: Epoch, outcome: str, end: End | None) -> LeaseLine:
    """Return the line of one lease; the exchange may have its next one already, which no agent has accepted yet."""
    verdict = end.verdict if end is not None else None
    reason = verdict.reason if verdict is not None else None
    return LeaseLine(
        request=exchange.ask.request_id,
        tenant=exchange.ask.terms.tenant,
        pool=exchange.pool,
        worker=worker,
        epoch=str(epoch),
        attempt=exchange.attempts.count,
        outcome=outcome,
        verdict=verdict.kind.value if verdict is not None else "",
        reason=reason.value if reason is not None else None,
        drift=verdict.drift_tokens if verdict is not None else None,
        prefix_reused=verdict is not None and verdict.prefix_reused,
        finish=end.finish_reason if end is not None else None,
        prompt_tokens=end.prompt_tokens if end is not None else None,
        completion_tokens=end.completion_tokens if end is not None else None,
        queue_ms=round(exchange.waited_seconds * 1000, 3),
        execute_ms=round(end.execute_seconds * 1000, 3) if end is not None else 0.0,
    )
