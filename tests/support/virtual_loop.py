"""An event loop whose clock jumps to the next timer as soon as nothing else is ready: minutes pass in no time.

Only for tests without sockets: a loop that waits for I/O would jump over it.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


class _Jumping(selectors.DefaultSelector):
    """A selector that never waits; it moves the loop's clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None):
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: the test would hang")
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop in virtual time, which starts at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.now


def run_virtual(main: Coroutine[object, object, Result]) -> Result:
    """Run a coroutine in virtual time, to its end; an error in any callback fails it, too."""
    errors: list[dict] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: errors.append(context))
        result = runner.run(main)
    assert not errors, errors
    return result
