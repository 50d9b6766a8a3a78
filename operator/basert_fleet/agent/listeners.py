"""Which process listens on a port: whether what answers there is the engine that was started for it (C13).

Linux tells it by its whole table of sockets only, which takes a millisecond per some hundred of them. So one reading,
on a thread, serves all who asked before it began. Elsewhere psutil asks for the sockets of one process alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import psutil

from basert_fleet.agent.processes import Child

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENING = re.compile(rb"^ *\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:0000 0A (?:\S+ +){5}(\d+)", re.MULTILINE)
"""A line of such a table (proc(5)) in state LISTEN: the port, and after five other fields the socket's inode."""


class Listeners:
    """The owner of an agent's looks at the machine's sockets."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        """The last question that `_inodes` answers: it was asked before they were read."""
        self._inodes: Mapping[int, frozenset[str]] = {}

    async def include(self, child: Child, port: int) -> bool:
        """Say whether the child, or a process that it forked, listens on the port now."""
        if not TABLES[0].exists():
            return any(_listens(process, port) for process in child.family())
        inodes = (await self._read()).get(port, frozenset())
        return any(_holds(process.pid, inodes) for process in child.family())

    async def _read(self) -> Mapping[int, frozenset[str]]:
        """Return the listening sockets by port, read after this was called."""
        self._asked += 1
        question = self._asked
        async with self._reading:
            if self._answered < question:
                covered = self._asked
                self._inodes = await asyncio.to_thread(_listening_sockets)
                self._answered = covered
            return self._inodes


def _listening_sockets() -> Mapping[int, frozenset[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for table in TABLES:
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for port, inode in _LISTENING.findall(table.read_bytes()):
                found[int(port, 16)].add(inode.decode())
    return {port: frozenset(inodes) for port, inodes in found.items()}


def _holds(pid: int, inodes: frozenset[str]) -> bool:
    """Say whether a process has one of these sockets open."""
    links = {f"socket:[{inode}]" for inode in inodes}
    with contextlib.suppress(OSError):  # the process has ended
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if os.readlink(descriptor) in links:  # noqa: PTH115 - the target is no path
                    return True
    return False


def _listens(process: psutil.Process, port: int) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return any(
            connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            for connection in process.net_connections("tcp")
        )
    return False
