"""What is read from a request body, and what is refused."""

from __future__ import annotations

import json

import pytest

from basert_fleet.sim.ask import Kind, Limits, ToolCall, read_chat, read_completion, read_texts
from basert_fleet.sim.errors import BadRequest, ContextExceeded
from basert_fleet.sim.faults import Fault
from basert_fleet.sim.rendered import CallForm
from support.seed import LOOKUP_KEY, lookup, plain

LIMITS = Limits(max_context=4096, max_tokens=2048, directives=True)


def test_the_reports_request_has_the_reports_token_counts():
    """274 prompt tokens when rendered anew, 9 when the prefix is reused (seed)."""
    ask = read_chat(lookup("seq-0"), LIMITS)
    assert (ask.prompt_tokens, ask.suffix_tokens, ask.max_tokens) == (274, 9, 2048)


def test_a_sentence_names_the_call():
    """`Call NAME with PARAM VALUE.` in the last user message is what is called."""
    assert read_chat(lookup("seq-0"), LIMITS).calls == (ToolCall("lookup_key", "key", "seq-0"),)


def test_values_may_hold_dots_and_unicode_and_sentences_may_be_many():
    """A value ends at a dot before white space or the end."""
    body = lookup("x") | {"messages": [{"role": "user", "content": "Call lookup_key with key 3.14. Call lookup_key with key 東京 🗼."}]}  # fmt: skip  # noqa: E501
    assert [call.value for call in read_chat(body, LIMITS).calls] == ["3.14", "東京 🗼"]


@pytest.mark.parametrize("change", [{"tools": []}, {"tool_choice": "none"}, {"messages": plain("Hello.")["messages"]}])
def test_without_a_known_tool_or_a_sentence_nothing_is_called(change):
    """Such a request gets a text answer."""
    assert read_chat(lookup("k") | change, LIMITS).calls == ()


def test_an_unknown_name_calls_nothing():
    """A sentence that names a tool the request does not offer makes it a text request."""
    body = lookup("k") | {"messages": [{"role": "user", "content": "Call other with key k."}]}
    assert read_chat(body, LIMITS).calls == ()


def test_a_tool_result_is_answered_in_text():
    """Once the tool has answered, the same user message does not call again."""
    body = lookup("k")
    body["messages"] = [*body["messages"], {"role": "assistant", "content": None}, {"role": "tool", "content": "42"}]
    ask = read_chat(body, LIMITS)
    assert (ask.calls, ask.content) == ((), "42")


def test_only_the_last_user_message_is_outside_the_prefix():
    """Requests that differ only there share a prefix; other tools or another system text do not."""
    prefix = read_chat(lookup("a"), LIMITS).prefix
    assert prefix is not None
    assert read_chat(lookup("b"), LIMITS).prefix == prefix
    assert read_chat(lookup("a", tools=[LOOKUP_KEY, LOOKUP_KEY]), LIMITS).prefix != prefix
    with_system = [{"role": "system", "content": "Be brief."}, *lookup("a")["messages"]]
    assert read_chat(lookup("a", messages=with_system), LIMITS).prefix != prefix


def test_plain_chats_and_completions_have_no_reusable_prefix():
    """Only chats with tools build a reuse run."""
    assert read_chat(plain("hi"), LIMITS).prefix is None
    assert read_completion({"prompt": "hi"}, LIMITS).prefix is None


def test_a_completion_prompt_may_render_tools():
    """A `<tools>` block, as Qwen's and Hermes's templates write it, offers what the sentence may call."""
    prompt = f"<tools>\n{json.dumps(LOOKUP_KEY)}\n</tools>\nCall lookup_key with key a-1.\n"
    assert read_completion({"prompt": prompt}, LIMITS).calls == (ToolCall("lookup_key", "key", "a-1"),)
    assert read_completion({"prompt": "Call lookup_key with key a-1."}, LIMITS).calls == ()


XML_TOOLS = "<tools>\n<function>\n<name>lookup_key</name>\n</function>\n</tools>\n<tool_call>\n<function=NAME>"


