"""The bug report's shapes through a whole fleet, with the bug on in every worker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from support.fleet import fleet, pool
from support.users import REQUEST_SECONDS, Got, Kind, ask, tally


async def test_sixty_sequential_requests_are_all_right(tmp_path: Path) -> None:
    """On one bare worker the sixth of them goes wrong."""
    async with fleet(tmp_path, pool("--sim-bug", "on", replicas=4)) as running:
        async with httpx.AsyncClient(base_url=running.url, timeout=REQUEST_SECONDS) as client:
            replies = [await ask(client, Kind.TOOL, f"seq-{number}") for number in range(60)]
        assert tally(replies) == {Got.RIGHT: 60}, replies
        assert running.overlaps() == []


@pytest.mark.parametrize("users", [2, 4, 64])
async def test_concurrent_requests_are_all_right(tmp_path: Path, users: int) -> None:
    """On one bare worker, two or more at once never are."""
    async with fleet(tmp_path, pool("--sim-bug", "on", replicas=4)) as running:
        limits = httpx.Limits(max_connections=users)
        async with httpx.AsyncClient(base_url=running.url, timeout=REQUEST_SECONDS, limits=limits) as client:
            replies = await asyncio.gather(*(ask(client, Kind.TOOL, f"c{users}-{number}") for number in range(users)))
        assert tally(list(replies)) == {Got.RIGHT: users}, replies
        assert running.overlaps() == []
