"""Agents that dial a port of clients or operators, which speaks HTTP only."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UPGRADE_REFUSED = "Unsupported upgrade request."
INSTALL_HINT = "No supported WebSocket library detected"
"""How uvicorn's two warnings begin. The second tells to install what would help nobody here."""


@contextlib.contextmanager
def stray_websockets_to(count: Callable[[], None]) -> Iterator[None]:
    """Call `count` for each upgrade that uvicorn refuses within the block, in place of its warnings."""

    def keep(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if message == UPGRADE_REFUSED:
            count()
        return not message.startswith((UPGRADE_REFUSED, INSTALL_HINT))

    logger = logging.getLogger("uvicorn.error")
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)
