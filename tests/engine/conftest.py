"""A server on loopback whose every byte a test decides, to stand for an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import uvloop

LIMIT_SECONDS = 20.0  # a backstop: nothing here waits for time to pass


def pytest_asyncio_loop_factories(config, item):
    """Run every test of this room on both loops: agents run on uvloop, whose transports differ."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Peer:
    """The engine's side of all connections to one scripted server."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[bytes] = []
        self._queue: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        self._queue.put_nowait((reader, writer))

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the next connection's streams."""
        async with asyncio.timeout(LIMIT_SECONDS):
            return await self._queue.get()

    async def take_request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one request, its body included."""
        async with asyncio.timeout(LIMIT_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self.requests.append(head + await reader.readexactly(length))
        return self.requests[-1]

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


Start = Callable[[], Awaitable[Peer]]


@pytest.fixture
async def start_peer() -> AsyncIterator[Start]:
    """Start scripted servers that end with the test."""
    async with AsyncExitStack() as stack:

        async def start() -> Peer:
            peer = Peer()
            server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            stack.callback(peer.close)
            peer.port = server.sockets[0].getsockname()[1]
            return peer

        yield start


@pytest.fixture
async def peer(start_peer: Start) -> Peer:
    """One scripted server."""
    return await start_peer()
