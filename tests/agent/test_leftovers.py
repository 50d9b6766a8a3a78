"""What an agent that was killed left behind, and what its successor makes of it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from basert_fleet.agent.processes import free_port, spawn
from basert_fleet.agent.state import StateDirectory
from basert_fleet.core.delivery import Outcome
from support.alive import lives
from support.desk import desk, pool_document
from support.emulator import COMMAND
from support.ports import comes_to_listen
from support.turns import until

HOST = "127.0.0.1"


@pytest.mark.parametrize("busy", [True, False], ids=["sent", "settled"])
async def test_an_engine_of_an_earlier_agent_is_killed_before_anything_is_offered(tmp_path: Path, busy: bool) -> None:
    """An agent that was killed leaves its engines running: nobody knows what they do, so none of them lives on."""
    port = free_port(HOST)
    engine = await spawn([*COMMAND, "model.base", "--port", str(port)], env={}, log=tmp_path / "log", slot=tmp_path)
    record = StateDirectory(tmp_path).open_slot("qwen-0")
    record.started(engine.pid, engine.created, port)
    if busy:
        record.sent()
    record.close()  # the lock is gone with its holder, the record stays
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        async with asyncio.timeout(10):
            assert await asyncio.shield(engine.exited) == -signal.SIGKILL
        assert front.offers == {}
        assert (await front.ask("after-the-leftover"))[0].outcome is Outcome.RELEASED


async def test_a_process_that_is_no_leftover_is_left_alone(tmp_path: Path) -> None:
    """A pid that belongs to another process by now must not cost that one its life."""
    engine = await spawn([*COMMAND, "model.base", "--port", "0"], env={}, log=tmp_path / "log", slot=tmp_path)
    record = StateDirectory(tmp_path).open_slot("qwen-0")
    record.started(engine.pid, engine.created - 60, 1)
    record.close()
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        await front.offer()
        assert engine.alive
    await engine.end(drain_seconds=0)


@pytest.mark.parametrize("orphan", ["off", "session"])
async def test_an_engine_that_no_record_tells_of_is_found_by_its_mark(tmp_path: Path, orphan: str) -> None:
    """An agent may be killed between the start of an engine and its record, and a forked child outlives its parent."""
    state = StateDirectory(tmp_path)
    state.open_slot("qwen-0").close()
    port = free_port(HOST)
    argv = [*COMMAND, "model.base", "--port", str(port), "--sim-orphan", orphan]
    engine = await spawn(argv, env={}, log=tmp_path / "log", slot=tmp_path / "slots" / "qwen-0")
    assert await comes_to_listen(engine, port)
    family = [psutil.Process(engine.pid), *psutil.Process(engine.pid).children(recursive=True)]
    async with desk(tmp_path):
        await until(lambda: not any(map(lives, family)))
    await engine.gone()
