"""What the agent does beside its workers' own lives: its link, strange messages, files, and its own bugs."""

from __future__ import annotations

from pathlib import Path

import pytest

from basert_fleet.agent import agent, worker_log
from basert_fleet.agent.lease_run import LeaseRun, Settled
from basert_fleet.core.delivery import Outcome, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.verdict import Reason
from basert_fleet.engine.canary import lookup_key_request
from basert_fleet.wire.messages import Lease, Refused
from support.desk import MODEL, chat, desk, pool_document, replanned, stopped
from support.emulator import read_journal
from support.turns import settled, until

ENDLESS = chat("[[len=2000]]", max_tokens=2000, stream=True)


def lease_of(worker: str, epoch: Epoch) -> Lease:
    """Return a lease for an epoch, whether that is offered or not."""
    body = lookup_key_request("late", MODEL)
    return Lease(worker, epoch, "req-1", "/v1/chat/completions", "application/json", body, 60.0, VerifyMode.TOOL_CALLS)


async def test_a_lease_for_an_unknown_worker_is_refused(tmp_path: Path) -> None:
    """The gateway hears at once that the request can run elsewhere."""
    epoch = Epoch("somebody-else", 1, 1)
    async with desk(tmp_path) as front:
        front.send(lease_of("qwen-7", epoch))
        await front.until(lambda: Refused("qwen-7", epoch) in front.received)


async def test_a_worker_that_is_wanted_again_serves(tmp_path: Path) -> None:
    """After a stop its epochs go on growing, for the gateway drops what is not newer than what it heard."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        before, _ = await front.ask("before-the-stop")
        front.want(stopped(worker))
        await front.phase("STOPPED")
        front.want(worker)
        after, _ = await front.ask("after-the-stop")
        assert after.outcome is Outcome.RELEASED
        assert after.epoch.is_newer_than(before.epoch)


async def test_a_lost_link_takes_back_what_was_offered(tmp_path: Path) -> None:
    """What the old link was offered is not leased any more; the new one gets an offer of its own."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        old = await front.offer()
        front.cut()
        await settled()
        front.dial()
        new = await front.offer()
        assert new.is_newer_than(old)
        front.send(lease_of("qwen-0", old))
        await front.until(lambda: Refused("qwen-0", old) in front.received)


async def test_a_lost_link_ends_the_running_lease(tmp_path: Path) -> None:
    """Nobody waits for its response: the generation is cancelled, settles, and overlaps with nothing."""
    journal = tmp_path / "journal"
    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document("--sim-tokens-per-second", "300", journal=journal))
        epoch = await front.lease(ENDLESS)
        await front.begun(epoch)
        front.cut()
        await settled()
        front.dial()
        after, _ = await front.ask("on-the-new-link")
        assert (after.outcome, after.epoch.generation) == (Outcome.RELEASED, 1)
    leases = [entry for entry in read_journal(journal) if entry["event"] == "end"][5:]
    assert [entry["cancelled"] for entry in leases] == [True, False]
    assert not any(entry["overlap"] for entry in read_journal(journal) if entry["event"] == "begin")


async def test_a_slot_file_that_cannot_be_opened_costs_one_worker(tmp_path: Path) -> None:
    """That worker is FATAL and says why; the others come up."""
    (tmp_path / "slots" / "qwen-0").mkdir(parents=True)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(replicas=2))
        assert "cannot use the state directory" in (await front.phase("FATAL", "qwen-0")).message
        assert (await front.ask("the-other", worker="qwen-1"))[0].outcome is Outcome.RELEASED


async def test_c35_a_log_is_bounded_while_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C35: a process that runs for weeks does not fill the disk; its log is cut under it."""
    monkeypatch.setattr(agent, "HOUSEKEEPING_SECONDS", 0.01)
    monkeypatch.setattr(worker_log, "ROTATE_ABOVE_BYTES", 16)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        assert (await front.phase("READY")).generation == 1
        await until((tmp_path / "logs" / "qwen-0.log.1").exists)
        await until(lambda: (tmp_path / "logs" / "qwen-0.log").stat().st_size == 0)
        assert (await front.ask("with-a-cut-log"))[0].epoch.generation == 1


async def test_a_bug_in_the_agent_costs_one_lease_and_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's loop that fails ends its lease and shows FATAL; a changed spec brings the worker back."""

    async def buggy(_run: LeaseRun) -> Settled:
        raise ZeroDivisionError("made up")

    async with desk(tmp_path) as front:
        workers = front.want_pool(pool_document())
        with monkeypatch.context() as patched:
            patched.setattr(LeaseRun, "run", buggy)
            end, _ = await front.ask("meets-a-bug")
        assert (end.outcome, end.verdict.reason) == (Outcome.WORKER_LOST, Reason.NO_PROOF_OF_IDLE)
        status = await front.phase("FATAL")
        assert (status.pid, "ZeroDivisionError('made up')" in status.message) == (None, True)
        front.want(*replanned(pool_document("--sim-startup", "0.0"), workers))
        after, _ = await front.ask("after-the-bug")
        assert after.outcome is Outcome.RELEASED
        assert after.epoch.is_newer_than(end.epoch)
