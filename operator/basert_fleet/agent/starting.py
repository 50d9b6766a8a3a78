"""Starting one engine process: from its command line to a port that is proven to be its own."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from contextlib import AbstractContextManager
from pathlib import Path

from basert_fleet.agent.engines import StartFailed
from basert_fleet.agent.generation import EngineLine
from basert_fleet.agent.listeners import Listeners
from basert_fleet.agent.processes import Child, Progress, free_port, spawn
from basert_fleet.agent.slot import Slot
from basert_fleet.agent.state import SlotRecord
from basert_fleet.agent.turns import Turns
from basert_fleet.core.api import BasertWorker
from basert_fleet.engine.command import command_line

LOOPBACK = "127.0.0.1"
FIRST_LOOK_SECONDS, LATER_LOOK_SECONDS, LOOK_GROWTH = 0.02, 0.5, 1.5
"""How soon a starting process is looked at, how often at most later, and how the pause grows."""
PROGRESS_EVERY_SECONDS = 60.0
"""Chosen: a look goes over all processes of the machine, so it must be rare where many workers start."""
STALLED_SECONDS = 600.0
"""Chosen: a model may load for many minutes (C18), but not for ten without using CPU or touching memory."""
HEALTH_SECONDS = 1.0


class Spawner:
    """Engines that are processes of ours, started one after another: there can always be a next one."""

    note = out_of_service = ""

    def __init__(self, record: SlotRecord, log: Path, turns: Turns, listeners: Listeners) -> None:
        """Begin without a process; turns and listeners are shared by all workers of the agent."""
        self._record, self._log = record, log
        self._turns, self._listeners = turns, listeners
        self._child: Child | None = None

    def turn(self) -> AbstractContextManager[asyncio.Event]:
        """Stand in line with the agent's other workers that start."""
        return self._turns.turn()

    async def launch(self, worker: BasertWorker, generation: int) -> Slot:
        """Start the next process; it does not listen yet."""
        self._child, line = await launch_process(worker, self._record, self._log)
        return Slot(self._child, self._record, line, generation)

    async def listening(self, slot: Slot) -> None:
        """Return once the process itself listens and answers."""
        if self._child is None:
            raise RuntimeError("no process was launched")
        await listening(self._child, slot.line, self._listeners)

    def ended(self) -> str:
        """Record that the process is gone."""
        with contextlib.suppress(OSError):  # a record that cannot be written names a process that is gone: harmless
            self._record.ended()
        return ""

    async def mended(self) -> None:
        """Never return: only a changed spec makes a difference to what was given up."""
        await asyncio.get_running_loop().create_future()


async def launch_process(worker: BasertWorker, record: SlotRecord, log: Path) -> tuple[Child, EngineLine]:
    """Start a process on a port and with a key of its own; it does not listen yet.

    Raises:
        SpawnFailed: the program cannot be executed.
    """
    spec = worker.spec
    # A key in hex never begins with a dash, which the engine would take for a flag.
    line = EngineLine(LOOPBACK, free_port(LOOPBACK), secrets.token_hex(24))
    argv = command_line(spec.server, spec.model, host=line.host, port=line.port, api_key=line.api_key)
    env = {variable.name: variable.value for variable in spec.server.env}
    child = await spawn(argv, env=env, log=log, slot=record.path)
    try:
        record.started(child.pid, child.created, line.port)
    except OSError:  # without a record the next agent could not find it
        child.give_up()
        await child.gone()
        raise
    return child, line


async def listening(child: Child, line: EngineLine, listeners: Listeners) -> None:
    """Return once the process itself listens and answers; that may take as long as it uses CPU or more memory.

    Raises:
        StartFailed: it exited, made no progress, or somebody else has its port.
    """
    patience = _Patience(child, line.port)
    while not await _accepts(line):
        await patience.wait()
    if not await listeners.include(child, line.port):
        patience.require_alive()
        raise StartFailed(f"another program listens on port {line.port}, which was chosen for this worker")
    while not await line.probes.healthy(HEALTH_SECONDS):
        await patience.wait()
    line.remember(await line.ask())


class _Patience:
    """How long one starting process is waited for: as long as it lives and gets on."""

    def __init__(self, child: Child, port: int) -> None:
        self._child, self._port = child, port
        self._pause = FIRST_LOOK_SECONDS
        self._progress = Progress(0.0, 0)
        self._progressed_at = self._checked_at = asyncio.get_running_loop().time()

    def require_alive(self) -> None:
        """Give up on a process that is gone."""
        if not self._child.alive:
            raise StartFailed(f"the process {self._child.describe_exit()} before it listened on port {self._port}")

    async def wait(self) -> None:
        """Wait a little, longer each time, unless nothing will come of it."""
        self.require_alive()
        self._require_progress(asyncio.get_running_loop().time())
        await asyncio.wait({self._child.exited}, timeout=self._pause)
        self._pause = min(self._pause * LOOK_GROWTH, LATER_LOOK_SECONDS)

    def _require_progress(self, now: float) -> None:
        if now - self._checked_at < PROGRESS_EVERY_SECONDS:
            return
        self._checked_at, seen = now, self._child.progress()
        if seen != self._progress:
            self._progress, self._progressed_at = seen, now
        elif now - self._progressed_at >= STALLED_SECONDS:
            raise StartFailed(f"the process used neither CPU nor more memory for {STALLED_SECONDS:.0f} seconds")


async def _accepts(line: EngineLine) -> bool:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            _, writer = await asyncio.open_connection(line.host, line.port)
    except OSError:  # a TimeoutError is one
        return False
    writer.close()
    return True
