"""A gateway's and an agent's side of the WebSocket transport, for tests of links."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from basert_fleet.wire.dialling import DialFailed, dial
from basert_fleet.wire.resumable import DEFAULT_LIMITS, LinkCounts, LinkLimits
from basert_fleet.wire.server import AgentServer
from support.link_ends import LinkEnd

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable


@dataclass
class Gateway:
    """A server, and the end of each link that it accepted."""

    server: AgentServer
    ends: list[LinkEnd]
    port: int = 0

    @property
    def end(self) -> LinkEnd:
        return self.ends[-1]


@contextlib.asynccontextmanager
async def gateway(
    *,
    check: Callable[[str | None], bool] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    limits: LinkLimits = DEFAULT_LIMITS,
    port: int = 0,
) -> AsyncIterator[Gateway]:
    """Run a gateway on loopback."""
    ends: list[LinkEnd] = []

    def accept() -> LinkEnd:
        ends.append(LinkEnd())
        return ends[-1]

    server = AgentServer(accept, check=check, ssl_context=ssl_context, limits=limits)
    running = Gateway(server, ends)
    running.port = await server.start("127.0.0.1", port)
    try:
        yield running
    finally:
        await server.close()


@dataclass
class Dialled:
    """A dialling agent."""

    end: LinkEnd
    failures: list[DialFailed] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    counts: LinkCounts = field(default_factory=LinkCounts)


@contextlib.asynccontextmanager
async def dialling(
    url: str,
    *,
    token: str | None = None,
    ca_file: str | None = None,
    limits: LinkLimits = DEFAULT_LIMITS,
) -> AsyncIterator[Dialled]:
    """Run an agent that dials; its pauses are asked for, noted, and hardly taken."""
    dialled = Dialled(LinkEnd())

    def draw(low: float, high: float) -> float:
        dialled.pauses.append((low, high))
        return 0.005

    task = asyncio.create_task(
        dial(
            url,
            dialled.end,
            node="mac-1",
            token=None if token is None else lambda: token,
            ca_file=ca_file,
            failed=dialled.failures.append,
            draw=draw,
            limits=limits,
            counts=dialled.counts,
        ),
        name="dial",
    )
    try:
        yield dialled
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()
