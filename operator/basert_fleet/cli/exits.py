"""What the exit status of every command means. It is part of the interface: scripts act on it."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit status of a command."""

    OK = 0
    """Done, and all is well."""
    FAILURE = 1
    """It was tried and failed, or something is wrong with what was looked at."""
    USAGE = 2
    """The command line or a file it names is wrong; nothing was done."""
    INTERRUPTED = 130
    """Ctrl-C, where the command does not handle it itself; the shells' number."""
