"""`check --restart-command`: the report's first control, and no shape that meets a server already found wrong."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from basert_fleet.cli.report import Report, Status
from support.emulator import emulator
from support.fleet import free_ports

Check = Callable[..., Awaitable[tuple[int, str, str]]]
BUG = ("--sim-bug", "on", "--sim-batch-window", "0.1")
RESTART = """\
import pathlib, subprocess, sys
import psutil
pid_file, restarts, *command = sys.argv[1:]
old = psutil.Process(int(pathlib.Path(pid_file).read_text()))
old.kill()
psutil.wait_procs([old], timeout=10)
new = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
assert b"listening" in new.stdout.readline()
pathlib.Path(pid_file).write_text(str(new.pid))
with open(restarts, "a") as lines:
    print("restarted", file=lines)
"""
"""What an owner's own script does: kill the server, start it again, return once it listens."""


class Owned:
    """A server and the command that its owner restarts it with."""

    def __init__(self, url: str, command: str, restarts: Path) -> None:
        self.url, self.command, self._restarts = url, command, restarts

    @property
    def restarts(self) -> int:
        return len(self._restarts.read_text().splitlines()) if self._restarts.exists() else 0


@asynccontextmanager
async def owned(folder: Path, *options: str) -> AsyncIterator[Owned]:
    """Run an emulator that can be restarted on its port; whichever process it is by then is ended."""
    (port,) = free_ports(1)
    script, pid_file, restarts = folder / "restart.py", folder / "pid", folder / "restarts"
    script.write_text(RESTART)
    server = [sys.executable, "-m", "basert_fleet.sim", "model.base", "--port", str(port), *options]
    async with emulator(*options, port=port) as first:
        pid_file.write_text(str(first.pid))
        try:
            command = [sys.executable, str(script), str(pid_file), str(restarts), *server]
            yield Owned(first.url, shlex.join(command), restarts)
        finally:
            last = int(pid_file.read_text())
            if last != first.pid:
                process = psutil.Process(last)
                process.kill()
                await asyncio.to_thread(psutil.wait_procs, [process], timeout=10)


async def test_each_shape_meets_a_server_not_yet_found_wrong(check: Check, tmp_path: Path) -> None:
    """The fresh control is right on the broken build, and requests at once fail by themselves, at two already."""
    async with owned(tmp_path, *BUG) as server:
        status, out, _ = await check(
            server.url, "--requests", "6", "--report", "json", "--restart-command", server.command
        )
        assert server.restarts == 3 + 2  # one for each fresh request, one after each shape that was wrong but the last
    found = msgspec.json.decode(out, type=Report)
    statuses = {finding.name: finding.status for finding in found.findings}
    assert status == 1
    assert (statuses["fresh"], statuses["sequential"]) == (Status.PASSED, Status.FAILED)
    first = found.profile.first_wrong
    assert (first.sequential_request, first.concurrent_size, first.concurrent_tested) == (6, 2, (2, 4))
    at_two = next(shape for shape in found.shapes if shape.name == "concurrent-2")
    assert sorted(answer.got for answer in at_two.answers) == [
        'lookup_key({"key":"key"})', "no call (length, 2048 tokens)",
    ]  # fmt: skip


@pytest.mark.parametrize(("shape", "restarts"), [("schemas", 1), ("fresh", 3)])
async def test_a_failed_canary_has_the_server_restarted(
    check: Check, tmp_path: Path, shape: str, restarts: int
) -> None:
    """What follows it meets a fresh server, as after a wrong answer; a control that restarts does so no more for it."""
    only = ("--only", "counters", "--only", shape, "--report", "json")
    async with owned(tmp_path, *BUG) as server:
        await check(server.url, "--only", "sequential", "--requests", "8")
        status, out, _ = await check(server.url, *only, "--restart-command", server.command)
        assert server.restarts == restarts
    found = msgspec.json.decode(out, type=Report)
    assert found.profile.counters is not None
    assert (found.profile.counters.canary_passed, status) == (False, 0)


async def test_a_failed_canary_without_a_restart_is_told_with_what_follows(check: Check) -> None:
    """A wrong answer then says little of its shape."""
    async with emulator(*BUG) as server:
        await check(server.url, "--only", "sequential", "--requests", "8")
        _, out, _ = await check(server.url, "--only", "counters", "--only", "concurrent-2", "--report", "json")
    found = msgspec.json.decode(out, type=Report)
    assert found.profile.first_wrong.concurrent_tested == ()
    assert "the server had been wrong before" in next(f.detail for f in found.findings if f.name == "concurrent-2")


async def test_a_healthy_server_is_restarted_for_the_fresh_control_only(check: Check, tmp_path: Path) -> None:
    """A model takes minutes to load: no restart without a reason. All controls are then tested, and it is said so."""
    async with owned(tmp_path) as server:
        status, out, _ = await check(server.url, "--restart-command", server.command)
        assert server.restarts == 3
    assert status == 0
    assert "control: a fresh process for each request" in out
    assert "untested" not in out


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("true", "it was not restarted"),
        ("false", "it ended with status 1"),
        ("no-such-program", "No such file"),
    ],
)
async def test_a_restart_that_restarts_nothing_is_exit_status_2(check: Check, command: str, why: str) -> None:
    """A control on an old process would prove the wrong thing."""
    async with emulator() as server:
        status, out, err = await check(server.url, "--requests", "1", "--restart-command", command)
    assert (status, out) == (2, "")
    assert f"--restart-command {command}: " in err
    assert why in err


async def test_a_restart_that_never_ends_is_ended(check: Check, tmp_path: Path) -> None:
    """The command has as long as a request; then it and what it started are killed."""
    pid_file = tmp_path / "pid"
    program = "import os, pathlib, signal, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); signal.pause()"
    command = shlex.join([sys.executable, "-c", program, str(pid_file)])
    async with emulator() as server:
        status, _, err = await check(server.url, "--only", "fresh", "--timeout", "1", "--restart-command", command)
    assert (status, "did not answer in time" in err) == (2, True)
    assert not psutil.pid_exists(int(pid_file.read_text()))
