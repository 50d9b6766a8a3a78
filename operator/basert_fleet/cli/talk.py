"""What a command says to a person while it works, on standard error: standard output is for what it found."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Write a line; it is seen at once, also through a pipe."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
