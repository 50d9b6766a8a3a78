"""How the process starts: cheaply, or with a clear refusal."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import psutil

from support.emulator import COMMAND, emulator

HEAVY = {"asyncio", "dataclasses", "inspect", "logging", "msgspec", "pathlib", "pydantic", "ssl", "httpx", "uvloop"}


def run(*arguments: str) -> subprocess.CompletedProcess:
    """Run the emulator to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_unknown_flags_exit_with_2():
    """As basert-serve does."""
    ended = run("model.base", "--unknown")
    assert ended.returncode == 2
    assert "--unknown" in ended.stderr


async def test_a_port_in_use_exits_with_1_and_says_so():
    """The message names the port and what to do."""
    async with emulator() as server:
        ended = await asyncio.to_thread(run, "model.base", "--port", str(server.port))
    assert ended.returncode == 1
    assert f"127.0.0.1:{server.port}" in ended.stderr


def test_the_console_script_is_installed():
    """`basert-sim` is the same program as `python -m basert_fleet.sim`."""
    script = Path(sys.executable).with_name("basert-sim")
    assert "emulator of basert-serve" in subprocess.check_output([script, "--help"], text=True)


def test_nothing_heavy_is_imported():
    """Each of these costs more CPU than the whole emulator may; fleets recycle it hundreds of times."""
    code = "import sys, basert_fleet.sim.main; print(*sorted(sys.modules))"
    modules = subprocess.check_output([sys.executable, "-I", "-c", code], text=True).split()
    assert HEAVY.isdisjoint(modules)


async def test_the_journal_names_process_port_and_time():
    """A harness can join the journals of many emulators."""
    async with emulator() as server:
        (start,) = server.journal("start")
        assert (start["pid"], start["port"], start["orphan_pid"]) == (server.pid, server.port, None)
        assert start["t"] > 0
        assert psutil.pid_exists(server.pid)
