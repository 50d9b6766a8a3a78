"""How a model writes a tool call into its text, and how such a call is read.

Two dialects are known, each named for the family that made it common. Both put a call between `<tool_call>` and
`</tool_call>`; what is between is one JSON object (Hermes, Qwen2.5, Qwen3) or a function with its parameters in tags
(Qwen3-Coder, Qwen3.6). Where a call begins and ends in a growing text is for `spoken_answer`.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import Any

import msgspec

from basert_fleet.engine.toolcalls import Call, ToolSet

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

NO_ARGUMENTS = "{}"
_PYTHON_WORDS = {"True": ("boolean", "true"), "False": ("boolean", "false"), "None": ("null", "null")}
"""Chat templates print values of earlier calls as Python does, and models repeat what they saw."""

_JSON_CALL = re.compile(r"""\{\s*\\?["'](name|arguments)\\?["']\s*:""")
"""How a template shows a JSON call to its model, whose source may hold the quotes escaped."""
_NAME_IN_JSON = re.compile(r'"name"\s*:\s*"([^"\\]{1,256})"')
_FUNCTION = re.compile(r"<function=([^>\n]{1,256})>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,256})>\n?")
_PARAMETER_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_END = re.compile(r"\s*</function>")
"""A client can have a model write anything: none of these looks at one character more than a bounded number of times.
So what is searched for begins with no white space, and names have a length."""


class Dialect(Enum):
    """A way to write a call."""

    HERMES = auto()
    """`{"name": …, "arguments": {…}}`."""
    QWEN = auto()
    """`<function=NAME><parameter=P>…</parameter></function>`; values are text, typed by the tool's schema."""


def dialect_of(template: str) -> Dialect | None:
    """Return the dialect that a chat template teaches its model; None if it teaches none that can be read here."""
    if CALL_OPEN not in template:
        return None
    if "<function=" in template and "<parameter=" in template:
        return Dialect.QWEN
    return Dialect.HERMES if _JSON_CALL.search(template) else None


def read_call(dialect: Dialect, body: str, tools: ToolSet) -> Call | None:
    """Return the call between the tags, its arguments as JSON text; None if it is not well-formed."""
    return _read_json(body) if dialect is Dialect.HERMES else _read_function(body, tools)


def broken_call(dialect: Dialect, body: str) -> Call | None:
    """Return a closed but malformed call as far as it can be named, its arguments as they stand; None: it has no name.

    Its arguments are no JSON object, so that a client's library fails on them and the judge finds them.
    """
    found = (_NAME_IN_JSON if dialect is Dialect.HERMES else _FUNCTION).search(body)
    return None if found is None else Call(found[1], body.strip())


class _JsonCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(NO_ARGUMENTS.encode())


def _read_json(body: str) -> Call | None:
    try:
        call = msgspec.json.decode(body.encode("utf-8", "surrogatepass"), type=_JsonCall)
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if isinstance(arguments, str):  # some models quote the object once more
        return Call(call.name, arguments)
    return Call(call.name, bytes(call.arguments).decode()) if isinstance(arguments, dict) else None


def _read_function(body: str, tools: ToolSet) -> Call | None:
    body = body.strip()
    function = _FUNCTION.match(body)
    if function is None:
        return None
    name, rest = function[1].strip(), function.end()
    types = _types_of(tools.schemas.get(name))
    arguments: dict[str, str] = {}
    while (parameter := _PARAMETER.match(body, rest)) is not None:
        end = _PARAMETER_END.search(body, parameter.end())
        if end is None:
            return None
        key = parameter[1].strip()
        arguments[key] = _as_json(body[parameter.end() : end.start()], types.get(key, frozenset()))
        rest = end.end()
    if _FUNCTION_END.fullmatch(body, rest) is None:
        return None
    members = (f"{_quoted(key)}:{value}" for key, value in arguments.items())
    return Call(name, "{" + ",".join(members) + "}")


def _as_json(value: str, types: frozenset[str]) -> str:
    """Return a parameter's text as JSON: a string where the schema wants one, else the JSON that it may be."""
    if types == {"string"}:
        return _quoted(value)
    wanted, word = _PYTHON_WORDS.get(value.strip(), ("", ""))
    if wanted in types:
        return word
    try:
        decoded = msgspec.json.decode(value.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _quoted(value)
    if "string" in types and _type_of(decoded).isdisjoint(types):
        return _quoted(value)
    return value.strip()


def _types_of(schema: bytes | None) -> dict[str, frozenset[str]]:
    """Return the JSON types that a function's schema allows each of its parameters, as far as it names them."""
    try:
        properties = msgspec.json.decode(schema or b"null", type=_Schema | None)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {} if properties is None else {name: _named_types(inner) for name, inner in properties.properties.items()}


class _Schema(msgspec.Struct):
    properties: dict[str, Any] = {}


def _named_types(schema: Any) -> frozenset[str]:
    match schema:
        case {"type": str(name)}:
            return frozenset({name})
        case {"type": [*names]}:
            return frozenset(name for name in names if isinstance(name, str))
        case {"enum": [*values]}:
            return frozenset().union(*map(_type_of, values))
        case {"const": value}:
            return _type_of(value)
        case {"anyOf": [*options]} | {"oneOf": [*options]}:
            return frozenset().union(*map(_named_types, options))
        case _:
            return frozenset()


def _type_of(value: Any) -> frozenset[str]:
    """Return the names by which a JSON Schema may allow this value."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
