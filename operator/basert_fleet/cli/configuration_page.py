"""docs/configuration.md, written from the schema.

`python -m basert_fleet.cli.configuration_page > docs/configuration.md` brings it up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from pydantic import BaseModel

from basert_fleet.core.api import BasertPool, Standalone, format_quantity

Schema: TypeAlias = Mapping[str, Any]

OPENING = """\
# Configuration

A fleet file holds one or more BasertPool documents, separated by `---`; [quickstart.md](quickstart.md) has one and
`examples/` has more. An unknown field is refused, naming the nearest known one; a wrong value with its file and line.
While the fleet runs, a change of the file takes effect within a few seconds; a wrong file is told and changes nothing.

This page is generated from `core/api.py`, the one place where a setting is defined; a test fails when it is stale.
"""
OF_ONE_MACHINE = """
# Standalone

A file for `basert-fleet up` may also hold one document of this kind; [attach.md](attach.md) tells what it is for.
"""


def configuration_page() -> str:
    """Return the whole page."""
    return OPENING + _sections(BasertPool) + OF_ONE_MACHINE + _sections(Standalone)


def _sections(model: type[BaseModel]) -> str:
    schema = model.model_json_schema(by_alias=True)
    return "".join(_section(schema, schema, ""))


def _section(root: Schema, model: Schema, path: str) -> Iterator[str]:
    """Tell one model's own fields as a table, then each model within it as a section of its own."""
    required = model.get("required", ())
    inner: list[tuple[str, Schema]] = []
    rows: list[str] = []
    for name, field in model["properties"].items():
        target = _target(root, field)
        item = _target(root, target.get("items", {}))
        where = f"{path}{name}"
        if "properties" in target:
            inner.append((f"{where}.", target))
            continue
        rows.append(_row(where, field, target, is_required=name in required))
        if "properties" in item:
            inner.append((f"{where}[].", item))
    if rows:
        title = f"`{path.rstrip('.')}`" if path else "The document"
        yield f"\n## {title}\n\n{_one_line(model['description'])}\n\n"
        yield "| field | value | default | what it does |\n|---|---|---|---|\n"
        yield from rows
    for where, within in inner:
        yield from _section(root, within, where)


def _row(where: str, field: Schema, target: Schema, *, is_required: bool) -> str:
    default = "required" if is_required else _default(field, target)
    return f"| `{where}` | {_value(where, target)} | {default} | {_one_line(field['description'])} |\n"


def _target(root: Schema, field: Schema) -> Schema:
    """Follow a reference, and leave out that a field may be missing."""
    if "$ref" in field:
        found: Schema = root["$defs"][field["$ref"].rpartition("/")[2]]
        return found
    options = [option for option in field.get("anyOf", ()) if option.get("type") != "null"]
    return _target(root, options[0]) if len(options) == 1 else field


def _value(where: str, target: Schema) -> str:
    """Say in words what may be written."""
    if "const" in target:
        return f"`{target['const']}`"
    if "enum" in target:
        return ", ".join(f"`{word}`" for word in target["enum"])
    if _is_quantity(target):
        return f"bytes, such as `24Gi`{_quantity_bounds(where)}"
    match target["type"]:
        case "integer":
            return f"whole number, {target['minimum']} to {target['maximum']}"
        case "boolean":
            return "`true`, `false`"
        case "array":
            return f"list{_length(target, 'Items')}"
        case "object":
            return "mapping of strings"
        case kind:
            return f"{kind}{_length(target, 'Length')}"


def _quantity_bounds(where: str) -> str:
    """Return the bounds of a field that JSON Schema cannot bound, for it may be a string."""
    model: Any = BasertPool
    constraints: list[Any] = []
    for part in where.split("."):
        field = next(info for name, info in model.model_fields.items() if part in (name, info.alias))
        model, constraints = field.annotation, field.metadata
    found = {name: getattr(rule, name) for rule in constraints for name in ("gt", "ge", "le") if hasattr(rule, name)}
    if "ge" in found:
        return f", {format_quantity(found['ge'])} to {format_quantity(found['le'])}"
    return f", more than {found['gt']}"


def _length(target: Schema, unit: str) -> str:
    most = target.get(f"max{unit}")
    return "" if most is None else f", at most {most} {'entries' if unit == 'Items' else 'characters'}"


def _default(field: Schema, target: Schema) -> str:
    value = field.get("default")
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    return f"`{format_quantity(value) if _is_quantity(target) else value}`"


def _is_quantity(target: Schema) -> bool:
    return "x-kubernetes-int-or-string" in target


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(configuration_page())
