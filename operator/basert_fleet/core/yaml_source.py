"""YAML text to plain values, with the line each of them stands on, and no way for a text to cost much.

Decides nothing about what the values mean. Refused here: what is no YAML, a key that is given twice (parsers would
silently take one of them), keys that are no strings, merge keys, tags that a value would not have by itself (`!!str`
may make a string of anything), numbers beyond 64 bits, and texts that are too large, nested too deep or blown up by
aliases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_FILE_BYTES = 1024**2
"""Chosen: room for a thousand pools, and parsed within seconds."""
DEEPEST_NESTING = 32
"""Chosen: the schema needs 6 levels."""
MOST_VALUES = 100_000
"""Chosen: what a file of the largest size may hold without aliases; with them it bounds what they expand to."""

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's parser where PyYAML was built with it: ten times as fast, same marks."""

LARGEST_NUMBER = 2**63 - 1
"""What JSON readers and the Kubernetes API take; far larger ones cannot even be written out in a message."""

STANDARD_TAGS = "tag:yaml.org,2002:"
PLAIN_TAGS = (f"{STANDARD_TAGS}map", f"{STANDARD_TAGS}seq")
STRING_TAG = f"{STANDARD_TAGS}str"

Path: TypeAlias = tuple[str | int, ...]
"""The way to a value within its document: keys and list positions."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    line: int
    """Counted from 1."""
    path: Path
    """Empty when it is not about one field."""
    message: str


class YamlRefused(Exception):
    """A text that cannot be read as documents; `problems` says why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems[0].message)
        self.problems = problems


@dataclass(slots=True)
class Document:
    """One document: its value, and where each part of it is written."""

    line: int
    value: object = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line_of(self, path: Path) -> int:
        """Return the line of a value, or of the nearest one around it when it is not written at all."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, self.line)

    def at(self, path: Path) -> object:
        """Return the value at a path, or None if nothing is there."""
        value = self.value
        for step in path:
            match value, step:
                case dict(), str():
                    value = value.get(step)
                case list(), int() if step < len(value):
                    value = value[step]
                case _:
                    return None
        return value


def read_documents(content: bytes) -> list[Document]:
    """Return the documents of a YAML text; empty ones are left out.

    Raises:
        YamlRefused: the text is no YAML, or not the plain kind that is read here.
    """
    if len(content) > LARGEST_FILE_BYTES:
        raise _refused(1, f"the file has {len(content)} bytes; at most {LARGEST_FILE_BYTES} are read")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refused(line, f"not UTF-8: found the byte 0x{content[error.start]:02x}") from error
    try:
        _check_nesting(text)
        nodes = list(yaml.compose_all(text, Loader=Loader))
    except yaml.YAMLError as error:
        raise _refused(_line_of_error(error, text), f"not valid YAML: {_words_of_error(error)}") from error
    builder = _Builder()
    documents = [builder.document(node) for node in nodes]
    if builder.problems:
        raise YamlRefused(builder.problems)
    return [document for document in documents if document.value is not None]


def _refused(line: int, message: str) -> YamlRefused:
    return YamlRefused([Problem(line, (), message)])


def _check_nesting(text: str) -> None:
    """Look at the flat events first: composing is recursive."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST_NESTING:
                raise _refused(_line(event), f"nested deeper than {DEEPEST_NESTING} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(marked: yaml.Event | yaml.Node) -> int:
    mark = marked.start_mark
    return 1 if mark is None else int(mark.line) + 1


def _line_of_error(error: yaml.YAMLError, text: str) -> int:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return int(error.problem_mark.line) + 1
    position = getattr(error, "position", 0)  # of a character that YAML does not allow
    return text.count("\n", 0, position) + 1


def _words_of_error(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return ", ".join(part for part in (error.context, error.problem) if part)
    return str(getattr(error, "reason", error))


def _short(tag: str) -> str:
    """Write a tag as people do: `!!bool`."""
    return f"!!{tag.removeprefix(STANDARD_TAGS)}" if tag.startswith(STANDARD_TAGS) else tag


class _Builder:
    """Turns composed nodes into plain values, and collects what is wrong on the way."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._constructor = yaml.SafeLoader("")
        self._values = 0

    def document(self, node: yaml.Node) -> Document:
        """Build one document."""
        document = Document(_line(node))
        document.value = self._value(node, (), document, frozenset())
        return document

    def _value(self, node: yaml.Node, path: Path, document: Document, around: frozenset[int]) -> object:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _refused(_line(node), f"more than {MOST_VALUES} values, aliases counted each time they are used")
        if id(node) in around:
            self._problem(node, path, "an alias that contains itself")
            return None
        document.lines.setdefault(path, _line(node))
        around |= {id(node)}
        if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN_TAGS:
            self._problem(node, path, f"the tag {_short(node.tag)} is not read")
            return None
        if isinstance(node, yaml.MappingNode):
            return {
                key: self._value(value, (*path, key), document, around)
                for key, value in self._entries(node, path, document)
            }
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, at), document, around) for at, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _entries(self, node: yaml.MappingNode, path: Path, document: Document) -> Iterator[tuple[str, yaml.Node]]:
        first: dict[str, int] = {}
        for key_node, value in node.value:
            key = key_node.value
            if key_node.tag == f"{STANDARD_TAGS}merge":
                self._problem(key_node, path, "merge keys (<<) are not read; write the fields out")
            elif key_node.tag != STRING_TAG or not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, "a key that is not a string; put it in quotes")
            elif key in first:
                self._problem(key_node, (*path, key), f"given twice, first on line {first[key]}")
            else:
                first[key] = document.lines[*path, key] = _line(key_node)
                yield key, value

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        if node.tag not in (STRING_TAG, self._own_tag(node)):  # PyYAML's constructors trust a tag, and fail in any way
            self._problem(node, path, f"the tag {_short(node.tag)} does not fit this value; leave it out")
            return None
        try:
            value: object = self._constructor.construct_object(node)
        # ValueError: a date such as 2026-99-99. OverflowError: a number to base 60 (1:30.0) beyond every float.
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            words = _words_of_error(error) if isinstance(error, yaml.YAMLError) else str(error)
            self._problem(node, path, f"cannot be read: {words}; put it in quotes if it is text")
            return None
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            self._problem(node, path, "a number beyond 64 bits; put it in quotes if it is text")
            return None
        return value

    def _own_tag(self, node: yaml.Node) -> str:
        """Return the tag that the text has if none is written before it and no quotes are around it."""
        tag: str = self._constructor.resolve(  # type: ignore[no-untyped-call] # PyYAML's stubs leave it out
            yaml.ScalarNode, node.value, (True, False)
        )
        return tag

    def _problem(self, node: yaml.Node, path: Path, message: str) -> None:
        self.problems.append(Problem(_line(node), path, message))
