"""What real engine processes do wrong, and that no slot in doubt is ever offered for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from basert_fleet.agent import generation
from basert_fleet.core.delivery import Outcome, VerifyMode
from basert_fleet.core.verdict import Reason, VerdictKind
from basert_fleet.engine.canary import lookup_key_request
from basert_fleet.wire.messages import Body
from support.desk import MODEL, chat, desk, pool_document
from support.emulator import read_journal


def overlaps(journal: Path) -> list[dict[str, Any]]:
    """Return the generations that began while another one ran in the same process."""
    return [entry for entry in read_journal(journal) if entry["event"] == "begin" and entry["overlap"]]


async def test_a_crash_ends_the_attempt_and_the_next_process_serves(tmp_path: Path) -> None:
    """A body that kills the engine is the request's fault: the worker is back at once, without a backoff."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        epoch = await front.lease(chat("[[crash]]"))
        end = await front.end(epoch)
        assert end.outcome is Outcome.CRASHED
        assert "SIG" in end.error
        after, _ = await front.ask("after-crash")
        assert (after.outcome, after.epoch.generation) == (Outcome.RELEASED, 2)
        assert "BACKOFF" not in front.phases()


async def test_c12_a_swallowed_request_is_found_and_its_process_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: accepted, never processed, no bytes: the watchdog finds it, and the process is not trusted again."""
    monkeypatch.setattr(generation, "FIRST_BYTE_SECONDS", 0.5)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        end = await front.end(await front.lease(chat("[[fault=swallow]]")))
        assert (end.outcome, end.verdict.reason) == (Outcome.SWALLOWED, Reason.NO_PROOF_OF_IDLE)
        assert (await front.offer()).generation == 2


async def test_a_hanging_generation_is_cut_at_its_deadline_by_a_kill(tmp_path: Path) -> None:
    """C29: no timer frees the slot: without a proof that the engine stopped, its process dies."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(isolation={"settleSeconds": 1}))
        end = await front.end(await front.lease(chat("[[fault=hang]]"), timeout_seconds=0.5))
        assert (end.outcome, end.verdict.reason) == (Outcome.TIMED_OUT, Reason.NO_PROOF_OF_IDLE)
        assert (await front.offer()).generation == 2


async def test_a_cancelled_stream_settles_and_its_slot_is_offered_again(tmp_path: Path) -> None:
    """A client that leaves costs no process: the slot comes back once /slots proves it idle."""
    journal = tmp_path / "journal"
    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document("--sim-tokens-per-second", "200", journal=journal))
        epoch = await front.lease(chat("[[len=2000]] go", stream=True, max_tokens=2000))
        await front.begun(epoch)
        front.cancel(epoch)
        end = await front.end(epoch)
        assert (end.outcome, end.verdict.kind) == (Outcome.CANCELLED, VerdictKind.CLEAN)
        after, _ = await front.ask("after-cancel")
        assert (after.outcome, after.epoch.generation) == (Outcome.RELEASED, 1)
    assert overlaps(journal) == []


async def test_c39_a_generation_that_goes_on_after_a_cancel_keeps_its_slot(tmp_path: Path) -> None:
    """C39: the engine runs on after the client left; nothing is offered before it has ended."""
    journal = tmp_path / "journal"
    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document("--sim-tokens-per-second", "100", journal=journal))
        epoch = await front.lease(chat("[[fault=run-on]] [[len=60]]", stream=True, max_tokens=60))
        await front.begun(epoch)
        front.cancel(epoch)
        await front.end(epoch)
        after, _ = await front.ask("after-run-on")
        assert after.outcome is Outcome.RELEASED
    assert overlaps(journal) == []


async def test_a_cancel_right_after_the_post_waits_for_the_start(tmp_path: Path) -> None:
    """An idle /slots right after a cancel proves nothing while the request is still in the engine's accept queue."""
    journal = tmp_path / "journal"
    options = ("--sim-accept-delay", "0.3", "--sim-tokens-per-second", "400")
    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document(*options, journal=journal))
        epoch = await front.lease(chat("[[len=200]]", stream=True, max_tokens=200))
        front.cancel(epoch)
        assert (await front.end(epoch)).outcome is Outcome.CANCELLED
        after, _ = await front.ask("after-early-cancel")
        assert after.outcome is Outcome.RELEASED
    assert overlaps(journal) == []


