"""A real agent with real emulator processes: warm-up, leases, recycles, and what is left afterwards."""

from __future__ import annotations

import json
from pathlib import Path

from basert_fleet.core.delivery import Outcome
from basert_fleet.core.verdict import Reason, VerdictKind
from support.desk import desk, pool_document, stopped


def key_of(body: bytes) -> str:
    """Return the argument of the one tool call in an answer."""
    call = json.loads(body)["choices"][0]["message"]["tool_calls"][0]["function"]
    return str(json.loads(call["arguments"])["key"])


async def test_a_lease_is_answered_verified_and_offered_again(tmp_path: Path) -> None:
    """A healthy worker warms up, answers, is judged clean, and takes the next lease of a newer epoch."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        first, body = await front.ask("seq-0")
        assert first.outcome is Outcome.RELEASED
        assert first.verdict.kind is VerdictKind.CLEAN
        assert key_of(body) == "seq-0"
        second, _ = await front.ask("seq-1")
        assert second.epoch.is_newer_than(first.epoch)
        assert front.statuses["qwen-0"].calibrated is True


async def test_the_sixth_repeated_request_is_withheld_and_its_worker_recycled(tmp_path: Path) -> None:
    """The seed's sequence: five right answers, then a contaminated slot whose answer nobody sees."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document("--sim-bug", "on"))
        for number in range(5):
            end, body = await front.ask(f"seq-{number}")
            assert (end.outcome, key_of(body)) == (Outcome.RELEASED, f"seq-{number}")
        end, body = await front.ask("seq-5")
        assert (end.outcome, end.verdict.reason, body) == (Outcome.WITHHELD, Reason.POSITION_DRIFT, b"")
        end, body = await front.ask("seq-6")
        assert (end.epoch.generation, key_of(body)) == (2, "seq-6")
        assert front.statuses["qwen-0"].recycles == {Reason.POSITION_DRIFT: 1}


async def test_a_worker_that_is_not_wanted_stops(tmp_path: Path) -> None:
    """A stopped document drains the worker and leaves no process."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        await front.offer()
        front.want(stopped(worker))
        assert (await front.phase("STOPPED")).pid is None
