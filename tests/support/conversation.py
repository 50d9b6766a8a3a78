"""Waiting for what an engine's connection tells, for tests that have nothing else to wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from basert_fleet.engine.connection import EngineConnection, Event


async def next_event(connection: EngineConnection) -> Event:
    """Return what comes next of a response, however long it takes."""
    news = asyncio.Event()
    connection.watch(news.set)
    while (event := connection.take()) is None:
        news.clear()
        await news.wait()
    return event
