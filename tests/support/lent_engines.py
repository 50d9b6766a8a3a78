"""One process that is the emulated engine behind every worker of `lending_worker`: as a program, and to run it.

Each lent port has an engine of its own, so isolation can be seen as with real processes; only their number is cheap.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from basert_fleet.sim.connection import Connection, Exchange
from basert_fleet.sim.engine import Engine
from basert_fleet.sim.journal import Journal
from basert_fleet.sim.loop import READ, Loop
from basert_fleet.sim.options import parse
from basert_fleet.sim.runner import Runner
from basert_fleet.sim.service import Service

COMMAND_BYTES = 65_536
START_SECONDS = 60.0  # a backstop, never waited for in full
COMMAND = [sys.executable, "-I", "-S", str(Path(__file__).with_name("lending_worker.py"))]


class LentEngine:
    """One engine, for as long as the worker that lent its port lives."""

    def __init__(self, loop: Loop, worker: socket.socket) -> None:
        self._loop, self._worker = loop, worker
        command, descriptors, _, _ = socket.recv_fds(worker, COMMAND_BYTES, 1)
        (descriptor,) = descriptors
        self._listener = socket.socket(fileno=descriptor)
        self._listener.setblocking(False)
        options = parse(command.decode().split("\0"))
        engine, journal = Engine(options.bug, options.counters), Journal(options.journal)
        journal.started(options.port, orphan_pid=None)
        runner = Runner(loop, engine, journal, options.pace, chunking=options.chunking, faults=options.faults)
        self._service = Service(options, engine, runner, loop.now)
        self._connections: set[Connection] = set()
        loop.watch(self._listener, READ, self._accept)
        loop.watch(worker, READ, self._end)

    def _accept(self, _events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # the client has left already
            return
        connection.setblocking(False)
        self._connections.add(Connection(connection, self._loop, self))

    def _end(self, _events: int) -> None:
        """Listen no more: nothing ever comes of a worker but its end."""
        for one in (self._listener, self._worker):
            self._loop.unwatch(one)
            one.close()

    # --- its connections (their owner)

    def requested(self, exchange: Exchange) -> None:
        """Answer."""
        self._service.answer(exchange)

    def answered(self, exchange: Exchange) -> None:
        """Keep no log."""

    def idle(self) -> None:
        """Do nothing: it never drains."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)


def main() -> None:
    """Serve what is lent at the socket that the command line names, until killed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop = Loop()
    lenders = socket.socket(socket.AF_UNIX)
    lenders.bind(sys.argv[1])
    lenders.listen(128)

    def take(_events: int) -> None:
        worker, _ = lenders.accept()
        loop.watch(worker, READ, lambda _events: LentEngine(loop, worker))

    loop.watch(lenders, READ, take)
    os.write(1, b"ready\n")
    loop.run()


@asynccontextmanager
async def lent_engines(folder: Path) -> AsyncIterator[Path]:
    """Run the process within the block; gives the socket at which workers lend."""
    path = folder / "lent.sock"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", __file__, str(path)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            assert await process.stdout.readline() == b"ready\n"
        yield path
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


if __name__ == "__main__":
    main()
