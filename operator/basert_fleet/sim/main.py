"""The process: it listens, drains on SIGUSR1, ends on SIGINT or SIGTERM, and can misbehave as a process."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from basert_fleet.sim.connection import Connection, Exchange
from basert_fleet.sim.engine import Engine
from basert_fleet.sim.journal import Journal
from basert_fleet.sim.loop import READ, Loop
from basert_fleet.sim.options import Options, OrphanMode, parse
from basert_fleet.sim.runner import Runner
from basert_fleet.sim.service import AccessLog, Service

if TYPE_CHECKING:
    from collections.abc import Sequence

ORPHAN_SECONDS = 600  # chosen: a forked child that nobody kills ends itself then
BACKLOG = 128


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve until a signal ends the process; a wrong command line exits with 2, a port in use with 1."""
    process = _Process(parse(sys.argv[1:] if argv is None else argv))
    process.run()


class _Process:
    """Wires the parts together and owns the listening socket, the connections and the end of the process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._loop = Loop()
        self._journal = Journal(options.journal)
        self._access_log = AccessLog(options.log_file)
        engine = Engine(options.bug, options.counters)
        runner = Runner(
            self._loop, engine, self._journal, options.pace, chunking=options.chunking, faults=options.faults
        )
        self._service = Service(options, engine, runner, self._loop.now)
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self._memory = bytearray(b"\1") * options.memory_bytes  # not zeros: those would cost no real pages
        self._draining = False

    def run(self) -> NoReturn:
        self._loop.on_signal(signal.SIGUSR1, self._drain)
        for number in (signal.SIGINT, signal.SIGTERM):
            if self._options.ignore_sigterm:
                signal.signal(number, signal.SIG_IGN)
            else:
                self._loop.on_signal(number, lambda number=number: self._die_of(number))  # type: ignore[misc]  # bound per signal
        self._loop.call_later(self._options.startup_seconds, self._listen)
        self._loop.run()

    def _listen(self) -> None:
        host, port = self._options.host, self._options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted sockets inherit it. Set on each of them, macOS would fail for a client that has left already.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._listener.bind((host, port))
        except OSError as error:
            sys.exit(f"basert-sim: cannot listen on {host}:{port}: {error.strerror}. Choose another --port.")
        self._listener.listen(BACKLOG)
        self._listener.settimeout(0.0)
        self._loop.watch(self._listener, READ, self._accept)
        port = self._listener.getsockname()[1]
        self._journal.started(port, orphan_pid=self._fork_orphan())
        print(f"basert-sim listening on http://{host}:{port}", flush=True)  # noqa: T201  # what a starter waits for

    def _accept(self, _events: int) -> None:
        assert self._listener is not None  # noqa: S101  # it is what became readable
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ECONNABORTED):  # the client has left already
                return
            raise
        sock.settimeout(0.0)
        self._connections.add(Connection(sock, self._loop, self))

    def requested(self, exchange: Exchange) -> None:
        self._service.answer(exchange)

    def answered(self, exchange: Exchange) -> None:
        self._access_log.record(exchange)

    def idle(self) -> None:
        if self._draining:
            self._exit_if_drained()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._draining:
            self._exit_if_drained()

    def _drain(self) -> None:
        """Stop accepting, let what runs end, exit with 0; past --drain-timeout, exit all the same."""
        if self._draining:
            return
        self._draining = True
        self._service.drain()
        if self._listener is not None:
            self._loop.unwatch(self._listener)
            self._listener.close()
        self._loop.call_later(self._options.drain_seconds, lambda: self._exit("drain_timeout"))
        self._exit_if_drained()

    def _exit_if_drained(self) -> None:
        if all(connection.is_idle for connection in self._connections):
            self._exit("drained")

    def _exit(self, reason: str) -> NoReturn:
        self._journal.exited(reason)
        sys.exit(0)

    def _die_of(self, number: signal.Signals) -> None:
        """End at once, by the signal itself, so that the parent sees which one it was."""
        self._journal.exited(number.name)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _fork_orphan(self) -> int | None:
        """Fork a child that does nothing but hold the listening socket; return its pid.

        It lets go of the standard streams, so that a starter which reads them sees the parent's end.
        """
        if self._options.orphan is OrphanMode.OFF:
            return None
        ready, tell = os.pipe()
        pid = os.fork()
        if pid:
            os.close(tell)
            os.read(ready, 1)  # so that the start is only announced once the child is where it should be
            os.close(ready)
            return pid
        if self._options.orphan is OrphanMode.SESSION:
            os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, b"1")
        time.sleep(ORPHAN_SECONDS)
        os._exit(0)
