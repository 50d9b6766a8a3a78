"""Serving an ASGI application on a port of the running loop, with what uvicorn does not give.

No signal handlers (the composer has them), no access log (one line per lease is enough), and no more connections than
leave descriptors for the workers; `client_protocol` has the limits of each one.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from typing import TYPE_CHECKING

import uvicorn

from basert_fleet.core.errors import FleetError
from basert_fleet.gateway.client_protocol import limited_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from basert_fleet.gateway.asgi import Application
    from basert_fleet.gateway.errors import Code

KEEP_ALIVE_SECONDS = 75
"""Idle client connections; longer than the 60 s after which common load balancers stop reusing one."""
DATE_SECONDS = 1.0
"""Between renewals of the date header, which has no finer resolution."""
BACKLOG = 2048
"""Connections that wait for accept; uvicorn's default, enough for all clients of a fleet to reconnect at once."""
RESERVED_FILES = 128
"""Descriptors that clients never get: those of a fleet's own ports and files, and of each worker.

Chosen; 16 and 2 for each ready worker were measured, a start takes some more for a while. Half of all where a process
may have fewer than twice as many.
"""
UNLIMITED_FILES = 10_240
"""What is counted on where the system names no limit: as many as macOS gives anyway."""


def most_connections(open_files: int) -> int:
    """Return how many connections a process may have that may have so many open files.

    A quarter of what is left beside the reserve stays free for those that are accepted at once, and refused only then.
    """
    return (open_files - min(RESERVED_FILES, open_files // 2)) * 3 // 4


class ListenFailed(FleetError):
    """The address cannot be listened on."""

    code = "listen_failed"

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {cause.strerror or cause}. "
            "Another program may use the port: stop it, or choose another address."
        )
        self.host, self.port = host, port


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals belong to the composer

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        # uvicorn looks ten times a second whether it should exit; here it is told. The tick renews the date header.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._stopping.wait()


def _count_nowhere(_code: Code) -> None:
    """Stand in where refusals are not counted."""


class HttpServer:
    """One application on one address; use `start`."""

    def __init__(self, server: _Server, listener: socket.socket) -> None:
        self._server = server
        self._task = asyncio.create_task(server.serve([listener]), name=f"http server {listener.getsockname()}")
        self.host, self.port = listener.getsockname()[:2]

    @classmethod
    async def start(
        cls,
        app: Application,
        host: str,
        port: int,
        *,
        connections: int | None = None,
        refused: Callable[[Code], None] = _count_nowhere,
    ) -> HttpServer:
        """Listen and return once connections are accepted; port 0 picks a free one.

        More than so many connections are refused with 503 and closed; by default as many as the process has descriptors
        for. `refused` is called with the reason of each refusal that the application does not see.

        Raises:
            ListenFailed: the address is in use, not ours, or not allowed.
        """
        most = most_connections(_open_files()) if connections is None else connections
        backlog = max(1, min(BACKLOG, most // 3))  # so many may be accepted before the first of them is refused
        listener = _listen(host, port, backlog)
        config = uvicorn.Config(
            app,
            http=limited_to(most, refused),
            ws="none",
            lifespan="off",  # the fleet's life is its composer's
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing here depends on a client's address
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            backlog=backlog,
        )
        server = cls(_Server(config), listener)
        await server._server.listening.wait()
        return server

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, close idle connections, wait for running requests, then cut what is left.

        Cancelled, it returns at once and the server goes on to stop.
        """
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_seconds))
        self._server.stop()
        await asyncio.wait({self._task})  # unlike an await of the task, a cancel in here does not cut it
        self._task.result()


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenFailed(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise ListenFailed(host, port, error) from error
    return listener


def _open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_FILES if soft == resource.RLIM_INFINITY else soft
