"""What is wrong with the tool calls of a response, given the tools of its request.

Deltas are put together as the clients' libraries do it, and judged by what comes out (C38): a stream is only suspect if
no library could make sound calls of it. A finding here never blames a worker for good: the request or the model may as
well be its cause, which a second run on another worker tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

import msgspec

from basert_fleet.core.verdict import Reason
from basert_fleet.engine import schemas

MAX_VALIDATED_CALLS = 8
"""Chosen: so many calls of one answer are held against their schema, the others must only be JSON objects. It bounds
how long one answer can block the event loop, as `schemas.MAX_WORK` does for one call."""


class Choice(Enum):
    """What the request's tool_choice leaves to the model."""

    AUTO = auto()
    NONE = auto()
    REQUIRED = auto()
    """At least one call, of any tool."""


@dataclass(frozen=True, slots=True)
class Call:
    """One whole tool call; None stands for what the response did not give."""

    name: str | None
    arguments: str | None

    @property
    def encoded_arguments(self) -> bytes:
        """The arguments as JSON text; no JSON where there are none."""
        return (self.arguments or "").encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Fragment:
    """What one delta tells of one call."""

    index: int | None
    id: str | None
    name: str | None
    arguments: str | None


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools that one request allows, and how it wants them used."""

    schemas: Mapping[str, bytes | None]
    """By function name, the JSON Schema of its arguments; None if it gives none."""
    choice: Choice = Choice.AUTO

    @classmethod
    def read(cls, fields: Mapping[str, msgspec.Raw]) -> ToolSet:
        """Read `tools` and `tool_choice` (or the older `functions` and `function_call`) of a request's members.

        What is malformed is left for the engine to refuse; a tool that cannot be read is not among the tools.
        """
        tools = [_decoded(tool, _Tool) for tool in _decoded(fields.get("tools"), list[msgspec.Raw]) or ()]
        functions = [tool.function for tool in tools if tool is not None]
        older = [_decoded(item, _Function) for item in _decoded(fields.get("functions"), list[msgspec.Raw]) or ()]
        by_name = {function.name: _schema_of(function) for function in (*functions, *older) if function is not None}
        if not by_name:
            return NO_TOOLS
        wish = _decoded(fields.get("tool_choice", fields.get("function_call")), Any)
        name = _named(wish)
        if name is not None:  # one tool by name is as good as a set of this one
            return cls(MappingProxyType({name: by_name.get(name)}), Choice.REQUIRED)
        return cls(MappingProxyType(by_name), _CHOICES.get(wish, Choice.AUTO) if isinstance(wish, str) else Choice.AUTO)

    def __bool__(self) -> bool:
        return bool(self.schemas)

    def problem(self, calls: Sequence[Call], finish_reason: str | None) -> Reason | None:
        """Say what is wrong with the calls of one finished answer, if anything."""
        if not calls:
            return Reason.TOOL_CALL_MISSING if self._expects_call(finish_reason) else None
        for place, call in enumerate(calls):
            problem = self._problem_of_form(call)
            if problem is None and place < MAX_VALIDATED_CALLS:
                problem = self._problem_of_content(call)
            if problem is not None:
                return problem
        return None

    def _expects_call(self, finish_reason: str | None) -> bool:
        if finish_reason in CALLING:
            return True
        return bool(self) and (
            self.choice is Choice.REQUIRED or (finish_reason == "length" and self.choice is not Choice.NONE)
        )

    def _problem_of_form(self, call: Call) -> Reason | None:
        if call.name not in self.schemas:
            return Reason.TOOL_NAME_UNKNOWN
        return None if _is_object(call.encoded_arguments) else Reason.TOOL_ARGUMENTS_INVALID

    def _problem_of_content(self, call: Call) -> Reason | None:
        schema = self.schemas.get(call.name or "")
        if schema is not None and schemas.violates(schema, call.encoded_arguments):
            return Reason.TOOL_ARGUMENTS_INVALID
        return None


NO_TOOLS = ToolSet(MappingProxyType({}))
CALLING = frozenset({"tool_calls", "function_call"})
"""finish_reasons that announce a call."""
_CHOICES = {"none": Choice.NONE, "required": Choice.REQUIRED, "any": Choice.REQUIRED}


@dataclass(slots=True)
class CallDeltas:
    """The tool-call deltas of one streamed answer, in order."""

    fragments: list[Fragment] = field(default_factory=list)
    unreadable: bool = False
    """Whether some delta had a shape that no library takes."""

    def add(self, delta: Any) -> None:
        """Take the value of one delta's `tool_calls`."""
        if not isinstance(delta, list):
            self.unreadable = True
            return
        for entry in delta:
            try:
                self.fragments.append(_fragment(msgspec.convert(entry, _Delta)))
            except msgspec.ValidationError:
                self.unreadable = True

    def add_whole(self, calls: Any) -> None:
        """Take the `tool_calls` of a whole message, whose place in the list is their index."""
        if isinstance(calls, list):
            calls = [
                entry | {"index": place} if isinstance(entry, dict) else entry for place, entry in enumerate(calls)
            ]
        self.add(calls)

    def add_function_call(self, delta: Any) -> None:
        """Take the value of one delta's older `function_call`: all of them are the same call."""
        self.add([{"index": 0, "function": delta}])

    def problem(self, tools: ToolSet, finish_reason: str | None) -> Reason | None:
        """Say what is wrong with the calls, as the library sees them that makes the most of these deltas."""
        if self.unreadable:
            return Reason.TOOL_ARGUMENTS_INVALID
        if not self.fragments:
            return tools.problem((), finish_reason)
        assemblies: list[Sequence[Call]] = []
        for assemble in (by_index_appending, by_index_replacing, by_id):
            assembled = assemble(self.fragments)
            if assembled is not None and assembled not in assemblies:
                assemblies.append(assembled)
        problems: list[Reason] = []
        for calls in assemblies:
            problem = tools.problem(calls, finish_reason)
            if problem is None:
                return None
            problems.append(problem)
        return problems[0]


