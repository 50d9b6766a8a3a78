"""The fleet as others see it: the page of GET /fleet/observed, and the gauges of a scrape. Reads only."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from basert_fleet.core.dispatch import Priority
from basert_fleet.core.lifecycle import State
from basert_fleet.core.plan import NodeView
from basert_fleet.telemetry.gauges import FleetGauges, NodeGauges, PoolGauges, WorkerGauges

if TYPE_CHECKING:
    from basert_fleet.core.dispatch import Snapshot
    from basert_fleet.gateway.pools import ServedPool
    from basert_fleet.gateway.roster import Roster
    from basert_fleet.gateway.traffic import Traffic


def page(traffic: Traffic, roster: Roster, now: float) -> dict[str, Any]:
    """Return pools, workers and nodes as JSON-able values; names as in the documents of the schema."""
    return {
        "pools": [_pool(pool, roster, now) for pool in traffic.pools],
        "workers": _workers(traffic, roster),
        "nodes": [
            {
                "name": node.name,
                "connected": node.connected,
                "version": roster.version_of(node.name),
                "memoryBytes": node.memory_bytes,
            }
            for node in (*roster.nodes, *(NodeView(name, None, connected=False) for name in roster.missing))
        ],
    }


def gauges(traffic: Traffic, roster: Roster, now: float, applied_at: float | None) -> FleetGauges:
    """Return what a scrape exports."""
    return FleetGauges(
        pools=tuple(_pool_gauges(pool, roster, now) for pool in traffic.pools),
        nodes=(
            *(NodeGauges(node.name, node.connected) for node in roster.nodes),
            *(NodeGauges(name, connected=False) for name in roster.missing),
        ),
        workers=tuple(
            WorkerGauges(w.spec.pool, w.spec.node, w.metadata.name, roster.last_ready(w))
            for w in roster.planner.running
        ),
        desired_applied_timestamp=applied_at,
    )


def _pool(pool: ServedPool, roster: Roster, now: float) -> dict[str, Any]:
    snapshot = pool.dispatch.snapshot(now)
    phases = _phases(pool, roster)
    planner = roster.planner
    problems = {"Placed": planner.unplaceable.get(pool.name), "MemoryChecked": planner.unchecked.get(pool.name)}
    return {
        "name": pool.name,
        "models": list(pool.models),
        "desired": pool.resource.spec.replicas,
        "ready": phases[State.READY] + phases[State.TESTING],
        "demand": snapshot.demand,
        "queued": snapshot.queued_requests,
        "inFlight": snapshot.in_flight,
        "idle": snapshot.idle,
        "leaseViolations": snapshot.lease_violations,
        "conditions": [
            {"type": kind, "status": "False", "message": message} for kind, message in problems.items() if message
        ],
    }


def _workers(traffic: Traffic, roster: Roster) -> list[dict[str, Any]]:
    leases = traffic.leases
    workers = []
    for worker in roster.planner.workers:
        name = worker.metadata.name
        report = roster.report_of(worker)
        lease = leases.get(name)
        workers.append(
            {
                "name": name,
                "pool": worker.spec.pool,
                "node": worker.spec.node,
                "state": worker.spec.state.value,
                "phase": report.phase if report else None,
                "message": report.message if report else "its agent has said nothing of it",
                "generation": report.generation if report else None,
                "upToDate": report is not None and report.template == worker.spec.template,
                "calibrated": report.calibrated if report else None,
                "pid": report.pid if report else None,
                "engine": report.engine if report else "",
                "lease": str(lease) if lease else None,
            }
        )
    return workers


def _pool_gauges(pool: ServedPool, roster: Roster, now: float) -> PoolGauges:
    snapshot = pool.dispatch.snapshot(now)
    phases = _phases(pool, roster)
    waiting: Counter[Priority] = Counter()
    for (priority, _tenant), count in snapshot.queued.items():
        waiting[priority] += count
    return PoolGauges(
        pool=pool.name,
        desired=pool.resource.spec.replicas,
        workers={state.value: phases[state] for state in State},
        queued={priority.name.lower(): waiting[priority] for priority in Priority},
        queued_bytes=snapshot.queued_bytes,
        oldest_seconds=_oldest(snapshot),
        slots={
            "idle": snapshot.idle,
            "leased": snapshot.in_flight,
            "unavailable": max(0, phases.total() - snapshot.idle - snapshot.in_flight),
        },
        demand=snapshot.demand,
    )


def _oldest(snapshot: Snapshot) -> dict[str, float]:
    """Tell what the oldest request waits for.

    Dispatch leaves no slot idle that could run a request, so one that waits beside an idle slot is a retry that may not
    run on it.
    """
    excluded = snapshot.idle > 0
    return {
        "capacity": 0.0 if excluded else snapshot.oldest_seconds,
        "excluded": snapshot.oldest_seconds if excluded else 0.0,
    }


def _phases(pool: ServedPool, roster: Roster) -> Counter[str]:
    return Counter(report.phase for report in roster.reports() if report.pool == pool.name)
