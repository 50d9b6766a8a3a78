"""Whose turn it is to start: only so many workers of one agent start at once, first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import islice

STARTS_AT_ONCE = 16
"""Chosen: more models than any Mac loads at a time, so that it limits nothing there. Where hundreds of workers start,
it keeps the looks at those that do from taking the loop away from those that serve."""


class Turns:
    """The line of those who want a turn. The first of them have one, until they leave."""

    def __init__(self, at_once: int) -> None:
        """Begin with nobody; so many have their turn at once."""
        self._at_once = at_once
        self._line: dict[asyncio.Event, None] = {}
        """In the order of coming."""

    @contextlib.contextmanager
    def turn(self) -> Iterator[asyncio.Event]:
        """Stand in line within the block, whose end gives the turn back, had or not. The event is set once it comes."""
        turn = asyncio.Event()
        self._line[turn] = None
        self._call()
        try:
            yield turn
        finally:
            del self._line[turn]
            self._call()

    def _call(self) -> None:
        for turn in islice(self._line, self._at_once):
            turn.set()
