"""Many impatient users on a fleet whose every worker has the bug."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import psutil

from support.fleet import Fleet, fleet, pool
from support.users import Got, storm, tally, wrong

REQUESTS, CLIENTS, WORKERS = 2_000, 64, 8
KNOWN_ERRORS = {"response_contaminated", "worker_lost", "queue_full", "queue_timeout", "request_timeout"}


async def drained(running: Fleet) -> None:
    """Wait until every gauge that counts requests or leases is back to 0 and all workers serve again."""
    await running.until(
        lambda seen: all(
            entry["demand"] == entry["queued"] == entry["inFlight"] == 0 and entry["idle"] == entry["desired"]
            for entry in seen["pools"]
        )
    )


async def gauges_are_zero(running: Fleet) -> None:
    """Assert that a scrape shows nothing queued, leased or violated."""
    for name in ("basert_fleet_demand", "basert_fleet_queue_depth", "basert_fleet_queue_bytes"):
        assert await running.total(name) == 0, name
    assert await running.total("basert_fleet_slots", state="leased") == 0
    assert await running.total("basert_fleet_lease_violations_total") == 0
    assert await running.total("basert_fleet_workers", phase="READY") == WORKERS


async def test_two_thousand_requests_of_users_that_hang_up(tmp_path: Path) -> None:
    """No wrong answer, no overlap in any engine, clear errors only, and nothing left behind."""
    document = pool("--sim-bug", "on", replicas=WORKERS)
    async with fleet(tmp_path, document) as running:
        replies = await storm(running.url, requests=REQUESTS, clients=CLIENTS, seed=1, hang_up_share=0.2)
        await drained(running)
        await gauges_are_zero(running)
        assert wrong(replies) == []
        assert running.overlaps() == []
        errors = Counter(reply.detail for reply in replies if reply.got is Got.ERROR)
        assert all(any(code in detail for code in KNOWN_ERRORS) for detail in errors), errors
        assert len(replies) == REQUESTS
        counts = tally(replies)
        assert counts[Got.RIGHT] >= 0.75 * REQUESTS, (counts, errors)
        assert client_connections(running) == 0


def client_connections(running: Fleet) -> int:
    """Count the sockets that the fleet still holds towards clients."""
    connections = psutil.Process(running.process.pid).net_connections("tcp")
    return sum(
        connection.laddr.port == running.port and connection.status == psutil.CONN_ESTABLISHED
        for connection in connections
    )
