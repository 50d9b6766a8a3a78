"""Start the emulator as a real process, on a free port, and end it however a test ends.

`async with emulator("--sim-bug", "on") as server:` gives its `url`, `pid`, `journal()` and `overlaps()`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COMMAND = (sys.executable, "-m", "basert_fleet.sim")
LISTEN_SECONDS = 60.0  # a backstop: the emulator listens after 0.1 s of CPU, and a busy machine shares that out


class Emulator:
    """One running emulator."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, journal: Path) -> None:
        self.process, self.url, self.journal_path = process, url, journal

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def journal(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return what really ran, oldest first; of one kind of event if it is named."""
        records = read_journal(self.journal_path)
        return [record for record in records if event in (None, record["event"])]

    def overlaps(self) -> list[dict[str, Any]]:
        """Return the generations that began while another one ran: none, if isolation holds."""
        return [record for record in self.journal("begin") if record["overlap"]]

    async def exit_code(self) -> int:
        """Wait until the process has ended; negative is the signal that ended it."""
        return await self.process.wait()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal, which may be shared by many emulators."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@asynccontextmanager
async def emulator(*arguments: str, port: int = 0, journal: Path | None = None) -> AsyncIterator[Emulator]:
    """Run an emulator that already listens; afterwards its whole group and what it forked are dead."""
    with tempfile.TemporaryDirectory() as folder:
        path = journal or Path(folder) / "journal.jsonl"
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "model.base", "--port", str(port), "--sim-journal", str(path), *arguments,
            stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            async with asyncio.timeout(LISTEN_SECONDS):
                line = await process.stdout.readline()
            assert line, f"the emulator ended with {await process.wait()} before it listened"
            yield Emulator(process, line.decode().split()[-1], path)
        finally:
            await _end(process, path)


async def _end(process: asyncio.subprocess.Process, journal: Path) -> None:
    if process.returncode is None:
        os.kill(process.pid, 9)
    await process.wait()
    for record in read_journal(journal):
        if record["pid"] == process.pid and record.get("orphan_pid"):
            _kill_orphan(record["orphan_pid"])


def _kill_orphan(pid: int) -> None:
    """Kill what the emulator forked, unless a test has done so and the pid is somebody else's by now."""
    try:
        orphan = psutil.Process(pid)
        if "basert_fleet.sim" in orphan.cmdline():
            orphan.kill()
    except psutil.NoSuchProcess:
        return
