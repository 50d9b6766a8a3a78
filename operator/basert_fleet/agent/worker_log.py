"""The output of one worker's processes on disk: appended by them, bounded by us.

A child holds the file open and appends for as long as it lives, so the file cannot be renamed away under it: it is
rotated by copying its tail and truncating it (design section 8).
"""

from __future__ import annotations

import os
from pathlib import Path

ROTATE_ABOVE_BYTES = 8 * 1024**2
"""Chosen: holds hours of a chatty engine; with the kept copy a worker never uses much more than twice that."""


LINE_BYTES = 200
"""Chosen: a generous usual line; longer ones are shown in part."""


def rotate(log: Path) -> bool:
    """Bound a log: when it is too large, keep its last part as `<name>.1` and empty it; say whether that was done.

    Lines that the process writes between copy and truncation are lost; that is the price of not having a pipe.
    """
    if size(log) <= ROTATE_ABOVE_BYTES:
        return False
    with log.open("rb") as source:
        source.seek(-ROTATE_ABOVE_BYTES, os.SEEK_END)
        tail = source.read(ROTATE_ABOVE_BYTES)
    log.with_suffix(log.suffix + ".1").write_bytes(tail)
    os.truncate(log, 0)
    return True


def size(log: Path) -> int:
    """Return how long a log is, in bytes; 0 if there is none."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_lines(log: Path, count: int, *, since: int = 0) -> list[str]:
    """Return the last lines of a log, at most `count`, from a few kilobytes of what was written after `since` bytes."""
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(since, source.tell() - count * LINE_BYTES))
            return source.read().decode(errors="replace").splitlines()[-count:]
    except OSError:  # missing, or no file at all: there is nothing to quote
        return []