async def test_a_truncated_stream_runs_elsewhere_and_its_worker_is_tested(tmp_path: Path) -> None:
    """A stream without its end mark is no answer; the process that cut it must pass a canary."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        end = await front.end(await front.lease(chat("[[fault=truncate]] [[len=50]]", stream=True)))
        assert end.outcome is Outcome.WORKER_LOST
        assert (await front.offer()).generation == 1
        assert "TESTING" in front.phases()


async def test_c16_silent_slots_during_a_prefill_kill_nobody(tmp_path: Path) -> None:
    """C16: /slots does not answer for the whole prefill; the request is served all the same."""
    options = ("--sim-slots", "silent", "--sim-prefill-tokens-per-second", "200")
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(*options))
        end, _ = await front.ask("slow-prefill")
        assert (end.outcome, end.verdict.kind, end.epoch.generation) == (Outcome.RELEASED, VerdictKind.CLEAN, 1)


async def test_a_suspect_response_costs_a_canary_and_no_process(tmp_path: Path) -> None:
    """Promise 7: max_tokens 1 with tools is withheld once and delivered when another worker said the same."""
    body = lookup_key_request("a", MODEL, max_tokens=1)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        first = await front.end(await front.lease(body))
        assert (first.outcome, first.verdict.kind) == (Outcome.WITHHELD, VerdictKind.SUSPECT)
        assert first.verdict.reason is not None
        again = await front.end(await front.lease(body, agreed=frozenset({first.verdict.reason})))
        assert (again.outcome, again.epoch.generation) == (Outcome.RELEASED, 1)
        assert front.statuses["qwen-0"].canaries_passed >= 2


async def test_a_program_that_cannot_be_started_says_what_to_check(tmp_path: Path) -> None:
    """A wrong command ends in BACKOFF with a message for a person."""
    pool = pool_document(server={"command": ["/no/such/basert-serve"]})
    async with desk(tmp_path) as front:
        front.want_pool(pool)
        status = await front.phase("BACKOFF")
        assert "spec.server.command" in status.message


async def test_a_process_that_dies_at_start_shows_its_last_words(tmp_path: Path) -> None:
    """An unknown flag makes the engine exit with status 2: the status tells, with the end of its log."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--no-such-flag"))
        status = await front.phase("BACKOFF")
        assert "status 2" in status.message
        assert "--no-such-flag" in status.message


async def test_c25_two_agents_on_one_state_directory_do_not_share_a_slot(tmp_path: Path) -> None:
    """C25: the second agent reports the worker as FATAL with a clear message and starts no process."""
    async with desk(tmp_path) as first:
        first.want_pool(pool_document())
        await first.offer()
        async with desk(tmp_path) as second:
            second.want_pool(pool_document())
            status = await second.phase("FATAL")
            assert "held by another agent" in status.message


async def test_an_engine_without_slots_is_not_served_unless_allowed(tmp_path: Path) -> None:
    """Without /slots nothing proves isolation: fail closed by default, `unverified` on request."""
    async with desk(tmp_path / "strict") as front:
        front.want_pool(pool_document("--sim-slots", "off"))
        assert "requireSlots" in (await front.phase("BACKOFF")).message
    async with desk(tmp_path / "lax") as front:
        front.want_pool(pool_document("--sim-slots", "off", isolation={"requireSlots": False}))
        end, _ = await front.ask("without-slots")
        assert (end.outcome, end.verdict.kind) == (Outcome.RELEASED, VerdictKind.UNVERIFIABLE)


@pytest.mark.parametrize("counters", ["equal", "constant", "completion", "ending"])
async def test_no_healthy_build_is_recycled(tmp_path: Path, counters: str) -> None:
    """Whatever a build's healthy counters look like, clean leases of all endings, cancels too, recycle nothing."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--sim-counters", counters, "--sim-tokens-per-second", "5000"))
        for number in range(4):
            assert (await front.ask(f"k-{number}"))[0].outcome is Outcome.RELEASED
            assert (await front.end(await front.lease(chat("hello")))).outcome is Outcome.RELEASED
            assert (await front.end(await front.lease(chat("[[len=30]]", max_tokens=9)))).outcome is Outcome.RELEASED
            epoch = await front.lease(chat("[[len=4000]]", max_tokens=4000, stream=True))
            await front.begun(epoch)
            front.cancel(epoch)
            assert (await front.end(epoch)).outcome is Outcome.CANCELLED
        assert (await front.offer()).generation == 1
        assert front.statuses["qwen-0"].recycles == {}


async def test_full_verification_holds_text_until_the_verdict(tmp_path: Path) -> None:
    """Under `full` nothing leaves before the slot was judged."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--sim-tokens-per-second", "300"))
        epoch = await front.lease(chat("[[len=40]]", stream=True), verify=VerifyMode.FULL)
        end = await front.end(epoch)
        assert end.outcome is Outcome.RELEASED
        released = [m for m in front.received if isinstance(m, Body) and m.epoch == epoch]
        assert b"[DONE]" in released[-1].data


async def test_a_request_that_the_engine_refuses_is_passed_on_at_once(tmp_path: Path) -> None:
    """A 400 leaves the counters alone: it is released as clean, and costs neither a second run nor a canary."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        end = await front.end(await front.lease(b'{"model": "m"}'))
        assert (end.outcome, end.verdict.kind) == (Outcome.RELEASED, VerdictKind.CLEAN)
        assert (await front.offer()).generation == 1
        assert "TESTING" not in front.phases()


async def test_a_worker_that_may_no_longer_go_without_slots_leaves_service(tmp_path: Path) -> None:
    """Turning requireSlots on finds the process that serves without them."""
    lax = pool_document("--sim-slots", "off", isolation={"requireSlots": False})
    strict = pool_document("--sim-slots", "off")
    async with desk(tmp_path) as front:
        workers = front.want_pool(lax)
        await front.phase("READY")
        isolation = {"isolation": strict.spec.isolation}
        front.want(*(w.model_copy(update={"spec": w.spec.model_copy(update=isolation)}) for w in workers))
        assert "requireSlots" in (await front.phase("BACKOFF")).message


async def test_no_key_looks_like_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever key is drawn, the engine reads it as a value."""
    monkeypatch.setattr("secrets.token_bytes", lambda count=32: b"\xfb" * (count or 32))  # "-" and "_" in base64
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        assert (await front.ask("any-key"))[0].outcome is Outcome.RELEASED
