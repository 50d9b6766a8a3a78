"""Builds whose counters look odd but healthy, and a build whose bug is at its worst: none of them starts a storm."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.fleet import fleet, pool
from support.users import Got, Kind, storm, tally, wrong


@pytest.mark.parametrize("counters", ["equal", "constant", "completion", "ending"])
async def test_five_hundred_clean_leases_recycle_nobody(tmp_path: Path, counters: str) -> None:
    """All endings and hang-ups included, no process is replaced, whatever healthy counters look like."""
    document = pool("--sim-counters", counters, "--sim-tokens-per-second", "4000", replicas=4)
    async with fleet(tmp_path, document) as running:
        replies = await storm(running.url, requests=560, clients=8, seed=2, hang_up_share=0.1)
        assert wrong(replies) == []
        assert tally(replies)[Got.ERROR] == 0
        assert await running.total("basert_fleet_leases_total", verdict="clean") >= 500
        assert await running.total("basert_fleet_recycles_total") == 0
        seen = await running.observed()
        assert [worker["generation"] for worker in seen["workers"]] == [1, 1, 1, 1]


@pytest.mark.parametrize(("verify", "kind"), [("toolCalls", Kind.TOOL), ("full", Kind.TOOL_STREAM)])
async def test_a_build_with_the_bug_at_its_worst_still_serves(tmp_path: Path, verify: str, kind: Kind) -> None:
    """When every repeated request contaminates: only right answers, no FATAL, no BACKOFF, one recycle a fault.

    A stream needs `full` for that: under `toolCalls` the text of a contaminated answer is out before its verdict.
    """
    document = pool("--sim-bug", "on", "--sim-bug-after", "1", replicas=4, delivery={"verify": verify})
    async with fleet(tmp_path, document) as running:
        replies = await storm(running.url, requests=150, clients=8, seed=3, kinds=(kind,))
        assert tally(replies) == {Got.RIGHT: 150}, [reply for reply in replies if reply.got is not Got.RIGHT]
        assert running.overlaps() == []
        assert await running.total("basert_fleet_workers", phase="FATAL") == 0
        contaminated = await running.total("basert_fleet_leases_total", verdict="contaminated")
        assert 0 < await running.total("basert_fleet_recycles_total") <= contaminated
