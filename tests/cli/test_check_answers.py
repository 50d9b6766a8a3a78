"""What `check` takes for right, wrong, an error, or not judged; without a server."""

from __future__ import annotations

import json

import pytest

from basert_fleet.cli.answers import Answer, Outcome, judged_together, read_answer
from basert_fleet.cli.shapes import COMPLETIONS_PATH, Question, seed_shapes

SHAPES = {shape.name: shape for shape in seed_shapes("m", sequential=3, concurrency=(2, 4))}
LOOKUP = SHAPES["sequential"].questions[0]
COMPLETION = SHAPES["completions"].questions[0]
TEXT = SHAPES["cjk"].questions[0]


def call(name: str, arguments: str) -> dict[str, object]:
    """Return a call as an answer holds it."""
    return {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}


def chat(*calls: dict[str, object], content: str | None = None, finish: str = "tool_calls", **message: object) -> bytes:
    """Return a chat's answer."""
    whole = {"role": "assistant", "content": content, **message} | ({"tool_calls": list(calls)} if calls else {})
    usage = {"prompt_tokens": 274, "completion_tokens": 142}
    return json.dumps({"choices": [{"message": whole, "finish_reason": finish}], "usage": usage}).encode()


def completion(text: str, finish: str = "stop") -> bytes:
    """Return a completion's answer."""
    return json.dumps({"choices": [{"text": text, "finish_reason": finish}]}).encode()


def read(question: Question, body: bytes, status: int = 200) -> Answer:
    """Judge one response."""
    return read_answer(question, status, body, 0.1)


def test_the_shapes_are_the_reports_with_the_controls_first() -> None:
    """Names, order and sizes are what the JSON output and the docs tell; labels carry the value that was asked for."""
    assert {name: (shape.together, len(shape.questions)) for name, shape in SHAPES.items()} == {
        "schemas": (1, 4), "completions": (1, 3), "cjk": (1, 2),
        "sequential": (1, 3), "concurrent-2": (2, 2), "concurrent-4": (4, 4),
    }  # fmt: skip
    assert [question.label for question in SHAPES["concurrent-2"].questions] == ["c2-0", "c2-1"]
    assert json.loads(LOOKUP.body)["messages"][0]["content"] == "Call lookup_key with key seq-0."


def test_exactly_the_wanted_call_is_right() -> None:
    """Spaces in the arguments do not matter, and usage is read."""
    answer = read(LOOKUP, chat(call("lookup_key", '{ "key" : "seq-0" }')))
    assert (answer.outcome, answer.got) == (Outcome.RIGHT, 'lookup_key({"key":"seq-0"})')
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (274, 142, "tool_calls")


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (chat(call("lookup_key", '{"key":"key"}')), 'lookup_key({"key":"key"})'),
        (chat(call("lookup_key", '{"key":"seq-0","more":1}')), 'lookup_key({"key":"seq-0","more":1})'),
        (chat(call("lookup", '{"key":"seq-0"}')), 'lookup({"key":"seq-0"})'),
        (chat(call("lookup_key", '{"key":"seq-')), 'lookup_key("{\\"key\\":\\"seq-")'),
        (chat(*[call("lookup_key", '{"key":"seq-0"}')] * 2), None),
        (chat(content="key key key", finish="length"), "no call (length, 142 tokens)"),
        (chat(content='{"key":"seq-0"}', finish="stop"), "no call (stop, 142 tokens)"),
    ],
    ids=["other value", "more arguments", "other tool", "cut", "twice", "runaway", "text"],
)
def test_any_other_answer_to_a_call_is_wrong(body: bytes, got: str | None) -> None:
    """A few wrong characters, one call too many or none at all: nothing comes close enough."""
    answer = read(LOOKUP, body)
    assert answer.outcome is Outcome.WRONG
    assert got in (None, answer.got)


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{}", b'{"choices":[]}', b'{"choices":[{"message":{"tool_calls":[{}]}}]}', b"\xff", b"[" * 9999],
)
def test_what_is_no_answer_is_an_error(body: bytes) -> None:
    """Whatever a server sends, check says so and goes on."""
    assert read(LOOKUP, body).outcome is Outcome.ERROR


def test_an_http_error_is_told_with_its_code() -> None:
    """A refusal is an error and not a wrong answer: nobody was misled."""
    body = b'{"error":{"message":"tried three times","type":"server_error","code":"response_contaminated"}}'
    answer = read(LOOKUP, body, status=502)
    assert (answer.outcome, answer.got) == (Outcome.ERROR, "HTTP 502 response_contaminated: tried three times")
    assert read(LOOKUP, b"Bad\ngateway", status=502).got == "HTTP 502 Bad gateway"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (chat(content="桜の花が咲く。", finish="stop"), Outcome.RIGHT),
        (chat(content="长城\N{REPLACEMENT CHARACTER}", finish="length"), Outcome.RIGHT),
        (chat(content="长\N{REPLACEMENT CHARACTER}城", finish="length"), Outcome.WRONG),
        (chat(content="桜\N{REPLACEMENT CHARACTER}", finish="stop"), Outcome.WRONG),
        (chat(content=" ", finish="stop"), Outcome.WRONG),
        (chat(content=None, finish="length", reasoning_content="先想一想"), Outcome.RIGHT),
        (chat(call("lookup_key", "{}"), content="ok", finish="stop"), Outcome.WRONG),
        (chat(content="ok", finish="error"), Outcome.WRONG),
    ],
    ids=["whole", "cut by the limit", "broken", "broken at the end", "empty", "thoughts", "a call", "other ending"],
)
def test_of_a_text_only_the_shape_is_judged(body: bytes, outcome: Outcome) -> None:
    """Any words will do, if they are whole characters and no call was made up."""
    assert read(TEXT, body).outcome is outcome


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "lookup_key", "arguments": {"key": "text-0"}}\n</tool_call>',
        '<tool_call>{"name":"lookup_key","arguments":{"key":"text-0"}}',
        "<tool_call>\n<function=lookup_key>\n<parameter=key>\ntext-0\n</parameter>\n</function>\n</tool_call>",
    ],
    ids=["json", "stopped at the end mark", "xml"],
)
def test_a_call_in_a_completion_is_read_in_both_dialects(text: str) -> None:
    """Qwen's models write calls as JSON or as XML."""
    assert read(COMPLETION, completion(text)).outcome is Outcome.RIGHT


def test_a_wrong_call_in_a_completion_is_wrong() -> None:
    """A call that can be read is judged like any other, and one that is no JSON object as well."""
    assert (
        read(COMPLETION, completion('<tool_call>{"name":"lookup_key","arguments":{"key":"4"}}')).outcome
        is Outcome.WRONG
    )
    assert read(COMPLETION, completion("<tool_call>[1]</tool_call>")).outcome is Outcome.WRONG


def test_completions_without_a_call_are_judged_by_their_neighbours() -> None:
    """A model of another dialect is not accused; one that lost its call after it had written others is."""
    silent = read(COMPLETION, completion("I cannot do that."))
    right = read(COMPLETION, completion('<tool_call>{"name":"lookup_key","arguments":{"key":"text-0"}}</tool_call>'))
    absent = read(COMPLETION, b'{"error":{"message":"no such endpoint"}}', status=404)
    assert [answer.outcome for answer in judged_together([silent, absent])] == [Outcome.UNJUDGED] * 2
    assert [answer.outcome for answer in judged_together([right, silent])] == [Outcome.RIGHT, Outcome.WRONG]
    assert COMPLETION.path == COMPLETIONS_PATH
