"""The fleets that are small enough to be explored to their end, and how many at a time."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor

from model.explorer import Explored, explore
from model.gateway_side import Kind
from model.machine import Fault
from model.world import Scope

WHOLE, STREAM = Kind.WHOLE, Kind.STREAM
ANY_FAULT = tuple(Fault)
LINK_FAULTS = (Fault.CUT, Fault.AGENT_RESTART, Fault.GATEWAY_RESTART)
OTHER_FAULTS = tuple(fault for fault in Fault if fault not in LINK_FAULTS)
PROCESSES = 2
"""Explored at the same time; chosen for the two cores of a small CI runner."""


def scope(name: str, *requests: Kind, workers: int, at_most: int, faults: Iterable[Fault]) -> Scope:
    """Return a scope in which each of these faults may happen once, and all together `at_most` times."""
    return Scope(name, requests, workers, dict.fromkeys(faults, 1), at_most)


def explore_all(scopes: Sequence[Scope]) -> list[Explored]:
    """Explore each scope in a process of its own, untraced: coverage halves the rate and learns nothing from it."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn, initializer=sys.settrace, initargs=(None,)) as processes:
        return list(processes.map(explore, scopes))


def told(explored: Explored) -> None:
    """Print what was explored where a person sees it, also from a test process whose output is a protocol."""
    sys.stderr.write(f"\n{explored}\n")
