"""How leases on one worker are kept apart, and what happens to its process when that cannot be told."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import psutil
import pytest

from basert_fleet.agent import generation, response
from basert_fleet.agent.processes import Child
from basert_fleet.agent.response import Response
from basert_fleet.agent.state import SlotRecord
from basert_fleet.core.delivery import Outcome, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.verdict import Reason, VerdictKind
from basert_fleet.engine.canary import CHAT_PATH
from basert_fleet.engine.connection import ResponseHead
from basert_fleet.engine.request import prepare
from basert_fleet.wire.messages import Body, Head, Lease, Offer
from support.desk import Desk, chat, desk, pool_document
from support.emulator import read_journal

ENDLESS = chat("[[len=2000]]", max_tokens=2000, stream=True)


def process_of(front: Desk) -> psutil.Process:
    """Return the process of the one worker."""
    pid = front.statuses["qwen-0"].pid
    assert pid is not None
    return psutil.Process(pid)


async def test_scrubbing_keeps_a_faulty_build_clean(tmp_path: Path) -> None:
    """Level `scrub`: with a plain chat between them, twenty of the seed's requests pass on one faulty process."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--sim-bug", "on", isolation={"level": "scrub"}))
        ends = [(await front.ask(f"seq-{number}"))[0] for number in range(20)]
        assert {(end.outcome, end.verdict.kind, end.epoch.generation) for end in ends} == {
            (Outcome.RELEASED, VerdictKind.CLEAN, 1)
        }
        assert front.statuses["qwen-0"].recycles == {}


async def test_what_others_sent_to_an_idle_process_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation that nobody leased spoils the slot: the next lease is withheld and the process replaced."""
    monkeypatch.setattr(Child, "probe_good_for_seconds", 0.0)  # the slot has been idle for long
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        await front.phase("READY")
        argv = process_of(front).cmdline()
        port, key = (argv[argv.index(flag) + 1] for flag in ("--port", "--api-key"))
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}, trust_env=False) as stranger:
            answer = await stranger.post(f"http://127.0.0.1:{port}{CHAT_PATH}", content=chat("word " * 400))
        assert answer.status_code == httpx.codes.OK
        end, body = await front.ask("after-a-stranger")
        assert (end.outcome, end.verdict.reason, body) == (Outcome.WITHHELD, Reason.FOREIGN_TRAFFIC, b"")
        assert (await front.offer()).generation == 2
        assert front.statuses["qwen-0"].recycles == {Reason.FOREIGN_TRAFFIC: 1}


async def test_a_long_idle_slot_that_nobody_used_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the slot before a lease costs nobody anything when there is nothing to see."""
    monkeypatch.setattr(Child, "probe_good_for_seconds", 0.0)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        ends = [(await front.ask(f"idle-{number}"))[0] for number in range(3)]
        assert {(end.verdict.kind, end.epoch.generation) for end in ends} == {(VerdictKind.CLEAN, 1)}


async def test_a_halted_process_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP in the middle of a lease: the request is lost at once, long before its time is over."""
    monkeypatch.setattr(generation, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(generation, "WATCH_FIRST_SECONDS", 0.02)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--sim-tokens-per-second", "200"))
        epoch = await front.lease(ENDLESS, timeout_seconds=3600)
        await front.begun(epoch)
        process_of(front).suspend()
        end = await front.end(epoch)
        assert (end.outcome, end.verdict.reason) == (Outcome.WORKER_LOST, Reason.NO_PROOF_OF_IDLE)
        assert "halted by a signal" in end.error
        assert (await front.offer()).generation == 2


async def test_a_response_without_end_is_not_held_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the bound is not released even if the slot is clean, and the request runs elsewhere."""
    monkeypatch.setattr(response, "HELD_BYTES", 2000)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        epoch = await front.lease(chat("[[len=500]]", max_tokens=500, stream=True), verify=VerifyMode.FULL)
        end = await front.end(epoch)
        assert (end.outcome, end.verdict.kind, front.body(epoch)) == (Outcome.WORKER_LOST, VerdictKind.CLEAN, b"")
        assert "larger than any model's answer" in end.error


def test_what_is_over_the_bound_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless response costs no more memory than the bound: past it, nothing of it is kept."""
    monkeypatch.setattr(response, "HELD_BYTES", 2000)
    sent: list[Head | Body] = []
    body, event = chat("on and on", stream=True), b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
    lease = Lease("w", Epoch("i", 1, 1), "req", CHAT_PATH, "application/json", body, 60.0, VerifyMode.FULL)
    held = Response(lease, prepare(CHAT_PATH, body, "req"), sent.append, lambda _: None)
    held.head(ResponseHead(200, ((b"content-type", b"text/event-stream"),)))
    held.data(event * 10)
    assert not held.overflowed
    held.data(event * 100)
    assert held.overflowed
    held.release()
    assert sent == []


async def test_an_offer_tells_what_its_process_has_served(tmp_path: Path) -> None:
    """Leases are counted per process, so that the gateway can prefer one or the other."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        await front.ask("one")
        await front.ask("two")
        await front.lease(chat("[[crash]]"))
        await front.until(lambda: front.offers.get("qwen-0", Epoch("", 0, 0)).generation == 2)
        assert [offer.served for offer in front.received if isinstance(offer, Offer)] == [0, 1, 2, 0]


async def test_a_lease_that_cannot_be_recorded_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a record of `sent` the next agent might trust a busy process: the request runs elsewhere, unseen here."""
    journal, sent = tmp_path / "journal", SlotRecord.sent

    def full_once(_record: SlotRecord) -> None:
        monkeypatch.setattr(SlotRecord, "sent", sent)
        raise OSError(28, os.strerror(28))

    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document(journal=journal))
        await front.phase("READY")
        first = process_of(front).pid
        seen = len(read_journal(journal))
        monkeypatch.setattr(SlotRecord, "sent", full_once)
        end, body = await front.ask("unrecorded")
        assert (end.outcome, end.verdict.reason, body) == (Outcome.WORKER_LOST, Reason.NO_PROOF_OF_IDLE, b"")
        assert "No space left on device" in end.error
        assert (await front.ask("recorded"))[0].epoch.generation == 2
    assert len([entry for entry in read_journal(journal) if entry["pid"] == first]) == seen
