"""Real child processes: whose port it is, and that a whole group ends."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from basert_fleet.agent import processes
from basert_fleet.agent.listeners import Listeners
from basert_fleet.agent.processes import Child, SpawnFailed, free_port, kill_leftover, spawn
from support.alive import lives
from support.emulator import COMMAND
from support.ports import comes_to_listen
from support.turns import until

HOST = "127.0.0.1"
DEAF = """
import signal, time
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


async def start_emulator(folder: Path, *options: str) -> tuple[Child, int]:
    """Start an emulator and return it once it listens."""
    port = free_port(HOST)
    child = await spawn(
        [*COMMAND, "model.base", "--port", str(port), *options], env={}, log=folder / "log", slot=folder
    )
    assert await comes_to_listen(child, port), (folder / "log").read_text()
    return child, port


async def test_a_child_listens_on_its_own_port_only(tmp_path: Path) -> None:
    """C13: a port is ready only if the process behind it is our child."""
    child, port = await start_emulator(tmp_path)
    with socket.create_server((HOST, 0)) as stranger:
        assert await Listeners().include(child, port)
        assert not await Listeners().include(child, stranger.getsockname()[1])
    await child.end(drain_seconds=0)


@pytest.mark.parametrize("orphan", ["group", "session"])
async def test_c14_what_a_child_forked_ends_with_it(tmp_path: Path, orphan: str) -> None:
    """C14: a forked process that keeps the port does not survive, not even in a session of its own."""
    child, port = await start_emulator(tmp_path, "--sim-orphan", orphan)
    family = psutil.Process(child.pid).children(recursive=True)
    assert family
    await child.end(drain_seconds=0)
    assert not any(map(lives, family))
    with socket.create_server((HOST, port)):
        pass  # nobody keeps the port


async def test_an_idle_child_leaves_by_itself_when_asked(tmp_path: Path) -> None:
    """A drain ends it with status 0: no kill is needed."""
    child, _ = await start_emulator(tmp_path)
    await child.end(drain_seconds=60)
    assert child.describe_exit() == "exited with status 0"


async def test_a_deaf_child_is_killed_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that does not heed its signals ends by SIGKILL, and the exit says so."""
    child = await spawn([sys.executable, "-c", DEAF], env={}, log=tmp_path / "log", slot=tmp_path)
    monkeypatch.setattr(processes, "TERMINATE_SECONDS", 0.05)
    await until(lambda: "up" in (tmp_path / "log").read_text())
    await child.end(drain_seconds=0.05)
    assert child.describe_exit() == "ended by SIGKILL"


async def test_ending_that_is_cut_short_kills_at_once(tmp_path: Path) -> None:
    """However `end` is left, the group does not live on."""
    child, _ = await start_emulator(tmp_path)
    psutil.Process(child.pid).suspend()  # it cannot heed its drain signal
    ending = asyncio.ensure_future(child.end(drain_seconds=60))
    await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait({ending})
    assert await child.exited == -signal.SIGKILL


async def test_a_halted_child_is_seen(tmp_path: Path) -> None:
    """SIGSTOP shows: waiting for such a process is pointless."""
    child, _ = await start_emulator(tmp_path)
    assert not child.stopped()
    psutil.Process(child.pid).suspend()
    await until(child.stopped)
    await child.end(drain_seconds=0)


async def test_a_missing_program_is_told(tmp_path: Path) -> None:
    """The error names the program and the field to look at."""
    with pytest.raises(SpawnFailed, match=r"/no/such/program.*spec\.server\.command"):
        await spawn(["/no/such/program"], env={}, log=tmp_path / "log", slot=tmp_path)


async def test_a_leftover_is_killed_only_if_it_is_that_very_process(tmp_path: Path) -> None:
    """A pid that was given to another process since must not cost that one its life."""
    child, _ = await start_emulator(tmp_path)
    assert not kill_leftover(child.pid, child.created + 60)
    assert child.alive
    assert kill_leftover(child.pid, child.created)
    await child.gone()
    assert not kill_leftover(child.pid, child.created)
