"""A fleet file to its pools, or to everything that is wrong with it at once.

The schema is `core.api`, the words are those of `core.documents`; what is added here is that a file holds many pools,
which share one name space.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from basert_fleet.core.api import BasertPool
from basert_fleet.core.documents import DocumentRefused, FileRefused, quoted, read_model
from basert_fleet.core.yaml_source import Document, Problem, YamlRefused, read_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from basert_fleet.core.yaml_source import Path

KIND = "BasertPool"


class FleetFileRefused(FileRefused):
    """The fleet file cannot be used; nothing of it was applied."""

    code = "fleet_file_refused"


def read_pools(content: bytes, name: str) -> tuple[BasertPool, ...]:
    """Return the pools of a fleet file, in their order; `name` is what messages call it.

    Raises:
        FleetFileRefused: anything is wrong with it; tells all of it, in the order of the lines.
    """
    try:
        documents = read_documents(content)
    except YamlRefused as refused:
        raise FleetFileRefused(name, refused.problems) from refused
    if not documents:
        raise FleetFileRefused(name, [Problem(1, (), f"empty: it should hold at least one document of kind {KIND}")])
    problems: list[Problem] = []
    pools: list[BasertPool] = []
    for document in documents:
        try:
            pools.append(_pool(document))
        except DocumentRefused as refused:
            problems += refused.problems
    problems += _repeated("pool", [(document, ("metadata", "name")) for document in documents])
    problems += _repeated("model name", [(document, path) for document in documents for path in _model_names(document)])
    if problems:
        raise FleetFileRefused(name, problems)
    return tuple(pools)


def _pool(document: Document) -> BasertPool:
    if not isinstance(document.value, dict):
        raise DocumentRefused([Problem(document.line, (), f"should be a {KIND}, found {quoted(document.value)}")])
    kind = document.value.get("kind")
    if kind is not None and kind != KIND:
        problem = Problem(document.line_of(("kind",)), ("kind",), f"should be {KIND}, found {quoted(kind)}")
        raise DocumentRefused([problem])
    return read_model(BasertPool, document, is_environment)


def is_environment(path: Path) -> bool:
    """Say whether a path is one of environment variables: their values may be secrets, and no message repeats them."""
    return path[:3] == ("spec", "server", "env")


def _model_names(document: Document) -> Iterator[Path]:
    yield "spec", "model", "name"
    aliases = document.at(("spec", "model", "aliases"))
    for position in range(len(aliases) if isinstance(aliases, list) else 0):
        yield "spec", "model", "aliases", position


def _repeated(what: str, places: Iterable[tuple[Document, Path]]) -> Iterator[Problem]:
    """Find names that two documents give; within one document the schema has looked."""
    first: dict[str, tuple[Document, int]] = {}
    for document, path in places:
        name, line = document.at(path), document.line_of(path)
        if not isinstance(name, str):
            continue
        owner, first_line = first.setdefault(name, (document, line))
        if owner is not document:
            yield Problem(line, path, f"the {what} {quoted(name)} is taken by line {first_line}")