def rendered(*turns, tools=XML_TOOLS, end="<|im_start|>assistant\n"):
    """Return a prompt as ChatML templates make it."""
    told = [("system", tools), *turns]
    return {"prompt": "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in told) + end}


def test_a_rendered_chat_is_answered_by_its_last_message():
    """Older turns ask for nothing any more, and the echo is that of the last content, as in a chat."""
    older = ("user", "Call lookup_key with key old.")
    ask = read_completion(rendered(older, ("assistant", "x"), ("user", "Call lookup_key with key new.")), LIMITS)
    assert ask.calls == (ToolCall("lookup_key", "key", "new"),)
    assert read_completion(rendered(older, ("assistant", "x"), ("user", "Hi")), LIMITS).content == "Hi"
    for role in ("tool", "user"):
        response = (role, "<tool_response>Call lookup_key with key a.</tool_response>")
        assert read_completion(rendered(older, response), LIMITS).calls == ()


def test_a_rendered_chat_tells_how_calls_are_written():
    """XML where the prompt shows it, JSON otherwise; a thought that the prompt opened goes on."""
    asked = ("user", "Call lookup_key with key a.")
    xml = read_completion(rendered(asked, end="<|im_start|>assistant\n<think>\n"), LIMITS)
    assert (xml.call_form, xml.is_thinking) == (CallForm.XML, True)
    json_tools = f"<tools></tools> hold tools:\n<tools>{json.dumps(LOOKUP_KEY)}</tools>"
    written = read_completion(rendered(asked, tools=json_tools), LIMITS)
    assert (written.call_form, written.is_thinking, written.calls) == (CallForm.JSON, False, xml.calls)
    assert read_completion(rendered(("user", "What does <function= mean?"), tools=""), LIMITS).calls == ()


def test_directives_are_read_from_the_last_message_only():
    """An order in an older message is no order, and none is where directives are off."""
    body = plain("x [[len=40]] [[crash]] [[fault=hang]] [[delay=0.5]]")
    found = read_chat(body, LIMITS).directives
    assert (found.tokens, found.delay_seconds) == (40, 0.5)
    assert found.faults == {Fault.CRASH, Fault.HANG}
    older = {"messages": [*body["messages"], {"role": "user", "content": "y"}]}
    assert read_chat(older, LIMITS).directives.faults == frozenset()
    assert read_chat(body, LIMITS._replace(directives=False)).directives.faults == frozenset()


@pytest.mark.parametrize("text", ["[[fault=nonsense]]", "[[len=many]]", "[[explode]]"])
def test_a_misspelt_directive_is_refused(text):
    """No test passes because its order was not understood."""
    with pytest.raises(BadRequest, match="Unknown directive"):
        read_chat(plain(text), LIMITS)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages"),
        (plain("hi", max_tokens=0), "max_tokens"),
        (plain("hi", max_tokens="9"), "max_tokens"),
        (plain("hi", tools=[{}]), "tools"),
    ],
)
def test_a_malformed_chat_is_refused_by_the_field(body, param):
    """The refusal names the field, as OpenAI's `param`."""
    with pytest.raises(BadRequest) as refused:
        read_chat(body, LIMITS)
    assert refused.value.param == param


def test_text_parts_are_joined_and_other_parts_left_out():
    """Content may be a list of parts."""
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert read_chat({"messages": [{"role": "user", "content": parts}]}, LIMITS).content == "ab"


def test_a_prompt_longer_than_the_context_is_refused():
    """Such a request gets 400 and context_length_exceeded."""
    with pytest.raises(ContextExceeded):
        read_chat(plain("x" * 400), LIMITS._replace(max_context=100))
    with pytest.raises(ContextExceeded):
        read_texts(Kind.EMBEDDING, ["x" * 404], LIMITS._replace(max_context=100))


def test_an_answer_never_outgrows_the_context():
    """max_tokens is cut to what the context leaves; max_completion_tokens goes before it."""
    assert read_chat(lookup("seq-0"), LIMITS._replace(max_context=300)).max_tokens == 26
    assert read_chat(plain("hi", max_tokens=9, max_completion_tokens=5), LIMITS).max_tokens == 5
