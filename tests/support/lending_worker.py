"""A worker's program that costs next to nothing: it lends its port to `lent_engines`, and becomes a `cat`.

Run with `--lend-to SOCKET` in the emulator's command line, the rest of which it passes on. The agent proves that its
own child listens on the port; this one does, though it never accepts. The `cat` reads from the lender's socket: when
one of the two ends, the other one sees the end.

A thousand of them start at once, so it uses `_socket`: importing `socket` would double its time (30 instead of 16 ms,
measured).
"""

from __future__ import annotations

import os
import sys
from _socket import (
    AF_INET,
    AF_UNIX,
    IPPROTO_TCP,
    SCM_RIGHTS,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_NODELAY,
    socket,
)

BACKLOG = 8


def main() -> None:
    """Listen, lend, and become a `cat`."""
    model, *flags = sys.argv[1:]
    options = dict(zip(flags[::2], flags[1::2], strict=True))
    lend_to = options.pop("--lend-to")
    listener = socket(AF_INET, SOCK_STREAM)
    listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
    listener.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
    listener.bind((options["--host"], int(options["--port"])))
    listener.listen(BACKLOG)
    borrower = socket(AF_UNIX, SOCK_STREAM)
    borrower.connect(lend_to)
    command = "\0".join([model, *(word for option in options.items() for word in option)])
    lent = listener.fileno().to_bytes(4, sys.byteorder)
    borrower.sendmsg([command.encode()], [(SOL_SOCKET, SCM_RIGHTS, lent)])
    os.set_inheritable(listener.fileno(), True)
    os.dup2(borrower.fileno(), 0)
    os.execv("/bin/cat", ["cat"])  # noqa: S606 - no shell is meant


if __name__ == "__main__":
    main()
