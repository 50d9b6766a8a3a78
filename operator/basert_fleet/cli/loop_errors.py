"""What becomes of errors that reach the event loop, since no code waits for what they ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HANDSHAKE_FAILED = "SSL handshake failed"
"""The message that asyncio, uvloop and aiofastnet have for it."""


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the loop; an exception handler.

    A bug in a callback is logged with its traceback. aiofastnet gives an exception's class where it has no instance,
    which uvloop's own handler cannot log: that is one line. A failed TLS handshake is not logged: whoever dials hears
    of it as of any failed attempt, and whoever listens counts (`handshake_failures_to`).
    """
    if _is_handshake_failure(context):
        return
    error = context.get("exception")
    if isinstance(error, type):
        logging.getLogger("asyncio").error("%s: %s", context.get("message"), error.__name__)
    else:
        loop.default_exception_handler(context)


@contextlib.contextmanager
def handshake_failures_to(count: Callable[[], None]) -> Iterator[None]:
    """Call `count` for each TLS handshake that fails on the running loop within the block."""
    loop = asyncio.get_running_loop()

    def counted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if _is_handshake_failure(context):
            count()
        report_loop_error(loop, context)

    before = loop.get_exception_handler()
    loop.set_exception_handler(counted)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


def _is_handshake_failure(context: dict[str, Any]) -> bool:
    error = context.get("exception")
    kind = error if isinstance(error, type) else type(error)
    return context.get("message") == HANDSHAKE_FAILED and issubclass(kind, ConnectionResetError | ssl.SSLError)
