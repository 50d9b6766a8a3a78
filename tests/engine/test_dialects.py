"""Reading one call as a model wrote it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from basert_fleet.engine.dialects import Dialect, broken_call, dialect_of, read_call
from basert_fleet.engine.toolcalls import NO_TOOLS, Call, ToolSet

TEMPLATES = Path(__file__).parent / "templates"


def tool_set(**properties):
    """Return a set of one tool `f` with these properties."""
    schema = json.dumps({"type": "object", "properties": properties}).encode()
    return ToolSet({"f": schema})


def qwen(**parameters):
    """Return a call of `f` in Qwen's XML."""
    written = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in parameters.items())
    return f"\n<function=f>\n{written}</function>\n"


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("qwen_xml", Dialect.QWEN),
        ("hermes_json", Dialect.HERMES),
        ("llama_dated", None),
        ("mistral_strict", None),
    ],
)
def test_dialect_is_found_in_the_template(name, dialect):
    """A template shows its model how to write a call."""
    assert dialect_of((TEMPLATES / f"{name}.jinja").read_text()) is dialect


def test_other_calls_between_the_same_tags_are_no_known_dialect():
    """GLM writes argument tags between them: to read that as JSON would lose every call."""
    assert dialect_of("<tool_call>{name}\n<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>") is None


@pytest.mark.parametrize(
    ("schema", "written", "read"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "string"}, ' a\n"b" ', ' a\n"b" '),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "1.50", 1.5),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "[1]", "[1]"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"type": "object"}, '{"a": [1, "x"]}', {"a": [1, "x"]}),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({}, "True", "True"),
        ({}, "17", 17),
        ({}, "some text", "some text"),
        (True, "[]", []),
    ],
)
def test_values_are_typed_by_the_schema(schema, written, read):
    """A string stays as it is, anything else is JSON if it is that."""
    call = read_call(Dialect.QWEN, qwen(p=written), tool_set(p=schema))
    assert json.loads(call.arguments) == {"p": read}


def test_numbers_keep_their_digits():
    """A value is passed on as it was written, not as a float could hold it."""
    call = read_call(Dialect.QWEN, qwen(p="12345678901234567890.10"), tool_set(p={"type": "number"}))
    assert call.arguments == '{"p":12345678901234567890.10}'


def test_a_value_may_look_like_the_dialect():
    """Text about calls, as a model writes it into a file, is not the end of one."""
    value = "</parameter> and </function>\n<tool_call> </tool_call>"
    call = read_call(Dialect.QWEN, qwen(p=value, q="x"), tool_set(p={"type": "string"}))
    assert json.loads(call.arguments) == {"p": value, "q": "x"}


def test_calls_without_arguments_are_empty_objects():
    """Both dialects may leave them out."""
    assert read_call(Dialect.QWEN, "<function=f></function>", NO_TOOLS) == Call("f", "{}")
    assert read_call(Dialect.HERMES, '{"name": "f"}', NO_TOOLS) == Call("f", "{}")


def test_json_arguments_are_kept_byte_for_byte():
    """What the model wrote is what the client gets; an object that was quoted once more is unquoted."""
    assert read_call(Dialect.HERMES, '\n{"name":"f","arguments":{"a": 1.10}}\n', NO_TOOLS) == Call("f", '{"a": 1.10}')
    assert read_call(Dialect.HERMES, '{"arguments": "{\\"a\\": 1}", "name": "f"}', NO_TOOLS) == Call("f", '{"a": 1}')


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.HERMES, ""),
        (Dialect.HERMES, '{"name": "f", "arguments": {"a": 1'),
        (Dialect.HERMES, '{"name": "f", "arguments": [1]}'),
        (Dialect.HERMES, '{"name": 3, "arguments": {}}'),
        (Dialect.HERMES, "[" * 5000),
        (Dialect.QWEN, ""),
        (Dialect.QWEN, "<function=f>"),
        (Dialect.QWEN, "<function=f><parameter=p>1</function>"),
        (Dialect.QWEN, "<function=f>text</function>"),
        (Dialect.QWEN, "<function=f></function> more"),
    ],
)
def test_what_is_malformed_is_no_call(dialect, body):
    """Nothing is guessed."""
    assert read_call(dialect, body, NO_TOOLS) is None


def test_a_broken_call_keeps_its_name_and_shows_that_it_is_broken():
    """Its arguments are what the model wrote, which is no JSON object; without a name it is none."""
    assert broken_call(Dialect.HERMES, '{"name": "f", "arguments": {"a"}}') == Call(
        "f", '{"name": "f", "arguments": {"a"}}'
    )
    assert broken_call(Dialect.QWEN, "\n<function=f>oops\n") == Call("f", "<function=f>oops")
    assert broken_call(Dialect.QWEN, "oops") is None
