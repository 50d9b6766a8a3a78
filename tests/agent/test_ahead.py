"""Offers ahead: the next lease travels while the last one is verified, and is accepted only after a clean verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from basert_fleet.core.api import BasertWorker, WorkerState
from basert_fleet.core.calibration import Probe
from basert_fleet.core.delivery import Outcome, VerifyMode
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.verdict import VerdictKind
from basert_fleet.engine.canary import CHAT_PATH
from basert_fleet.engine.probes import ProbeClient, Question
from basert_fleet.wire.messages import Accepted, Cancel, End, Lease, Offer, Recall, Refused, Withdraw, WorkerStatus
from support.desk import Desk, chat, desk, pool_document
from support.emulator import read_journal
from support.turns import settled, until

W = "qwen-0"


class SlowSlots:
    """Holds back that a slot is idle, so that a lease's verification lasts as long as a test needs."""

    def __init__(self) -> None:
        self.is_open = True
        self._held: list[tuple[Callable[[Probe | None], None], Probe | None]] = []

    def open(self) -> None:
        """Let the answers go, those that were held first."""
        self.is_open = True
        held, self._held = self._held, []
        for answered, probe in held:
            answered(probe)

    @property
    def holds_an_answer(self) -> bool:
        """Whether /slots has answered what is not passed on yet."""
        return bool(self._held)

    def take(self, answered: Callable[[Probe | None], None], probe: Probe | None) -> None:
        """Pass an answer on, now or later."""
        if self.is_open or probe is None or probe.is_processing:
            answered(probe)
        else:
            self._held.append((answered, probe))


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> SlowSlots:
    """Put it between every engine and its agent."""
    slow, right = SlowSlots(), ProbeClient.ask_slots

    def ask_slots(self: ProbeClient, answered: Callable[[Probe | None], None]) -> Question:
        return right(self, lambda probe: slow.take(answered, probe))

    monkeypatch.setattr(ProbeClient, "ask_slots", ask_slots)
    monkeypatch.setattr("basert_fleet.agent.generation.PROBE_SECONDS", 60.0)
    return slow


async def lease_ahead(front: Desk, slots: SlowSlots, content: str = "first") -> tuple[Epoch, Epoch]:
    """Let a lease come to the end of its response, and lease the slot ahead; return both epochs."""
    await front.phase("READY")
    await front.until(lambda: W in front.offers)
    slots.is_open = False
    current = await front.lease(chat(content))
    await front.until(lambda: W in front.offers_ahead)
    ahead = front.offers_ahead.pop(W)
    front.send(Lease(W, ahead, "req-2", CHAT_PATH, "application/json", chat("second"), 60.0, VerifyMode.TOOL_CALLS))
    return current, ahead


def what_was_said(front: Desk, *epochs: Epoch) -> list[tuple[str, int]]:
    """Return the agent's words about these epochs, but for the responses', in order."""
    words = (Accepted, Refused, End, Withdraw)
    return [(type(m).__name__, epochs.index(m.epoch)) for m in front.received if isinstance(m, words)]


async def test_a_lease_ahead_is_accepted_after_a_clean_end(tmp_path: Path, slots: SlowSlots) -> None:
    """Not a byte of it is sent before, and nothing has to be offered anew."""
    journal = tmp_path / "journal"
    async with desk(tmp_path / "state") as front:
        front.want_pool(pool_document(journal=journal))
        current, ahead = await lease_ahead(front, slots)
        begun = len([entry for entry in read_journal(journal) if entry["event"] == "begin"])
        slots.open()
        assert (await front.end(current)).outcome is Outcome.RELEASED
        assert (await front.end(ahead)).outcome is Outcome.RELEASED
        assert what_was_said(front, current, ahead) == [("Accepted", 0), ("End", 0), ("Accepted", 1), ("End", 1)]
    entries = [entry for entry in read_journal(journal) if entry["event"] == "begin"]
    assert len(entries) == begun + 1
    assert not any(entry["overlap"] for entry in entries)


async def test_a_lease_ahead_is_refused_before_the_end_of_a_contaminated_one(tmp_path: Path, slots: SlowSlots) -> None:
    """The gateway must not take the slot for idle by that end."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        current, ahead = await lease_ahead(front, slots, "[[fault=contaminate]]")
        slots.open()
        end = await front.end(current)
        assert (end.outcome, end.verdict.kind) == (Outcome.WITHHELD, VerdictKind.CONTAMINATED)
        assert what_was_said(front, current, ahead) == [("Accepted", 0), ("Refused", 1), ("End", 0)]
        assert (await front.offer()).generation == 2


async def test_an_offer_ahead_is_withdrawn_before_the_end_of_a_contaminated_lease(
    tmp_path: Path, slots: SlowSlots
) -> None:
    """The same where nobody has leased it yet."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        await front.until(lambda: W in front.offers)
        slots.is_open = False
        current = await front.lease(chat("[[fault=contaminate]]"))
        await front.until(lambda: W in front.offers_ahead)
        ahead = front.offers_ahead[W]
        slots.open()
        await front.end(current)
        assert what_was_said(front, current, ahead) == [("Accepted", 0), ("Withdraw", 1), ("End", 0)]


