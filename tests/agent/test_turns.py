"""Whose turn it is to start: so many at once, in the order of coming, and a turn always comes back."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.agent import agent
from basert_fleet.agent.turns import Turns
from basert_fleet.agent.worker import WAITS_FOR_TURN
from basert_fleet.wire.messages import WorkerStatus
from support.desk import desk, pool_document, stopped


@given(st.lists(st.one_of(st.none(), st.integers(0, 9))), st.integers(1, 4))
def test_the_first_in_line_have_their_turn_whoever_leaves(moves: list[int | None], at_once: int) -> None:
    """None comes, a number leaves: those who came first of the ones still there have a turn, and nobody else."""
    turns = Turns(at_once)
    line: list[tuple[asyncio.Event, ExitStack]] = []
    for move in moves:
        if move is None:
            stack = ExitStack()
            line.append((stack.enter_context(turns.turn()), stack))
        elif line:
            line.pop(move % len(line))[1].close()
        assert [turn.is_set() for turn, _ in line] == [place < at_once for place in range(len(line))]
    for _, stack in line:
        stack.close()


async def test_one_that_is_cut_short_gives_its_turn_back() -> None:
    """Cut while it waits, and cut in its turn."""
    turns = Turns(1)

    async def start() -> None:
        with turns.turn() as turn:
            await turn.wait()
            await asyncio.get_running_loop().create_future()

    first, second = asyncio.create_task(start()), asyncio.create_task(start())
    await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
    await asyncio.wait({first, second})
    with turns.turn() as turn:
        assert turn.is_set()


def waits(status: WorkerStatus) -> bool:
    """Say whether a worker stands in line."""
    return status.phase == "STARTING" and status.message == WAITS_FOR_TURN


async def test_workers_start_one_after_another_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one turn each is called once the one before it listens, and who waits has no process."""
    monkeypatch.setattr(agent, "STARTS_AT_ONCE", 1)
    async with desk(tmp_path) as front:
        front.want_pool(pool_document(replicas=3))
        await front.until(lambda: len(front.offers) == 3)
        statuses = [message for message in front.received if isinstance(message, WorkerStatus)]
        waiting = [status for status in statuses if waits(status)]
        assert {(status.worker, status.pid, status.generation) for status in waiting} == {
            ("qwen-1", None, 0),
            ("qwen-2", None, 0),
        }
        moments = [(status.worker, status.phase) for status in statuses if not waits(status)]
        called = [len(moments) - 1 - moments[::-1].index((f"qwen-{number}", "STARTING")) for number in range(3)]
        listening = [moments.index((f"qwen-{number}", "WARMING")) for number in range(3)]
        assert sorted([*called, *listening]) == [
            called[0],
            listening[0],
            called[1],
            listening[1],
            called[2],
            listening[2],
        ]


async def test_a_worker_that_is_not_wanted_any_more_leaves_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops without ever having had a process, while the one before it still starts."""
    monkeypatch.setattr(agent, "STARTS_AT_ONCE", 1)
    async with desk(tmp_path) as front:
        workers = front.want_pool(pool_document("--sim-startup", "60", replicas=2))
        await front.until(lambda: any(map(waits, front.statuses.values())))
        front.want(workers[0], stopped(workers[1]))
        await front.phase("STOPPED", "qwen-1")
        assert front.statuses["qwen-1"].generation == 0
        assert front.statuses["qwen-0"].phase == "STARTING"
