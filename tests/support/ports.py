"""Waiting until a child listens on its port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from basert_fleet.agent.listeners import Listeners

if TYPE_CHECKING:
    from basert_fleet.agent.processes import Child


async def comes_to_listen(child: Child, port: int) -> bool:
    """Return True once it does, False if it ends before."""
    listeners = Listeners()
    while child.alive and not await listeners.include(child, port):  # noqa: ASYNC110 - a port has no event
        await asyncio.sleep(0)
    return child.alive
