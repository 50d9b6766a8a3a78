"""Serving an ASGI application on a port of the running loop, with what uvicorn does not give.

No signal handlers (the composer has them), no access log (one line per lease is enough), and a way for the application
to abort a connection whose client does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from uvicorn._types import ASGI3Application

ABORT = "basert_fleet.abort"
"""The ASGI extension: a call that drops the connection at once, unsent bytes included.

uvicorn closes gracefully, and so waits forever for a client that never reads.
"""

KEEP_ALIVE_SECONDS = 75
"""Idle client connections; longer than the 60 s after which common load balancers stop reusing one."""
DATE_SECONDS = 1.0
"""Between renewals of the date header, which has no finer resolution."""
BACKLOG = 2048
"""Connections that wait for accept; uvicorn's default, enough for all clients of a fleet to reconnect at once."""


class ListenFailed(FleetError):
    """The address cannot be listened on."""

    code = "listen_failed"

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(
            f"cannot listen on {host}:{port}: {cause.strerror or cause}. "
            "Another program may use the port: stop it, or choose another address."
        )
        self.host, self.port = host, port


class _ClientProtocol(HttpToolsProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item] # an extension of our own


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


class HttpServer:
    """One application on one address; use `start`."""

    def __init__(self, server: _Server, listener: socket.socket) -> None:
        self._server = server
        self._task = asyncio.create_task(server.serve([listener]), name=f"http server {listener.getsockname()}")
        self.host, self.port = listener.getsockname()[:2]

    @classmethod
    async def start(cls, app: ASGI3Application, host: str, port: int) -> HttpServer:
        """Listen and return once connections are accepted; port 0 picks a free one.

        Raises:
            ListenFailed: the address is in use, not ours, or not allowed.
        """
        listener = _listen(host, port)
        config = uvicorn.Config(
            app,
            http=_ClientProtocol,
            ws="none",
            lifespan="off",  # the fleet's life is its composer's
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            backlog=BACKLOG,
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


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenFailed(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenFailed(host, port, error) from error
    return listener
