"""Emulators that the fleet did not start: servers for a test to attach, restart and take away."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from basert_fleet.agent.attached import AttachedServer
from basert_fleet.core.server_address import server_address
from support.alive import lives
from support.emulator import read_journal
from support.fleet import free_ports
from support.restart_emulator import end

SCRIPT = Path(__file__).with_name("restart_emulator.py")


@dataclass(frozen=True)
class Server:
    """One server, which may be away."""

    port: int
    folder: Path
    flags: tuple[str, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid_file(self) -> Path:
        return self.folder / f"{self.port}.pid"

    @property
    def journal_path(self) -> Path:
        return self.folder / f"{self.port}.jsonl"

    def as_attached(self, *, api_key: str = "", restarts: bool = True) -> AttachedServer:
        """Return it as an agent takes it, with its restart command or without."""
        return AttachedServer(server_address(self.url), api_key, self.restart_command if restarts else ())

    @property
    def restart_command(self) -> tuple[str, ...]:
        """What an operator would configure."""
        words = (sys.executable, str(SCRIPT), str(self.pid_file), str(self.port))
        return (*words, "--sim-journal", str(self.journal_path), *self.flags)

    @property
    def process(self) -> psutil.Process:
        """The process that was started last."""
        return psutil.Process(int(self.pid_file.read_text()))

    @property
    def is_running(self) -> bool:
        try:
            return lives(self.process)
        except psutil.NoSuchProcess:
            return False

    @property
    def processes(self) -> int:
        """How many processes there have been."""
        return len([record for record in read_journal(self.journal_path) if record["event"] == "start"])

    @property
    def overlaps(self) -> int:
        """How many generations began while another one ran."""
        return len([r for r in read_journal(self.journal_path) if r["event"] == "begin" and r["overlap"]])

    async def restart(self) -> None:
        """Do what the restart command does, as somebody at the machine would."""
        process = await asyncio.create_subprocess_exec(*self.restart_command)
        assert await process.wait() == 0

    def kill(self) -> None:
        """End it."""
        end(self.pid_file)


@asynccontextmanager
async def servers(folder: Path, count: int, *flags: str) -> AsyncIterator[list[Server]]:
    """Name ports for servers, none of which runs yet; afterwards none does. `folder` takes pid files and journals."""
    found = [Server(port, folder, flags) for port in free_ports(count)]
    try:
        yield found
    finally:
        for server in found:
            server.kill()
