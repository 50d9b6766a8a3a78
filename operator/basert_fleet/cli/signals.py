"""Signals as two events: the first asks to stop, the second not to wait any longer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP too: workers have sessions of their own, and would survive a closed terminal."""

Result = TypeVar("Result")


class Interrupts:
    """What signals have asked for."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = asyncio.Event()

    def received(self) -> None:
        """Take note of one more signal."""
        (self.at_once if self.stop.is_set() else self.stop).set()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Receive the process's signals within the block; those that it was started to ignore (nohup) stay ignored."""
        loop = asyncio.get_running_loop()
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in heeded:
            loop.add_signal_handler(number, self.received)
        try:
            yield
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)

    async def unless_at_once(self, work: Coroutine[None, None, Result]) -> Result | None:
        """Return what the work gives, or None after cancelling it when it must be at once."""
        task = asyncio.create_task(work, name="work until interrupted")
        hurry = asyncio.create_task(self.at_once.wait(), name="second signal")
        try:
            await asyncio.wait({task, hurry}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hurry.cancel()
            if not task.done():
                task.cancel()
            await asyncio.wait({task, hurry})
        return None if task.cancelled() else task.result()
