"""What is answered, rightly and wrongly, and in which pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.sim.answer import Damage, damaged_answer, expected_echo, right_answer, wrong_echo
from basert_fleet.sim.ask import Limits, ToolCall, read_chat, read_completion
from basert_fleet.sim.finish import Finish
from basert_fleet.sim.pieces import Chunking, pieces_of
from support.seed import lookup, plain

LIMITS = Limits(max_context=100_000, max_tokens=2048, directives=True)


def test_the_first_five_answers_have_the_reports_lengths():
    """142, 102, 90, 82 and 120 completion tokens (seed)."""
    ask = read_chat(lookup("seq-0"), LIMITS)
    assert [right_answer(ask, reuses).tokens for reuses in range(5)] == [142, 102, 90, 82, 120]


def test_a_text_answer_begins_with_the_echo_and_repeats_the_messages_words():
    """A client can tell whose answer it got; CJK and emoji come back as they went."""
    text = "".join(right_answer(read_chat(plain("桜の 🌸 tree"), LIMITS), 0).text)
    assert text.startswith(expected_echo("桜の 🌸 tree") + " 桜の 🌸 tree 桜の")


@given(st.text())
def test_a_wrong_echo_is_never_the_right_one(content):
    """Whatever the message, contamination shows."""
    assert wrong_echo(content) != expected_echo(content)


def test_len_sets_the_number_of_completion_tokens():
    """`[[len=40]]` is answered by 40 tokens in 40 pieces, and a lower max_tokens cuts them by `length`."""
    whole = right_answer(read_chat(plain("x [[len=40]]"), LIMITS), 0)
    assert (whole.finish, whole.tokens, len(whole.text)) == (Finish.STOP, 40, 40)
    cut = right_answer(read_chat(plain("x [[len=40]]", max_tokens=7), LIMITS), 0)
    assert (cut.finish, cut.tokens, cut.text) == (Finish.LENGTH, 7, whole.text[:7])


@pytest.mark.parametrize(("max_tokens", "finish"), [(1, Finish.LENGTH), (15, Finish.LENGTH), (16, Finish.TOOL_CALLS)])
def test_a_tool_request_with_too_few_tokens_ends_by_length_and_calls_nothing(max_tokens, finish):
    """A cut generation never shows a partial call."""
    answer = right_answer(read_chat(lookup("k", max_tokens=max_tokens), LIMITS), 0)
    assert (answer.finish, answer.tokens, bool(answer.calls)) == (finish, max_tokens, finish is Finish.TOOL_CALLS)


def test_a_json_schema_is_answered_by_a_value_of_its_shape():
    """Every property is there, and strings carry the echo."""
    properties = {
        "name": {"type": "string"}, "n": {"type": "integer", "minimum": 3}, "on": {"type": "boolean"},
        "list": {"type": "array"}, "kind": {"enum": ["a", "b"]}, "one": {"const": 1}, "none": {"type": "null"},
    }  # fmt: skip
    schema = {"type": "object", "properties": properties}
    body = plain("hi", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    text = "".join(right_answer(read_chat(body, LIMITS), 0).text)
    assert json.loads(text) == {
        "name": expected_echo("hi"), "n": 3, "on": True, "list": [], "kind": "a", "one": 1, "none": None,
    }  # fmt: skip


def test_a_completion_calls_in_text():
    """A prompt with a `<tools>` block is answered as the model would write it."""
    prompt = '<tools>{"name": "f"}</tools> Call f with p v.'
    answer = right_answer(read_completion({"prompt": prompt}, LIMITS), 0)
    assert "".join(answer.text) == '<tool_call>\n{"name": "f", "arguments": {"p":"v"}}\n</tool_call>'
    assert answer.finish is Finish.STOP


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (Damage.PARAMETER_NAME, "key"),
        (Damage.STALE_VALUE, "c9-9"),
        (Damage.LOST_PREFIX, "4-0"),
        (Damage.LOST_ENDS, "4"),
    ],
)
def test_damaged_arguments_are_the_reports(damage, wrong):
    """The wrong values are those the report shows for c4-0 and its like."""
    answer = damaged_answer(read_chat(lookup("c4-0"), LIMITS), damage, "c9-9", 0)
    assert [call.value for call in answer.calls] == [wrong]


@given(st.sampled_from(Damage), st.text("ak-.", min_size=1), st.none() | st.text("ak-."))
def test_a_damaged_answer_never_carries_the_right_arguments(damage, value, stale):
    """Not even if the stale value, or the parameter's name, is what was asked for."""
    ask = read_chat(lookup("x"), LIMITS)._replace(calls=(ToolCall("f", "key", value),))
    assert value not in [call.value for call in damaged_answer(ask, damage, stale, 0).calls]


@given(st.text(min_size=1), st.sampled_from(Chunking))
def test_streamed_pieces_join_to_the_arguments(value, chunking):
    """Id and name come first, the arguments in several pieces, each at a token of its own."""
    ask = read_chat(lookup("x"), LIMITS)._replace(calls=(ToolCall("f", "p", value), ToolCall("g", "q", "1")))
    pieces = pieces_of(right_answer(ask, 0), chunking)
    parts = [piece.call for piece in pieces if piece.call]
    joined = ["".join(part.arguments for part in parts if part.place == place) for place in (0, 1)]
    assert [json.loads(text) for text in joined] == [{"p": value}, {"q": "1"}]
    assert [part.name for part in parts if part.name] == ["f", "g"]
    assert [piece.at_token for piece in pieces] == list(range(142 - len(pieces) + 1, 143))


def test_a_rendered_chat_is_answered_in_its_templates_words():
    """A thought that the prompt opened is closed first; a call has the form that the prompt shows."""
    system = "<|im_start|>system\n<tools><function><name>f</name></function></tools>\n<function=NAME><|im_end|>\n"
    prompt = f"{system}<|im_start|>user\nCall f with p v.<|im_end|>\n<|im_start|>assistant\n<think>\n"
    answer = right_answer(read_completion({"prompt": prompt}, LIMITS), 0)
    call = "<tool_call>\n<function=f>\n<parameter=p>\nv\n</parameter>\n</function>\n</tool_call>"
    assert (answer.finish, "".join(answer.text)) == (Finish.STOP, f"I know.\n</think>\n\n{call}")
    text = right_answer(read_completion({"prompt": prompt.replace("Call f", "Tell f")}, LIMITS), 0)
    assert "".join(text.text).startswith(f"I know.\n</think>\n\n{expected_echo('Tell f with p v.')}")
