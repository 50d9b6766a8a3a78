"""A fleet file to its pools and attached servers, or to everything that is wrong with it at once.

The schema is `core.api`, the words are those of `core.documents`; what is added here is that a file holds many pools,
which share one name space, and for a fleet of one machine at most one Standalone document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from basert_fleet.cli.attach_rules import attach_problems
from basert_fleet.core.api import ApiModel, AttachSpec, BasertPool, Standalone
from basert_fleet.core.documents import DocumentRefused, FileRefused, quoted, read_model
from basert_fleet.core.yaml_source import Document, Problem, YamlRefused, read_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from basert_fleet.core.yaml_source import Path

POOL, STANDALONE = "BasertPool", "Standalone"
ONLY_UP = ": servers are attached by `basert-fleet up` only, on the machine they run on"


class FleetFileRefused(FileRefused):
    """The fleet file cannot be used; nothing of it was applied."""

    code = "fleet_file_refused"


@dataclass(frozen=True, slots=True)
class FleetFile:
    """What a fleet file asks for."""

    pools: tuple[BasertPool, ...]
    """In the order of the file."""
    attach: tuple[AttachSpec, ...] = ()
    """Servers that something else runs, in the order of the file."""


def read_pools(content: bytes, name: str) -> tuple[BasertPool, ...]:
    """Return the pools of a file for a fleet of many machines; `name` is what messages call it.

    Raises:
        FleetFileRefused: anything is wrong with it; tells all of it, in the order of the lines.
    """
    return _read(content, name, {POOL: BasertPool}).pools


def read_fleet_file(content: bytes, name: str) -> FleetFile:
    """Return what a file for a fleet of one machine asks for; `name` is what messages call it.

    Raises:
        FleetFileRefused: anything is wrong with it; tells all of it, in the order of the lines.
    """
    return _read(content, name, {POOL: BasertPool, STANDALONE: Standalone})


def _read(content: bytes, name: str, kinds: Mapping[str, type[ApiModel]]) -> FleetFile:
    try:
        documents = read_documents(content)
    except YamlRefused as refused:
        raise FleetFileRefused(name, refused.problems) from refused
    if not documents:
        raise FleetFileRefused(name, [Problem(1, (), f"empty: it should hold at least one document of kind {POOL}")])
    problems: list[Problem] = []
    pools: list[tuple[Document, BasertPool]] = []
    others: list[tuple[Document, Standalone]] = []
    for document in documents:
        try:
            match _model(document, kinds):
                case BasertPool() as pool:
                    pools.append((document, pool))
                case Standalone() as standalone:
                    others.append((document, standalone))
        except DocumentRefused as refused:
            problems += refused.problems
    of_pools = [document for document in documents if document.at(("kind",)) != STANDALONE]
    problems += _repeated("pool", [(document, ("metadata", "name")) for document in of_pools])
    problems += _repeated("model name", [(document, path) for document in of_pools for path in _model_names(document)])
    problems += _second(others)
    if not problems:  # else it would be told of pools that are there, and only wrong
        for document, standalone in others:
            by_name = {pool.metadata.name: (where, pool) for where, pool in pools}
            problems += attach_problems(document, standalone.spec.attach, by_name)
    if problems:
        raise FleetFileRefused(name, problems)
    attach = tuple(entry for _, standalone in others for entry in standalone.spec.attach)
    return FleetFile(tuple(pool for _, pool in pools), attach)


def _model(document: Document, kinds: Mapping[str, type[ApiModel]]) -> ApiModel:
    if not isinstance(document.value, dict):
        raise DocumentRefused([Problem(document.line, (), f"should be a {POOL}, found {quoted(document.value)}")])
    kind = document.value.get("kind")
    if kind is not None and kind not in tuple(kinds):
        why = ONLY_UP if kind == STANDALONE else ""
        problem = Problem(document.line_of(("kind",)), ("kind",), f"should be {POOL}, found {quoted(kind)}{why}")
        raise DocumentRefused([problem])
    return read_model(BasertPool if kind is None else kinds[kind], document, is_environment)


def _second(others: Sequence[tuple[Document, Standalone]]) -> Iterator[Problem]:
    for document, _ in others[1:]:
        path = ("kind",)
        yield Problem(document.line_of(path), path, f"one {STANDALONE} is enough; line {others[0][0].line} has one")


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
