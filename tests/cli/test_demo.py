"""The demo as a person starts it: a process, real workers, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import msgspec
import psutil

from basert_fleet.cli.demo_processes import fleet_document
from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.engine.canary import lookup_key_request
from support.seed import called

ROWS = re.compile(r"^(\S.*?) +\d+ +(\d+/\d+) right +(\d+/\d+) right ", re.MULTILINE)


@asynccontextmanager
async def demo(
    folder: Path, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the demo with its temporary files in a folder; check that no file and no process of it is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "basert_fleet.cli.demo", *arguments, stdin=stdin,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=os.environ | {"TMPDIR": str(folder)},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
    assert _left_of(folder) == ([], [])


def _left_of(folder: Path) -> tuple[list[Path], list[list[str]]]:
    """Return files and command lines that are still there."""
    return list(folder.iterdir()), [found.cmdline() for found in psutil.process_iter() if _is_of(folder, found)]


def _is_of(folder: Path, process: psutil.Process) -> bool:
    """Whoever inherited the demo's environment is one of its processes."""
    try:
        return process.environ().get("TMPDIR") == str(folder)
    except psutil.Error:
        return False


async def _line(stream: asyncio.StreamReader | None, start: str) -> str:
    """Read up to a line that starts so."""
    assert stream is not None
    async for line in stream:
        if line.decode().startswith(start):
            return line.decode()
    raise AssertionError(f"no line starts with {start!r}")


@contextmanager
def terminal() -> Iterator[int]:
    """Give a standard input that is a terminal, with nobody typing."""
    ours, theirs = os.openpty()
    try:
        yield theirs
    finally:
        os.close(ours)
        os.close(theirs)


async def test_the_demo_shows_the_bug_and_the_cure(tmp_path: Path) -> None:
    """Without a terminal it ends by itself: the bare worker wrong, the fleet right; a taken port is no obstacle."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with demo(tmp_path, "--listen", f"127.0.0.1:{port}") as process:
            out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    rows = {title: (bare, fleet) for title, bare, fleet in ROWS.findall(out.decode())}
    assert rows["one after another"] == ("5/24", "24/24")
    assert rows["2 at once"] == ("0/2", "2/2")
    assert rows["4 at once"] == ("0/4", "4/4")
    assert [fleet for _, fleet in list(rows.values())[:3]] == ["4/4", "3/3", "2/2"]
    assert f"  port {port} cannot be used (Address already in use); another one is taken\n" in err.decode()


async def test_on_a_terminal_the_fleet_serves_until_ctrl_c(tmp_path: Path) -> None:
    """After the table it can be tried out; Ctrl-C then is the regular end."""
    with terminal() as stdin:
        async with demo(tmp_path, "--listen", "127.0.0.1:0", stdin=stdin) as process:
            line = await _line(process.stderr, "The fleet serves on ")
            async with httpx.AsyncClient(timeout=60) as client:
                answer = await client.post(
                    f"{line.split()[4]}/v1/chat/completions",
                    content=lookup_key_request("my-own-key", "emulated"),
                    headers={"content-type": "application/json"},
                )
            assert called(answer.json()) == [("lookup_key", {"key": "my-own-key"})]
            process.send_signal(signal.SIGINT)
            await process.communicate()
            assert process.returncode == 0


async def test_a_signal_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    """Cut short while its workers start, the demo ends them, removes its folder and exits with 130."""
    async with demo(tmp_path, "--listen", "127.0.0.1:0") as process:
        await _line(process.stderr, "  demo-0 starts")
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        assert process.returncode == 130


def test_the_demos_fleet_file_is_one_that_up_takes() -> None:
    """It is an ordinary pool; only its command line is the emulator's."""
    (pool,) = read_pools(msgspec.json.encode(fleet_document()), "fleet.yaml")
    assert pool.spec.replicas == 4
