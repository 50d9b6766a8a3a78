"""A document of a file that a person edits to a model of ours, or to what is wrong with it in that person's words.

The schema is a pydantic model's; what is added here is for a person with an editor: the line, the path of the field,
what was found, what is allowed, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from basert_fleet.core.api import DNS_LABEL, ENV_NAME, PRINTABLE
from basert_fleet.core.errors import FleetError
from basert_fleet.core.yaml_source import Document, Path, Problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

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
        "float_type": "should be a number",
        "bool_type": "should be true or false",
        "string_type": "should be a string",
    }
)
"""What pydantic tells in the words of Python, in those of YAML."""

Model = TypeVar("Model", bound=BaseModel)


class FileRefused(FleetError):
    """A file cannot be used; nothing of it was applied. Tells every problem as `file:line: field: message`."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        """Tell the problems in the order of their lines; `name` is what messages call the file."""
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"{name}:{problem.line}: {_told(problem)}" for problem in self.problems[:MOST_LINES]]
        if len(problems) > MOST_LINES:
            lines.append(f"... and {len(problems) - MOST_LINES} more")
        super().__init__("\n".join([f"{name} is refused, {count}:", *lines]))


class DocumentRefused(Exception):
    """One document of a file is no such model; `problems` says why. Files are refused as a whole, by `FileRefused`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)


def read_model(model: type[Model], document: Document, is_private: Callable[[Path], bool]) -> Model:
    """Return what the document says; messages never repeat the values of private paths, which may be secrets.

    Raises:
        DocumentRefused: it does not fit the model.
    """
    try:
        return model.model_validate(document.value, by_alias=True, by_name=False)
    except ValidationError as error:
        details = _without_consequences(error.errors(include_url=False))
        problems = [
            Problem(document.line_of(detail["loc"]), detail["loc"], _message(model, detail, is_private))
            for detail in details
        ]
        raise DocumentRefused(problems) from None  # pydantic's own text repeats every value


def quoted(value: object) -> str:
    """Write a value as messages repeat it: on one line, and not all of a long one."""
    if isinstance(value, (dict, list)):
        return _kind_of(value)
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"


def path_text(path: Path) -> str:
    """Write a path as people do: `spec.server.env[0].name`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _without_consequences(details: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out that a list is too short where its entries are wrong: pydantic counts only the right ones."""
    paths = [detail["loc"] for detail in details]
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(len(path) > len(detail["loc"]) and path[: len(detail["loc"])] == detail["loc"] for path in paths)
    ]


def _message(model: type[BaseModel], detail: ErrorDetails, is_private: Callable[[Path], bool]) -> str:
    path = detail["loc"]
    if detail["type"] == "extra_forbidden":
        return f"unknown field; {_suggestion(str(path[-1]), _fields_at(model, path[:-1]))}"
    if detail["type"] == "missing":
        return "missing"
    allowed = WORDS_OF_TYPE.get(detail["type"]) or WORDS_OF_PATTERN.get(detail.get("ctx", {}).get("pattern", ""))
    allowed = allowed or detail["msg"]
    for subject in ("Input ", "String ", "Value ", "Tuple "):
        allowed = allowed.removeprefix(subject)
    allowed = allowed.replace(" after validation", "")
    if allowed.startswith("should not "):  # it names the offender itself
        return allowed
    found = _kind_of(detail["input"]) if is_private(path) else quoted(detail["input"])
    return f"{allowed}, found {found}"


def _suggestion(key: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(key.replace("_", "").lower(), [name.lower() for name in known], n=1, cutoff=0.6)
    for name in known:
        if nearest and name.lower() == nearest[0]:
            return f"did you mean {name}?"
    return f"known here: {', '.join(known)}"


def _fields_at(model: type[BaseModel], path: Path) -> list[str]:
    """Return the fields that the schema knows at a place that an unknown one was found at."""
    schema = _schema(model)
    node: Mapping[str, Any] = schema
    for step in path:
        node = node.get("items", {}) if isinstance(step, int) else node["properties"][step]
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return list(node["properties"])


@cache
def _schema(model: type[BaseModel]) -> Mapping[str, Any]:
    return MappingProxyType(model.model_json_schema(by_alias=True))


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


def _told(problem: Problem) -> str:
    return f"{path_text(problem.path)}: {problem.message}" if problem.path else problem.message
