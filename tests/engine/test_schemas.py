"""Schemas of clients: what they say counts, what they cost is bounded, and nothing is fetched for them."""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest

from basert_fleet.engine import schemas
from basert_fleet.engine.schemas import violates

LOOKUP = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
BUDGET_SECONDS = 1.0  # of CPU, chosen: ten times what the worst case takes here; unbounded, each takes far longer


def nested(levels, **leaf):
    """Return a schema this many levels deep."""
    return leaf if levels == 0 else {"properties": {"a": nested(levels - 1, **leaf)}}


def doubling(levels):
    """Return a small schema that has two to the power of `levels` places once its references are followed."""
    names = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": names | {f"d{levels}": {"type": "string"}}}


def check(schema, value):
    """Check a value given as Python objects."""
    return violates(json.dumps(schema).encode(), json.dumps(value).encode())


@pytest.mark.parametrize(
    ("schema", "value", "found"),
    [
        (LOOKUP, {"key": "seq-0"}, False),
        (LOOKUP, {"key": 1}, True),
        (LOOKUP, {}, True),
        (True, {}, False),
        (False, {}, True),
        ({"$schema": "http://json-schema.org/draft-07/schema#", **LOOKUP}, {}, True),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": LOOKUP}}, {}, True),
        ({"$id": "urn:x", "$ref": "#/definitions/k", "definitions": {"k": LOOKUP}}, {"key": ""}, False),
        ({"properties": {"k": {"pattern": "^[a-z]+$"}}}, {"k": "A"}, True),
        ({"properties": {"k": {"format": "date"}}}, {"k": "no date"}, False),
        (doubling(4), 1, True),
    ],
)
def test_readable_schema_is_heeded(schema, value, found):
    """A schema that stands for itself decides; formats are hints and do not."""
    assert check(schema, value) is found


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 12},
        {"type": "strin"},
        [],
        None,
        {"$ref": "#/$defs/missing"},
        {"$ref": "other.json"},
        {"$ref": "#anchor"},
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"properties": {"k": {"$id": "http://x/", "$ref": "y"}}},
        {"$dynamicRef": "#node"},
        {"$schema": "http://127.0.0.1:1/meta"},
        {"pattern": "("},
        {"pattern": "(?=a)b"},
        {"pattern": "a" * 257},
        {"patternProperties": {f"p{n}": {} for n in range(17)}},
        nested(64, type="string"),
        doubling(30),
        {"enum": [[0]] * 10_001},
        {"description": "x" * 200_000},
    ],
)
def test_unusable_schema_is_no_evidence(schema):
    """Invalid, recursive, referring elsewhere, or too costly: such a schema convicts nobody."""
    assert check(schema, {"key": 1}) is None


@pytest.mark.parametrize("raw", [b"{", b"\xff", b'{"a":' * 5_000 + b"1" + b"}" * 5_000])
def test_unreadable_schema_is_no_evidence(raw):
    """What is no JSON, or nested without end, is not used."""
    assert violates(raw, b"{}") is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(60), {}),
        ({"pattern": "(a+)+$"}, "a" * 60_000 + "b"),
        ({"pattern": "((a{1,1000}){1,1000}){1,1000}"}, "a" * 60_000),
        ({"patternProperties": {f"[\\w\\s]{{1,{n}}}x.{{1,60}}y": {} for n in range(10, 26)}}, {"a" * 60_000: 1}),
        ({"patternProperties": {f"^[\\w\\s]{{1,{n}}}y": {} for n in range(2_000)}}, {"a": 1}),
        ({"items": {"anyOf": [{"const": n} for n in range(2_000)]}}, [{"a": -1}] * 5_000),
        ({"items": {"enum": list(range(2_000))}}, [-1] * 900),
        (
            {"items": {"anyOf": [*({"contains": {"const": n + 1}} for n in range(1_500)), {"type": "array"}]}},
            [[0] * 30] * 5_000,
        ),
        ({"uniqueItems": True}, [[n] for n in range(60_000)]),
        ({"enum": [[n] for n in range(4_000)]}, [1]),
        ({"pattern": "a.*b.*c.*d.*e.*f.*g"}, "abcdef" * 150_000),
    ],
)
def test_hostile_schema_costs_little(schema, value):
    """No schema blocks the event loop for long (C32), whatever it answers."""
    started = time.process_time()
    check(schema, value)
    assert time.process_time() - started < BUDGET_SECONDS


async def test_nothing_is_fetched(peer):
    """Neither http:// nor file:// references are opened, in whatever place a schema names them."""
    url = f"http://127.0.0.1:{peer.port}/schema.json"
    for key in ("$ref", "$schema", "$id", "$dynamicRef", "$recursiveRef"):
        for schema in ({key: url}, {"properties": {"k": {key: url, "$ref": "x.json"}}}, {"allOf": [{key: url}]}):
            assert await asyncio.to_thread(check, schema, {"k": 1}) in {None, False}
    assert peer.connections == 0


@pytest.mark.parametrize("word", ["$ref", "$schema", "$id"])
def test_files_are_not_opened(tmp_path, word):
    """A file that says `false` would convict every value; a named pipe would be waited for without end."""
    (tmp_path / "no.json").write_text("false")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("no.json", "pipe.json"):
        assert check({word: f"file://{tmp_path}/{name}"}, {}) in {None, False}
        assert check({"allOf": [{word: f"file://{tmp_path}/{name}"}]}, {}) in {None, False}


async def test_validator_itself_is_denied_to_fetch(peer, monkeypatch):
    """Should a reference slip past our own reading, the validator still gets nothing from anywhere."""
    monkeypatch.setattr(schemas, "_is_affordable", lambda *_: True)
    for url in (f"http://127.0.0.1:{peer.port}/schema.json", "file:///etc/hostname"):
        assert await asyncio.to_thread(check, {"$ref": url}, {}) is None
    assert peer.connections == 0