def by_index_appending(fragments: Iterable[Fragment]) -> list[Call] | None:
    """Put calls together as OpenAI's Python library does: by index, names and arguments appended; None: it raises."""
    groups = _grouped_by_index(fragments)
    if groups is None:
        return None
    return [Call("".join(one.name or "" for one in group), _joined_arguments(group)) for group in groups]


def by_index_replacing(fragments: Iterable[Fragment]) -> list[Call] | None:
    """Put calls together as OpenAI's JavaScript library does: by index, a later name replaces; None: calls are lost."""
    groups = _grouped_by_index(fragments)
    return None if groups is None else [Call(_last_name(group), _joined_arguments(group)) for group in groups]


def by_id(fragments: Iterable[Fragment]) -> list[Call]:
    """Put calls together as lenient libraries do: a new id starts a call, and without an id the last one goes on."""
    groups: dict[str, list[Fragment]] = {}
    at_index: dict[int | None, str] = {}
    last = ""
    for fragment in fragments:
        last = fragment.id or at_index.get(fragment.index, last)
        at_index[fragment.index] = last
        groups.setdefault(last, []).append(fragment)
    return [Call(_last_name(group), _joined_arguments(group)) for group in groups.values()]


def _grouped_by_index(fragments: Iterable[Fragment]) -> Iterable[list[Fragment]] | None:
    groups: dict[int, list[Fragment]] = {}
    for fragment in fragments:
        if fragment.index is None:
            return None
        groups.setdefault(fragment.index, []).append(fragment)
    return groups.values()


def _last_name(group: list[Fragment]) -> str | None:
    return next((one.name for one in reversed(group) if one.name), None)


def _joined_arguments(group: list[Fragment]) -> str:
    return "".join(one.arguments or "" for one in group)


class _Function(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class _Tool(msgspec.Struct):
    function: _Function


class _FunctionDelta(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Delta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta | None = None


def _fragment(delta: _Delta) -> Fragment:
    function = delta.function or _FunctionDelta()
    return Fragment(delta.index, delta.id, function.name, function.arguments)


def _schema_of(function: _Function) -> bytes | None:
    schema = bytes(function.parameters)
    return None if schema == b"null" else schema


def _named(wish: Any) -> str | None:
    """Return the one tool that a tool_choice or function_call object asks for."""
    match wish:
        case {"function": {"name": str(name)}} | {"name": str(name)}:
            return name
        case _:
            return None


def _decoded(raw: msgspec.Raw | None, wanted: Any) -> Any:
    """Decode one member; None if it is absent or of another shape."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is_object(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
