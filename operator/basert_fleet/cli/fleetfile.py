"""A fleet file to its pools, or to everything that is wrong with it at once.

The schema is `core.api`; what is added here is for a person with an editor: the line, the path of the field, what was
found, what is allowed, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from basert_fleet.cli.yaml_source import Document, Problem, YamlRefused, read_documents
from basert_fleet.core.api import DNS_LABEL, ENV_NAME, PRINTABLE, BasertPool
from basert_fleet.core.errors import FleetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic_core import ErrorDetails

    from basert_fleet.cli.yaml_source import Path

KIND = "BasertPool"
LONGEST_QUOTE = 60
"""Characters of a wrong value that a message repeats; chosen to fit on a line with the rest."""

MOST_LINES = 50
"""Problems that a message tells one by one; chosen: more do not help, a file in a wrong format has thousands."""

WORDS_OF_PATTERN: Mapping[str, str] = MappingProxyType(
    {
        DNS_LABEL: "should be lower-case letters, digits and `-`, with a letter or digit at both ends",
        ENV_NAME: "should be letters, digits and `_`, and not start with a digit",
        PRINTABLE: "should be on one line, without control characters",
    }
)
WORDS_OF_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "model_type": "should be a mapping of fields",
        "dict_type": "should be a mapping",
        "tuple_type": "should be a list",
        "int_type": "should be a whole number",
        "bool_type": "should be true or false",
        "string_type": "should be a string",
    }
)
"""What pydantic tells in the words of Python, in those of YAML."""


class FleetFileRefused(FleetError):
    """The fleet file cannot be used; nothing of it was applied."""

    code = "fleet_file_refused"

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"{name}:{problem.line}: {_told(problem)}" for problem in problems[:MOST_LINES]]
        if len(problems) > MOST_LINES:
            lines.append(f"... and {len(problems) - MOST_LINES} more")
        super().__init__("\n".join([f"{name} is refused, {count}:", *lines]))
        self.problems = tuple(problems)


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
        except _DocumentRefused as refused:
            problems += refused.problems
    problems += _repeated("pool", [(document, ("metadata", "name")) for document in documents])
    problems += _repeated("model name", [(document, path) for document in documents for path in _model_names(document)])
    if problems:
        raise FleetFileRefused(name, sorted(problems, key=lambda problem: problem.line))
    return tuple(pools)


class _DocumentRefused(Exception):
    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems


def _pool(document: Document) -> BasertPool:
    if not isinstance(document.value, dict):
        raise _DocumentRefused([Problem(document.line, (), f"should be a {KIND}, found {_quoted(document.value)}")])
    kind = document.value.get("kind")
    if kind is not None and kind != KIND:
        problem = Problem(document.line_of(("kind",)), ("kind",), f"should be {KIND}, found {_quoted(kind)}")
        raise _DocumentRefused([problem])
    try:
        return BasertPool.model_validate(document.value, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise _DocumentRefused([_problem(document, detail) for detail in details]) from error


def _problem(document: Document, detail: ErrorDetails) -> Problem:
    path = detail["loc"]
    return Problem(document.line_of(path), path, _message(path, detail))


def _message(path: Path, detail: ErrorDetails) -> str:
    if detail["type"] == "extra_forbidden":
        return f"unknown field; {_suggestion(str(path[-1]), _fields_at(path[:-1]))}"
    if detail["type"] == "missing":
        return "missing"
    allowed = WORDS_OF_TYPE.get(detail["type"]) or WORDS_OF_PATTERN.get(detail.get("ctx", {}).get("pattern", ""))
    allowed = allowed or detail["msg"]
    for subject in ("Input ", "String ", "Value ", "Tuple "):
        allowed = allowed.removeprefix(subject)
    if allowed.startswith("should not "):  # it names the offender itself
        return allowed
    found = _kind_of(detail["input"]) if _is_private(path) else _quoted(detail["input"])
    return f"{allowed}, found {found}"


def _suggestion(key: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(key.replace("_", "").lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    for name in known:
        if nearest and name.lower() == nearest[0]:
            return f"did you mean {name}?"
    return f"known here: {', '.join(known)}"


def _fields_at(path: Path) -> list[str]:
    """Return the fields that the schema knows at a place that an unknown one was found at."""
    schema = _schema()
    node: Mapping[str, Any] = schema
    for step in path:
        node = node.get("items", {}) if isinstance(step, int) else node["properties"][step]
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return list(node["properties"])


@cache
def _schema() -> Mapping[str, Any]:
    return MappingProxyType(BasertPool.model_json_schema(by_alias=True))


def _is_private(path: Path) -> bool:
    """Values of environment variables may be secrets: no message repeats them."""
    return path[:3] == ("spec", "server", "env")


def _quoted(value: object) -> str:
    if isinstance(value, (dict, list)):
        return _kind_of(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


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
            yield Problem(line, path, f"the {what} {_quoted(name)} is taken by line {first_line}")


def _told(problem: Problem) -> str:
    return f"{path_text(problem.path)}: {problem.message}" if problem.path else problem.message


def path_text(path: Path) -> str:
    """Write a path as people do: `spec.server.env[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")
