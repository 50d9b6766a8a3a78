"""Which processes a process has forked, without a look at all others where the system keeps a list of them."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

PROCESSES = Path("/proc")


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return what the process has forked, and what those have, as far as their parents still live.

    Like any look at processes that fork and end meanwhile, it may miss one that came or went during it. Linux keeps a
    list with each thread (proc(5), `children`); elsewhere psutil looks at every process of the machine.

    Raises:
        psutil.Error: the process itself is gone; where there is a list, it has no children then.
    """
    if not _lists_children():
        return process.children(recursive=True)
    found: list[psutil.Process] = []
    parents = [process]
    while parents:
        children = list(_children(parents.pop()))
        found += children
        parents += children
    return found


def _children(parent: psutil.Process) -> Iterator[psutil.Process]:
    for pid in _listed(parent.pid):
        with contextlib.suppress(psutil.Error, OSError):
            child = psutil.Process(pid)
            if child.ppid() == parent.pid:  # else it has ended since, and another process got its pid
                yield child


def _listed(pid: int) -> list[int]:
    listed: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for thread in (PROCESSES / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):  # this thread has
                listed += map(int, (thread / "children").read_bytes().split())
    return listed


@functools.cache
def _lists_children() -> bool:
    """Say whether the kernel was built to list children, as those of all common distributions are."""
    return (PROCESSES / "self" / "task" / str(os.getpid()) / "children").exists()
