"""What a worker does when its wish changes, or its agent ends, in any phase of its life."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from basert_fleet.core.delivery import Outcome
from basert_fleet.engine.canary import lookup_key_request
from basert_fleet.wire.messages import WorkerStatus
from support.desk import Desk, desk, pool_document, replanned, stopped

SLOW = ("--sim-startup", "0.3", "--sim-tokens-per-second", "400")
ENDLESS = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "[[len=2000]]"}], "max_tokens": 2000, "stream": True}
).encode()


def pids(front: Desk) -> set[int]:
    """Return every process that was ever reported."""
    return {m.pid for m in front.received if isinstance(m, WorkerStatus) and m.pid is not None}


@pytest.mark.parametrize("phase", ["STARTING", "WARMING", "READY"])
async def test_an_agent_that_ends_leaves_no_process(tmp_path: Path, phase: str) -> None:
    """In whichever phase it is cut, its process is dead when `close` returns."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(*SLOW))
        await front.phase(phase)
    assert not any(psutil.pid_exists(pid) for pid in pids(front))


async def test_an_agent_that_ends_in_mid_lease_leaves_no_process(tmp_path: Path) -> None:
    """A generation that is cut short costs its process, never a slot in doubt."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(*SLOW))
        await front.lease(ENDLESS)
        await front.until(lambda: any(type(m).__name__ == "Body" for m in front.received))
    assert pids(front)
    assert not any(psutil.pid_exists(pid) for pid in pids(front))


@pytest.mark.parametrize("phase", ["STARTING", "WARMING", "READY"])
async def test_a_changed_template_brings_a_new_process(tmp_path: Path, phase: str) -> None:
    """Whatever it is doing, the worker comes back with the new command line."""
    async with desk(tmp_path) as front:
        workers = front.want_pool(pool_document(*SLOW))
        await front.phase(phase)
        (changed,) = replanned(pool_document("--sim-startup", "0.0"), workers)
        front.want(changed)
        await front.until(lambda: front.statuses["qwen-0"].template == changed.spec.template)
        end, _ = await front.ask("after-change")
        assert (end.outcome, end.epoch.generation) == (Outcome.RELEASED, 2)


async def test_a_stop_in_mid_lease_lets_the_lease_end(tmp_path: Path) -> None:
    """A drained worker finishes what it has (C27), shows that it drains, and takes nothing more."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document("--sim-tokens-per-second", "400"))
        epoch = await front.lease(lookup_key_request("last", "m"))
        await front.until(lambda: any(type(m).__name__ == "Accepted" for m in front.received))
        front.want(stopped(worker))
        await front.phase("DRAINING")
        assert (await front.end(epoch)).outcome is Outcome.RELEASED
        await front.phase("STOPPED")
        assert front.offers == {}


async def test_a_fatal_worker_starts_anew_with_a_changed_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FATAL has a way back: the failures of the old command line do not count for the new one."""
    monkeypatch.setattr("basert_fleet.core.lifecycle.FAILURES_UNTIL_FATAL", 1)
    async with desk(tmp_path) as front:
        workers = front.want_pool(pool_document("--no-such-flag"))
        status = await front.phase("FATAL")
        assert "--no-such-flag" in status.message
        front.want(*replanned(pool_document(), workers))
        assert (await front.ask("after-fatal"))[0].outcome is Outcome.RELEASED


async def test_an_older_wish_is_ignored(tmp_path: Path) -> None:
    """Only a newer revision is obeyed (promise 5): a late copy of an old one stops nothing."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        front.want(worker)
        await front.phase("READY")
        front.forget_revision()
        front.want(stopped(worker))
        for key in ("leased-with-it", "offered-after-it"):
            assert (await front.ask(key))[0].epoch.generation == 1
        assert "DRAINING" not in front.phases()


async def test_a_worker_that_is_not_listed_stays(tmp_path: Path) -> None:
    """Absence is never an instruction."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        await front.phase("READY")
        front.want()
        assert (await front.ask("not-listed"))[0].outcome is Outcome.RELEASED


async def test_an_idle_process_that_dies_is_replaced(tmp_path: Path) -> None:
    """A kill from outside is seen at once; the offer is taken back, and nobody's request is lost."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        epoch = await front.offer()
        pid = front.statuses["qwen-0"].pid
        assert pid is not None
        psutil.Process(pid).kill()
        newer = await front.offer()
        assert newer.is_newer_than(epoch)
        assert newer.generation == 2
