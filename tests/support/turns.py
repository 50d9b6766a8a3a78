"""Waiting for a condition that sets no event, one turn of the loop at a time and never by the clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; the test's own time limit ends a wait for what never comes."""
    while not condition():  # noqa: ASYNC110 - what is watched belongs to the code under test and has no event
        await asyncio.sleep(0)


async def settled(turns: int = 10) -> None:
    """Let everything arrive that is under way in this loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
