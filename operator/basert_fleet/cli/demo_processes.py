"""The processes of the demo: a bare emulated worker, and a fleet of them behind `basert-fleet up`.

Each is a child that says when it listens, and is gone when its block ends, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from basert_fleet.cli.listen import Address
from basert_fleet.cli.progress import WORDS
from basert_fleet.core.errors import FleetError
from basert_fleet.core.lifecycle import State

MODEL = "emulated"
POOL = "demo"
WORKERS = 4
TOKENS_PER_SECOND = 20_000
"""Chosen: a runaway of 2,048 tokens takes 0.1 s, which is seen in the table and does not bore."""
BATCH_SECONDS = 0.05
"""Chosen: requests that are sent at once overlap even on a busy machine."""
EMULATOR = (sys.executable, "-m", "basert_fleet.sim")
BUGGY = (
    "--sim-bug", "on",
    "--sim-tokens-per-second", str(TOKENS_PER_SECOND),
    "--sim-batch-window", str(BATCH_SECONDS),
)  # fmt: skip
START_SECONDS = 60.0
"""Chosen: ten times what four emulated workers need on two busy cores."""
STOP_SECONDS = 10.0
"""Chosen: idle emulated workers stop within a second."""
LISTENING = re.compile(r"listening on (?P<url>http://\S+) for clients")
LONGEST_LINE_BYTES = 1024**2
"""Chosen: far above what a line of `up` can be."""
CHUNK_BYTES = 65_536


class DemoFailed(FleetError):
    """A process of the demo did not start."""

    code = "demo_failed"


@contextlib.asynccontextmanager
async def bare_worker() -> AsyncIterator[str]:
    """Run one emulated worker with the bug on, and nothing in front of it; gives its URL."""
    async with _child([*EMULATOR, "emulated.base", "--port", "0", *BUGGY], stdout=asyncio.subprocess.PIPE) as process:
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await _pipe(process.stdout).readline()
        except TimeoutError:
            line = b""
        if not line:
            raise DemoFailed("the emulated worker did not start; its own message is above, if it gave one")
        yield line.decode().split()[-1]


@contextlib.asynccontextmanager
async def fleet(folder: Path, listen: Address, say: Callable[[str], None]) -> AsyncIterator[str]:
    """Run `basert-fleet up` on emulated workers with the bug on, all of them ready; gives its URL.

    `folder` takes its fleet file and its state.
    """
    file = folder / "fleet.yaml"
    file.write_bytes(msgspec.json.encode(fleet_document()))
    command = [
        sys.executable, "-m", "basert_fleet.cli.main", "up", str(file),
        "--listen", str(listen), "--ops-listen", "127.0.0.1:0", "--state-dir", str(folder / "state"),
    ]  # fmt: skip
    async with _child(command, stderr=asyncio.subprocess.PIPE) as process:
        lines = _pipe(process.stderr)
        try:
            async with asyncio.timeout(START_SECONDS):
                url = await _until_ready(lines, say)
        except TimeoutError:
            raise DemoFailed(f"the fleet was not ready within {START_SECONDS:g} s") from None
        reading = asyncio.create_task(_drop(lines), name="the fleet's log")
        try:
            yield url
        finally:
            reading.cancel()
            await asyncio.wait([reading])


def fleet_document() -> dict[str, object]:
    """Return the demo's fleet file: one pool of emulated workers, the rest by default."""
    return {
        "apiVersion": "fleet.basert.dev/v1alpha1",
        "kind": "BasertPool",
        "metadata": {"name": POOL},
        "spec": {
            "model": {"name": MODEL, "path": "emulated.base"},
            "replicas": WORKERS,
            "server": {"command": list(EMULATOR), "args": list(BUGGY)},
        },
    }


async def _until_ready(lines: asyncio.StreamReader, say: Callable[[str], None]) -> str:
    """Pass on what the fleet tells a person, until it listens and every worker is ready; return its URL."""
    url = ""
    waiting = {f"{POOL}-{number} {WORDS[State.READY]}" for number in range(WORKERS)}
    while waiting or not url:
        line = (await lines.readline()).decode("utf-8", "replace").rstrip()
        if not line:
            if lines.at_eof():
                raise DemoFailed("the fleet ended before it was ready; what it said is above")
            continue
        if found := LISTENING.search(line):
            url = found["url"]
        if line.startswith(POOL):
            waiting.discard(line)
            say(f"  {line}")
    return url


async def _drop(lines: asyncio.StreamReader) -> None:
    """Keep the pipe empty: a full one would stop the fleet."""
    while await lines.read(CHUNK_BYTES):
        pass


@contextlib.asynccontextmanager
async def _child(
    command: Sequence[str], *, stdout: int | None = None, stderr: int | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a process in a session of its own: a Ctrl-C is for the demo, which then ends its children in order."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=stdout, stderr=stderr,
        start_new_session=True, limit=LONGEST_LINE_BYTES,
    )  # fmt: skip
    try:
        yield process
    finally:
        await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask a process to end, ask again, and kill it: a second SIGTERM makes `up` end its workers at once."""
    try:
        for _ in range(2):
            if process.returncode is None:
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await process.wait()
                    return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _pipe(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    if stream is None:
        raise TypeError("the process was started without this pipe")
    return stream
