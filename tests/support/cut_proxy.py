"""A loopback proxy that does to connections what networks do: cut them, stall them, or swallow what they carry."""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHUNK_BYTES = 65_536


class Mood(Enum):
    """What the proxy does."""

    FORWARD = auto()
    CUT = auto()
    """New connections are ended at once."""
    STALL = auto()
    """Nothing is read: both ends' buffers fill."""
    SWALLOW = auto()
    """All is read and nothing passed on: a half-open connection, for both ends. New connections work."""


class CutProxy:
    """Stands between a client and a port. `port` is where to connect."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self.accepted = 0
        self._mood = Mood.FORWARD
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: list[_Relay] = []

    def forward(self) -> None:
        """Pass on what comes, also on connections that were stalled; those that were swallowed stay dead."""
        self._mood = Mood.FORWARD
        self._flowing.set()

    def cut(self) -> None:
        """End all connections without a word, and new ones at once."""
        self._mood = Mood.CUT
        for link in self._links:
            link.abort()

    def stall(self) -> None:
        """Stop reading from either end."""
        self._mood = Mood.STALL
        self._flowing.clear()

    def swallow(self) -> None:
        """Make the connections that exist half-open: no end, no error, no data."""
        for link in self._links:
            link.swallows = True

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until either end is gone."""
        self.accepted += 1
        if self._mood is Mood.CUT:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        link = _Relay((writer, far_writer), self._flowing)
        if self._mood is Mood.CUT:  # meanwhile
            link.abort()
            return
        self._links.append(link)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(link.pump(reader, far_writer))
                group.create_task(link.pump(far_reader, writer))
        finally:
            self._links.remove(link)
            link.abort()


class _Relay:
    """One connection through the proxy."""

    def __init__(self, writers: tuple[asyncio.StreamWriter, ...], flowing: asyncio.Event) -> None:
        self._writers, self._flowing = writers, flowing
        self.swallows = False

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on one direction."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                if not self.swallows:
                    writer.write(data)
                    await writer.drain()
        if not self.swallows:
            self.abort()


@contextlib.asynccontextmanager
async def cut_proxy(target_port: int) -> AsyncIterator[CutProxy]:
    """Run a proxy in front of a port; on leaving, all its connections are ended."""
    proxy = CutProxy(target_port)
    tasks: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await proxy.take(reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.forward()
        proxy.cut()
        if tasks:
            await asyncio.wait(tasks)