@pytest.mark.parametrize("message", [Recall, Cancel])
async def test_a_lease_ahead_is_given_back(message: type[Recall | Cancel], tmp_path: Path, slots: SlowSlots) -> None:
    """Recalled or cancelled before its turn, it is refused at once; its slot is offered once it is clean."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        current, ahead = await lease_ahead(front, slots)
        front.send(message(W, ahead))
        await front.until(lambda: any(isinstance(m, Refused) for m in front.received))
        slots.open()
        assert (await front.end(current)).outcome is Outcome.RELEASED
        assert (await front.offer()).is_newer_than(ahead)


async def test_a_recall_of_an_accepted_lease_is_too_late(tmp_path: Path, slots: SlowSlots) -> None:
    """It runs already: taking it back would be a cancel."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        current, ahead = await lease_ahead(front, slots)
        slots.open()
        await front.until(lambda: ("Accepted", 1) in what_was_said(front, current, ahead))
        front.send(Recall(W, ahead))
        assert (await front.end(ahead)).outcome is Outcome.RELEASED


async def test_a_lost_link_loses_the_lease_ahead(tmp_path: Path, slots: SlowSlots) -> None:
    """Nobody wants it: it is not run, and the slot is offered on the next link."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        _, ahead = await lease_ahead(front, slots)
        front.cut()
        await settled()
        slots.open()
        front.dial()
        assert (await front.offer()).is_newer_than(ahead)
        assert not any(isinstance(m, Accepted) and m.epoch == ahead for m in front.received)


@pytest.mark.parametrize(
    "isolation", [{"canary": {"everyRequests": 1}}, {"level": "scrub"}], ids=["a canary is due", "level scrub"]
)
async def test_a_slot_that_owes_more_than_a_probe_is_not_offered_ahead(
    isolation: dict[str, object], tmp_path: Path
) -> None:
    """A lease would only be kept from other slots."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(isolation=isolation))
        for key in ("one", "two"):
            await front.ask(key)
        assert [m.ahead for m in front.received if isinstance(m, Offer)].count(True) == 0


async def test_nothing_is_offered_while_a_slot_is_scrubbed(tmp_path: Path, slots: SlowSlots) -> None:
    """The level rises after the offer ahead: it is withdrawn before the scrub, so that no lease comes in between."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        await front.until(lambda: W in front.offers)
        slots.is_open = False
        current = await front.lease(chat("first"))
        await front.until(lambda: W in front.offers_ahead)
        ahead = front.offers_ahead[W]
        front.want(scrubbing(worker))
        await front.until(lambda: front.received != [])
        slots.open()
        await front.end(current)
        await front.until(lambda: W in front.offers and front.offers[W] != ahead)
        assert ("Withdraw", 1) in what_was_said(front, current, ahead, front.offers[W])
        assert front.phases()[-1] == "READY"


async def test_a_process_that_died_is_not_given_what_was_held_back(tmp_path: Path, slots: SlowSlots) -> None:
    """Else its death would be blamed on a request that it never got (promise 7)."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        current, ahead = await lease_ahead(front, slots)
        process = psutil.Process(front.statuses[W].pid)
        await until(lambda: slots.holds_an_answer)
        process.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.status() != psutil.STATUS_ZOMBIE:
                """Without a turn of the loop, which would hear of it."""
        slots.open()
        assert (await front.end(current)).outcome in {Outcome.RELEASED, Outcome.CRASHED}
        await front.until(lambda: front.phases()[-1] == "STARTING")
        assert ("Refused", 1) in what_was_said(front, current, ahead)


async def test_a_drained_worker_refuses_what_is_held_back(tmp_path: Path, slots: SlowSlots) -> None:
    """It is not wanted any more: its lease ends, and no other one begins."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        current, ahead = await lease_ahead(front, slots)
        front.want(worker.model_copy(update={"spec": worker.spec.model_copy(update={"state": WorkerState.STOPPED})}))
        await front.until(lambda: any(isinstance(m, WorkerStatus) and m.phase == "DRAINING" for m in front.received))
        slots.open()
        assert (await front.end(current)).outcome is Outcome.RELEASED
        await front.phase("STOPPED")
        assert ("Refused", 1) in what_was_said(front, current, ahead)


def scrubbing(worker: BasertWorker) -> BasertWorker:
    """Return the same worker at level `scrub`."""
    document = worker.model_dump(by_alias=True)
    document["spec"]["isolation"]["level"] = "scrub"
    return BasertWorker.model_validate(document)
