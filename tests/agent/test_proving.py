"""What a process must show before it is offered, and again while it serves: canaries, scrubs, a drift baseline."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from basert_fleet.core.calibration import Probe
from basert_fleet.core.delivery import Outcome
from basert_fleet.core.verdict import Reason, VerdictKind
from basert_fleet.engine import probes
from basert_fleet.engine.probes import read_slots
from basert_fleet.wire.messages import Offer
from support.desk import MODEL, desk, edited, pool_document, replanned
from support.emulator import read_journal

WARM_UP_REQUESTS = 5  # the canary and four for the baseline: the next one is the first lease


def isolation(**canary: object) -> dict[str, Any]:
    """Return a pool's isolation with these settings of its canary."""
    return {"isolation": {"canary": canary}}


async def test_a_process_that_fails_its_first_canary_is_never_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong answer at warm-up ends the process before any user meets it, and is counted."""
    monkeypatch.setattr("basert_fleet.core.lifecycle.FAILURES_UNTIL_FATAL", 1)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--sim-fault", "contaminate:nth=1"))
        await front.until(lambda: front.phases()[-1:] in (["FATAL"], ["READY"]))
        status = front.statuses["qwen-0"]
        assert (status.phase, status.canaries_passed, status.canaries_failed) == ("FATAL", 0, 1)
        assert "canary failed: expected one call lookup_key" in status.message
        assert not any(isinstance(message, Offer) for message in front.received)


async def test_a_canary_is_scrubbed_before(tmp_path: Path) -> None:
    """A plain chat goes between the last lease and the canary, so that the canary does not continue its prefix."""
    journal = tmp_path / "journal"
    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document(journal=journal, **isolation(everyRequests=1)))
        await front.ask("a-lease")
        await front.offer()
        assert front.statuses["qwen-0"].canaries_passed == 2
    begun = [entry for entry in read_journal(journal) if entry["event"] == "begin"][WARM_UP_REQUESTS:]
    assert [(entry["tools"], entry["reuse"]) for entry in begun] == [(True, False), (False, False), (True, False)]


async def test_a_canary_that_passes_on_a_drifted_slot_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right answer from a slot whose counters drifted is luck: the process is replaced."""

    def drifted_while_tested(body: bytes) -> Probe | None:
        probe = read_slots(body)
        tested = front.statuses["qwen-0"].phase == "TESTING"
        return dataclasses.replace(probe, cache_position=probe.cache_position + 128) if probe and tested else probe

    monkeypatch.setattr(probes, "read_slots", drifted_while_tested)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(**isolation(everyRequests=1)))
        assert (await front.ask("a-lease"))[0].verdict.kind is VerdictKind.CLEAN
        assert (await front.offer()).generation == 2
        status = front.statuses["qwen-0"]
        assert status.recycles == {Reason.POSITION_DRIFT: 1}
        assert (status.canaries_passed, status.canaries_failed) == (3, 0)


@pytest.mark.parametrize(
    ("path", "more"),
    [("/v1/embeddings", {"input": ["a text"]}), ("/v1/rerank", {"query": "a text", "documents": ["one", "two"]})],
)
async def test_an_ending_that_warm_up_does_not_know_is_learnt_once(
    tmp_path: Path, path: str, more: dict[str, Any]
) -> None:
    """The first such lease cannot be verified; once a canary has passed after it, the next one can."""
    body = json.dumps({"model": MODEL, **more}).encode()
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        first = await front.end(await front.lease(body, path=path))
        assert (first.outcome, first.verdict.reason) == (Outcome.WITHHELD, Reason.NOT_CALIBRATED)
        second = await front.end(await front.lease(body, path=path))
        assert (second.outcome, second.verdict.kind) == (Outcome.RELEASED, VerdictKind.CLEAN)
        assert (second.epoch.generation, front.statuses["qwen-0"].canaries_passed) == (1, 2)


async def test_drift_that_every_fresh_process_shows_is_not_believed_for_ever(tmp_path: Path) -> None:
    """Three fresh processes that drift at once make drift unusable for their build, and only for that one."""
    async with desk(tmp_path) as front:
        workers = front.want_pool(pool_document("--sim-fault", f"contaminate:nth={WARM_UP_REQUESTS + 1}"))
        for generation in (1, 2, 3):
            end, _ = await front.ask("first-of-its-process")
            assert (end.epoch.generation, end.verdict.reason) == (generation, Reason.POSITION_DRIFT)
        await front.until(lambda: front.phases()[-1] in ("BACKOFF", "READY"))
        assert (front.statuses["qwen-0"].phase, front.statuses["qwen-0"].calibrated) == ("BACKOFF", None)
        assert "DriftUnusable" in front.statuses["qwen-0"].message
        before = len(front.phases())
        front.want(*replanned(pool_document(), workers))
        await front.until(lambda: not {"READY", "STOPPING"}.isdisjoint(front.phases()[before:]))
        assert (front.statuses["qwen-0"].phase, front.statuses["qwen-0"].calibrated) == ("READY", True)


async def test_an_edit_of_the_canary_settings_proves_nothing(tmp_path: Path) -> None:
    """What was served since the last canary stays counted, so that edits cannot put the next one off."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document(**isolation(everyRequests=2)))
        await front.ask("before-the-edit")
        rarer = pool_document(**isolation(everyRequests=2, everySeconds=600))
        front.want(edited(worker, isolation=rarer.spec.isolation))
        await front.ask("after-the-edit")
        await front.offer()
        assert front.statuses["qwen-0"].canaries_passed == 2


async def test_fewer_requests_between_canaries_hold_at_once(tmp_path: Path) -> None:
    """An edit of `everyRequests` counts what was served before it: an idle worker that is over is tested now."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        await front.ask("before-the-edit")
        await front.offer()
        front.want(edited(worker, isolation=pool_document(**isolation(everyRequests=1)).spec.isolation))
        await front.phase("TESTING")
        await front.offer()
        assert front.statuses["qwen-0"].canaries_passed == 2
