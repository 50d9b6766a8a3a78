"""One timer that is only ever moved earlier, for an owner that looks at all that is due whenever it rings."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Alarm:
    """Calls its owner at the earliest time that was asked for since it rang last; it may ring with nothing due.

    A time that has come to be later is not moved: ringing too early now and then costs less than cancelling a timer at
    each message. The due time is kept here because uvloop's handle of a time that is already over has no `when()`.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._due = math.inf
        self._handle: asyncio.Handle | None = None

    def set_by(self, due: float | None) -> None:
        """Ring at `due` on the loop's clock, or earlier; None asks for nothing."""
        if due is None or due >= self._due:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = self._loop.call_at(due, self._rang)

    def cancel(self) -> None:
        """Do not ring, until asked again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle, self._due = None, math.inf

    def _rang(self) -> None:
        self._handle, self._due = None, math.inf
        self._ring()
