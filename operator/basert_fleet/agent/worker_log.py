"""The output of one worker's processes on disk: appended by them, bounded by us.

A child holds the file open and appends for as long as it lives, so the file cannot be renamed away under it: it is
rotated by copying its tail and truncating it (design section 8).
"""

from __future__ import annotations

import os
from pathlib import Path

ROTATE_ABOVE_BYTES = 8 * 1024**2
"""Chosen: holds hours of a chatty engine; with the kept copy a worker never uses much more than twice that."""


def rotate(log: Path) -> bool:
    """Bound a log: when it is too large, keep its last part as `<name>.1` and empty it; say whether that was done.

    Lines that the process writes between copy and truncation are lost; that is the price of not having a pipe.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return False
    if size <= ROTATE_ABOVE_BYTES:
        return False
    with log.open("rb") as source:
        source.seek(-ROTATE_ABOVE_BYTES, os.SEEK_END)
        tail = source.read(ROTATE_ABOVE_BYTES)
    log.with_suffix(log.suffix + ".1").write_bytes(tail)
    os.truncate(log, 0)
    return True


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log, at most `count`, without reading more than a few kilobytes of it."""
    try:
        with log.open("rb") as source:
            source.seek(0, os.SEEK_END)
            source.seek(max(0, source.tell() - count * 200))
            return source.read().decode(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
