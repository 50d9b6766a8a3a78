"""Checking a value against a JSON Schema that a client sent: nothing is fetched, and the work is bounded beforehand.

Validation cannot be interrupted and runs on the event loop (C32), so its cost is estimated first: how many places the
schema has once its references are followed, times how many the value has. A schema that is invalid, refers elsewhere,
or costs too much is no evidence of anything.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import jsonschema_rs
import msgspec

MAX_SCHEMA_BYTES: Final = 131_072
MAX_VALUE_BYTES: Final = 1_048_576
MAX_DEPTH: Final = 64
"""Chosen: below the limits of the decoder and of the validator, above what people write."""
MAX_PLACES: Final = 10_000
"""Chosen: schema places after following references; a reference that doubles thirty times would have a billion."""
MAX_WORK: Final = 500_000
"""Chosen: places of the schema times places of the value; the worst found took 9 ms of CPU at this limit."""
MAX_PATTERNS: Final = 16
MAX_PATTERN_CHARACTERS: Final = 256
MAX_MATCHED_BYTES: Final = 65_536
"""Chosen with the two above: sixteen bad patterns over 64 KiB were measured at 13 ms, compiling included."""
PATTERN_OPTIONS: Final = jsonschema_rs.RegexOptions(size_limit=262_144, dfa_size_limit=262_144)
"""The engine that runs in linear time. It knows no look-around: a pattern that needs it makes the schema invalid."""
ELSEWHERE: Final = frozenset({"$dynamicRef", "$recursiveRef"})
"""References whose target depends on the way that led there."""


class _NoEvidence(Exception):
    """The schema will not be used."""


Schema: TypeAlias = dict[str, Any] | bool


def violates(schema: bytes, value: bytes) -> bool | None:
    """Say whether a JSON text violates a JSON Schema; None when the schema is no evidence, whatever the reason.

    The value must be well-formed JSON.
    """
    if len(schema) > MAX_SCHEMA_BYTES or len(value) > MAX_VALUE_BYTES:
        return None
    try:
        rules = msgspec.json.decode(schema, type=Schema)
        instance = msgspec.json.decode(value)
        if not _is_affordable(rules, instance, len(value)):
            return None
        validator = jsonschema_rs.validator_for(
            rules, validate_formats=False, retriever=_deny, pattern_options=PATTERN_OPTIONS
        )
        return not validator.is_valid(instance)
    except (msgspec.DecodeError, RecursionError, ValueError, jsonschema_rs.ReferencingError, _NoEvidence):
        # jsonschema_rs.ValidationError, an invalid schema's, is a ValueError
        return None


def _deny(uri: str) -> Any:
    raise ValueError(f"nothing is fetched for a client's schema: {uri}")


def _is_affordable(rules: Schema, instance: Any, value_bytes: int) -> bool:
    cost = _Cost(rules)
    places = cost.of(rules)
    if cost.patterns and value_bytes > MAX_MATCHED_BYTES:
        return False
    return places * _places(instance, MAX_WORK // places) <= MAX_WORK


def _places(value: Any, limit: int) -> int:
    """Count the values inside a value, itself included; stop soon after the limit."""
    count, rest = 0, [value]
    while rest and count <= limit:
        count += 1
        match rest.pop():
            case dict() as members:
                rest += members.values()
            case list() as items:
                rest += items
            case _:
                pass
    return count


class _Cost:
    """Counts the places of one schema with its references followed, and refuses what cannot be bounded.

    Every object is taken for a schema, also those in enums and examples: that overestimates, which is the safe side.
    """

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.patterns = 0
        self._of_reference: dict[str, int] = {}
        self._following: set[str] = set()

    def of(self, node: Any, depth: int = 0) -> int:
        """Return how many places this part of the schema has.

        Raises:
            _NoEvidence: too many, too deep, recursive, or referring elsewhere.
        """
        if depth > MAX_DEPTH:
            raise _NoEvidence("too deep")
        places = 1
        if isinstance(node, dict):
            self._check_words(node, depth)
            reference = node.get("$ref")
            if isinstance(reference, str):
                places += self._of_target(reference, depth)
            self._count_patterns(node)
            children = list(node.values())
        else:
            children = node if isinstance(node, list) else []
        for child in children:
            places += self.of(child, depth + 1)
            if places > MAX_PLACES:
                raise _NoEvidence("too many places")
        return places

    def _check_words(self, node: dict[str, Any], depth: int) -> None:
        """Refuse what would make a reference point anywhere but into this very schema."""
        moves_base = depth > 0 and isinstance(node.get("$id", node.get("id")), str)
        if moves_base or not ELSEWHERE.isdisjoint(node):
            raise _NoEvidence("references that depend on more than this schema")

    def _count_patterns(self, node: dict[str, Any]) -> None:
        by_pattern = node.get("patternProperties")
        patterns = [*by_pattern] if isinstance(by_pattern, dict) else []
        if isinstance(node.get("pattern"), str):
            patterns.append(node["pattern"])
        self.patterns += len(patterns)
        if self.patterns > MAX_PATTERNS or any(len(pattern) > MAX_PATTERN_CHARACTERS for pattern in patterns):
            raise _NoEvidence("patterns")

    def _of_target(self, reference: str, depth: int) -> int:
        """Count behind a reference, once per reference: how often it is used is counted where it is used."""
        if reference in self._following:
            raise _NoEvidence("recursive")
        if reference not in self._of_reference:
            self._following.add(reference)
            self._of_reference[reference] = self.of(self._resolve(reference), depth + 1)
            self._following.remove(reference)
        return self._of_reference[reference]

    def _resolve(self, reference: str) -> Any:
        if not reference.startswith("#/") and reference != "#":
            raise _NoEvidence("a reference out of this schema")
        node: Any = self.root
        for word in reference.split("/")[1:]:
            key = word.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or key not in node:
                raise _NoEvidence("a reference to nothing")
            node = node[key]
        return node
