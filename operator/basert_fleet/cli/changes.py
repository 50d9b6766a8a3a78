"""What a person changed in a fleet file, pool by pool and field by field; told when it is applied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from basert_fleet.cli.fleetfile import is_environment
from basert_fleet.core.api import BasertPool, format_quantity
from basert_fleet.core.documents import path_text

Path: TypeAlias = tuple[str, ...]

BYTES = (("spec", "resources", "memory"), ("spec", "queue", "maxBytes"))
LONGEST_VALUE = 60
"""Characters of a value that are told; chosen so that both fit on a terminal's line or two."""


def changes(before: Sequence[BasertPool], after: Sequence[BasertPool]) -> tuple[str, ...]:
    """Return a line for each difference; none if the pools are the same."""
    old = {pool.metadata.name: pool for pool in before}
    new = {pool.metadata.name: pool for pool in after}
    lines = [line for name in new if name in old for line in _of_pool(old[name], new[name])]
    lines += [f"new: {described(pool)}" for name, pool in new.items() if name not in old]
    lines += [f"removed: {name}" for name in old if name not in new]
    if not lines and tuple(before) != tuple(after):
        lines.append("the order of the pools")
    return tuple(lines)


def described(pool: BasertPool) -> str:
    """Say in a few words what a pool asks for."""
    return f"{pool.metadata.name} × {pool.spec.replicas} ({pool.spec.model.name})"


def _of_pool(before: BasertPool, after: BasertPool) -> Iterator[str]:
    old, new = (dict(_fields((), pool.model_dump(mode="json", by_alias=True))) for pool in (before, after))
    for path in dict.fromkeys((*old, *new)):
        if old.get(path) != new.get(path):
            told = "changed" if is_environment(path) else f"{_told(path, old)} -> {_told(path, new)}"
            yield f"{before.metadata.name}: {path_text(path)} {told}"


def _fields(path: Path, value: object) -> Iterator[tuple[Path, object]]:
    """Take mappings apart; a list is one value."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _fields((*path, key), inner)
    else:
        yield path, value


def _told(path: Path, fields: Mapping[Path, object]) -> str:
    value = fields.get(path)
    if value is None:
        return "none"
    if path in BYTES and isinstance(value, int):
        return format_quantity(value)
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
