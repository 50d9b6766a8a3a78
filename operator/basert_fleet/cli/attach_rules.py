"""Whether the attached servers of a fleet file fit its pools and each other.

What one entry must be by itself is the schema's business (`core.api`). Here: each names a pool of the file, no two name
one server, and nothing is set that an attached server would not heed.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from basert_fleet.core.documents import quoted
from basert_fleet.core.server_address import server_address
from basert_fleet.core.yaml_source import Document, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from basert_fleet.core.api import AttachSpec, BasertPool
    from basert_fleet.core.yaml_source import Path

ONLY_FOR_OWN_PROCESSES: tuple[Path, ...] = (
    ("spec", "server", "command"),
    ("spec", "server", "args"),
    ("spec", "server", "env"),
    ("spec", "server", "maxContext"),
    ("spec", "server", "allowUnsafeFlags"),
    ("spec", "resources", "memory"),
)
"""Settings of a pool that nothing would honour where something else starts its servers.

The rest of `spec.server` concerns requests, and holds: their time limit, and rendered chats (tried on an emulator with
the bug, `tests/e2e/test_attached.py`).
"""


def attach_problems(
    document: Document, entries: Sequence[AttachSpec], pools: Mapping[str, tuple[Document, BasertPool]]
) -> Iterator[Problem]:
    """Find what is wrong between the entries of a Standalone document and all pools of its file, by name."""
    yield from _repeated_servers(document, entries)
    positions: defaultdict[str, list[int]] = defaultdict(list)
    for position, entry in enumerate(entries):
        path: Path = ("spec", "attach", position, "pool")
        if entry.pool in pools:
            positions[entry.pool].append(position)
        else:
            yield Problem(document.line_of(path), path, f"names no pool of this file, found {quoted(entry.pool)}")
    for name, own in positions.items():
        where, pool = pools[name]
        yield from _pool_problems(where, pool, len(own))
        if not pool.spec.isolation.require_slots:
            yield from _missing_commands(document, entries, own)


def _repeated_servers(document: Document, entries: Sequence[AttachSpec]) -> Iterator[Problem]:
    first: dict[int, int] = {}
    for position, entry in enumerate(entries):
        path: Path = ("spec", "attach", position, "url")
        line, port = document.line_of(path), server_address(entry.url).port
        if port in first:
            message = f"names the server of line {first[port]} again: two workers would send it two requests at once"
            yield Problem(line, path, message)
        first.setdefault(port, line)


def _pool_problems(document: Document, pool: BasertPool, servers: int) -> Iterator[Problem]:
    if pool.spec.replicas != servers:
        path: Path = ("spec", "replicas")
        found = f"should be {servers}, as all workers of this pool are attached servers, found {pool.spec.replicas}"
        yield Problem(document.line_of(path), path, found)
    for path in ONLY_FOR_OWN_PROCESSES:
        if document.at(path) is not None:
            message = "should not be set: the servers of this pool are attached, and something else starts them"
            yield Problem(document.line_of(path), path, message)


def _missing_commands(document: Document, entries: Sequence[AttachSpec], own: Sequence[int]) -> Iterator[Problem]:
    for position in own:
        if entries[position].restart_command is None:
            path: Path = ("spec", "attach", position)
            message = (
                "needs restartCommand: under isolation.requireSlots: false nothing else tells when it may be used again"
            )
            yield Problem(document.line_of(path), path, message)
