"""Whether a process still does anything: one that is a zombie only waits for its parent."""

from __future__ import annotations

import psutil


def lives(process: psutil.Process) -> bool:
    """Say whether a process still does anything."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
