"""A chat as a completion and back: what the engine gets, and that nothing after it sees the difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.core.api import ToolDialect
from basert_fleet.core.calibration import Ending
from basert_fleet.core.delivery import Part
from basert_fleet.core.verdict import Reason
from basert_fleet.engine.canary import canary_failure, canary_request
from basert_fleet.engine.chat_template import ChatTemplate
from basert_fleet.engine.connection import ResponseHead
from basert_fleet.engine.rendered_chat import RenderedChat
from basert_fleet.engine.request import InvalidRequest
from basert_fleet.engine.response import reader_for
from basert_fleet.engine.template_files import ModelTemplates

TEMPLATES = Path(__file__).parent / "templates"
ID = "chatcmpl-request"
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup_key",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
OTHER = {"type": "function", "function": {"name": "other"}}
OTHER_TOLD = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
USER = {"role": "user", "content": "Hi"}
XML_CALL = "<tool_call>\n<function=lookup_key>\n<parameter=key>\n7\n</parameter>\n</function>\n</tool_call>"
SHOWN = "{{ messages | tojson }}|{{ tools | tojson }}|{{ x }}"
"""A template that shows what it was given."""


def rendering(source=None, dialect=ToolDialect.AUTO, eos="<|im_end|>"):
    """Return what renders by this template, or by the one in Qwen's form."""
    template = ChatTemplate(source or (TEMPLATES / "qwen_xml.jinja").read_text(), {})
    return RenderedChat(ModelTemplates(template, template, eos), dialect)


def prepared(source=None, dialect=ToolDialect.AUTO, **members):
    """Prepare a chat request with these members."""
    body = {"model": "m", "messages": [USER], **members}
    return rendering(source, dialect).prepare(json.dumps(body).encode(), ID)


def sent(source=None, **members):
    """Return what the engine is sent for it."""
    return json.loads(prepared(source, dialect=ToolDialect.QWEN, **members).body)


def shown(**members):
    """Return the messages, tools and variables that a template is given."""
    messages, tools, variable = sent(SHOWN, **members)["prompt"].split("|")
    return json.loads(messages), json.loads(tools), variable


# --- the request


def test_the_engine_gets_a_completion():
    """Sampling stays as the client wants it, nothing of the chat is left, and the turn's end is a stop."""
    chat = prepared(temperature=0, seed=3, stop="END", max_completion_tokens=9, max_tokens=5, tools=[LOOKUP], top_k=2)
    body = json.loads(chat.body)
    assert chat.path == "/v1/completions"
    assert body.pop("prompt").endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert body == {
        "model": "m", "temperature": 0, "seed": 3, "top_k": 2, "stop": ["END", "<|im_end|>"], "max_tokens": 9,
    }  # fmt: skip
    assert chat.expected_prompt_tokens == len(chat.body) // 4


@pytest.mark.parametrize(
    ("stop", "given"),
    [
        (None, ["<|im_end|>"]),
        (["a", "<|im_end|>"], ["a", "<|im_end|>"]),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"]),
    ],
)
def test_clients_stops_go_first(stop, given):
    """OpenAI allows four; the client's are never dropped for ours."""
    assert sent(stop=stop)["stop"] == given


def test_streams_tell_usage_as_ever():
    """Usage is asked for, and taken out again unless the client asked."""
    assert sent(stream=True)["stream_options"] == {"include_usage": True}
    assert prepared(stream=True).strip_usage
    assert not prepared(stream=True, stream_options={"include_usage": True}).strip_usage


def test_messages_are_given_as_templates_expect_them():
    """Arguments are objects, parts one text, no content an empty one, and a developer is a system."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1.0}'}}
    broken = {"function": {"name": "f", "arguments": "{"}}
    messages, _, _ = shown(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call, broken], "reasoning": "hm"},
        ]
    )
    assert messages[0] == {"role": "system", "content": "a\nb"}
    assert messages[1]["content"] == ""
    assert [messages[1][name] for name in ("reasoning_content", "reasoning", "thinking")] == ["hm"] * 3
    assert [one["function"]["arguments"] for one in messages[1]["tool_calls"]] == [{"a": 1.0}, "{"]


def test_tool_choice_decides_which_tools_are_told():
    """None, one by name, or all; what the judge expects follows."""
    assert shown()[1] is None
    assert shown(tools=[])[1] is None
    assert shown(tools=[LOOKUP, OTHER])[1] == [LOOKUP, OTHER_TOLD]
    assert shown(tools=[LOOKUP], tool_choice="none")[1] is None
    wish = {"type": "function", "function": {"name": "other"}}
    assert shown(tools=[LOOKUP, OTHER], tool_choice=wish)[1] == [OTHER_TOLD]
    assert set(prepared(tools=[LOOKUP, OTHER], tool_choice=wish).tools.schemas) == {"other"}
    assert not prepared(tools=[LOOKUP], tool_choice="none").tools


def test_clients_may_set_variables_but_not_the_fixed_ones():
    """`chat_template_kwargs` is how clients of other servers set them."""
    messages, _, variable = shown(chat_template_kwargs={"x": "y", "messages": "no"})
    assert (messages, variable) == ([USER], "y")


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": 3}]}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"tools": [{}]}, "tools"),
        ({"tools": 3}, "tools"),
        ({"tools": [LOOKUP], "tool_choice": {"function": {"name": "no"}}}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"chat_template": "x"}, "chat_template"),
        ({"prompt": "x"}, "prompt"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"stop": 3}, "stop"),
    ],
)
def test_what_cannot_be_rendered_is_refused_by_name(members, param):
    """Nothing is left out silently: the client is told which field, before a worker is asked."""
    with pytest.raises(InvalidRequest) as refused:
        prepared(**members)
    assert refused.value.param == param


def test_fields_that_change_nothing_are_taken():
    """Clients send defaults."""
    assert "logprobs" not in sent(logprobs=False, response_format={"type": "text"}, parallel_tool_calls=True)


def test_tools_need_a_dialect():
    """Calls that nobody could read are refused at once, unless the pool names how they are written."""
    with pytest.raises(InvalidRequest, match="toolDialect"):
        prepared("{{ messages[0].content }}", tools=[LOOKUP])
    assert prepared("{{ messages[0].content }}", dialect=ToolDialect.HERMES, tools=[LOOKUP]).tools
    assert json.loads(prepared("{{ messages[0].content }}").body)["prompt"] == "Hi"


# --- the answer


def head(content_type):
    """Return the head of an engine's response."""
    return ResponseHead(200, ((b"Content-Type", content_type.encode()),))


def whole(text, finish="stop", **members):
    """Return pieces and facts of a whole answer with this text."""
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    body = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    reader = reader_for(prepared(tools=[LOOKUP], **members), head("application/json"))
    reader.feed(json.dumps(body | {"usage": {"prompt_tokens": 20, "completion_tokens": 5}}).encode())
    (piece,) = reader.finish()
    return json.loads(piece.data), reader.facts()


def streamed(*texts, finish="stop", **members):
    """Return the pieces and facts of a stream of these texts."""
    frame = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
    chunks = [frame | {"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
    chunks.append(frame | {"choices": [{"index": 0, "text": "", "finish_reason": finish}]})
    chunks.append(frame | {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": len(texts)}})
    data = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    reader = reader_for(prepared(tools=[LOOKUP], stream=True, **members), head("text/event-stream"))
    return reader.feed(data) + reader.finish(), reader.facts()


def told(pieces):
    """Return each delta with the part that it was sent as."""
    events = [(piece.part, line) for piece in pieces for line in piece.data.decode().split("\n\n") if line]
    chunks = [(part, json.loads(line.removeprefix("data: "))) for part, line in events if "[DONE]" not in line]
    assert {chunk["object"] for _, chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["id"] for _, chunk in chunks} == {ID}
    return [(part, choice["delta"], choice["finish_reason"]) for part, chunk in chunks for choice in chunk["choices"]]


def test_a_whole_answer_is_a_chats():
    """Thought, text and call are where OpenAI's clients look for them, and usage is the engine's."""
    answer, facts = whole(f"Hm.\n</think>\n\nI look.\n{XML_CALL}")
    assert (answer["object"], answer["id"]) == ("chat.completion", ID)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "I look.",
        "tool_calls": [
            {"id": "call_request_0_0", "type": "function",
             "function": {"name": "lookup_key", "arguments": '{"key":"7"}'}}
        ],
    }  # fmt: skip
    assert answer["usage"] == {"prompt_tokens": 20, "completion_tokens": 5}
    assert (facts.ending, facts.completion_tokens, facts.tool_problem) == (Ending.TOOL_CALLS, 5, None)


def test_a_stream_is_a_chats():
    """The role once, text as it comes, all calls at the end, then the reason: each in its own chunk."""
    pieces, facts = streamed("Hm.", "\n</thi", "nk>\n\nI", " look.\n<tool", *XML_CALL.removeprefix("<tool"))
    assert told(pieces) == [
        (Part.TEXT, {"role": "assistant", "content": "", "reasoning_content": "Hm."}, None),
        (Part.TEXT, {"content": "I"}, None),
        (Part.TEXT, {"content": " look."}, None),
        (Part.TOOL_CALL, {"tool_calls": [
            {"index": 0, "id": "call_request_0_0", "type": "function",
             "function": {"name": "lookup_key", "arguments": '{"key":"7"}'}}]}, None),
        (Part.ENDING, {}, "tool_calls"),
    ]  # fmt: skip
    assert (facts.ending, facts.prompt_tokens, facts.saw_done) == (Ending.TOOL_CALLS, 20, True)
    assert facts.tool_problem is None


def test_calls_of_one_stream_have_places_and_ids_of_their_own():
    """Libraries put deltas together by them: two calls with one index would become a broken third."""
    pieces, facts = streamed("</think>", XML_CALL, "\n", XML_CALL.replace("7", "8"))
    (calls,) = [delta["tool_calls"] for part, delta, _ in told(pieces) if part is Part.TOOL_CALL]
    assert [(call["index"], call["id"], json.loads(call["function"]["arguments"])["key"]) for call in calls] == [
        (0, "call_request_0_0", "7"),
        (1, "call_request_0_1", "8"),
    ]
    assert facts.tool_problem is None


def test_a_truncated_call_is_never_released():
    """The answer ends as the engine's own would: by length, without a call; and the judge knows what that may mean."""
    thought_of = f"</think>{XML_CALL}\n{XML_CALL[:-5]}"
    answer, facts = whole(thought_of, "length")
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": ""}
    assert (facts.ending, facts.tool_problem) == (Ending.LENGTH, Reason.TOOL_CALL_MISSING)
    pieces, facts = streamed(*thought_of, finish="length")
    assert {part for part, _, _ in told(pieces)} == {Part.OPENING, Part.ENDING}
    assert facts.tool_problem is Reason.TOOL_CALL_MISSING


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (XML_CALL.replace("lookup_key", "no_tool"), Reason.TOOL_NAME_UNKNOWN),
        (XML_CALL.replace("parameter=key", "parameter=other"), Reason.TOOL_ARGUMENTS_INVALID),
        (XML_CALL.replace("</parameter>", ""), Reason.TOOL_ARGUMENTS_INVALID),
    ],
)
def test_the_judge_sees_what_is_wrong_with_a_call(call, problem):
    """A rendered chat is judged as a native one."""
    assert whole(f"</think>{call}")[1].tool_problem is problem
    assert streamed(f"</think>{call}")[1].tool_problem is problem


def test_several_choices_are_read_apart():
    """Each choice of `n` has its own thoughts and calls."""
    reader = reader_for(prepared(tools=[LOOKUP]), head("application/json"))
    texts = [f"</think>{XML_CALL}", "a</think>b"]
    choices = [{"index": index, "text": text, "finish_reason": "stop"} for index, text in enumerate(texts)]
    reader.feed(json.dumps({"id": "x", "choices": choices}).encode())
    first, second = json.loads(reader.finish()[0].data)["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert second["message"] == {"role": "assistant", "reasoning_content": "a", "content": "b"}


def test_an_answer_that_is_no_completion_is_malformed():
    """What the engine sends never raises; an error of its own passes as ever."""
    reader = reader_for(prepared(), head("application/json"))
    reader.feed(b'{"id": "x", "choices": [{"index": 0, "text": 3}]}')
    assert reader.finish() == []
    assert reader.facts().malformed
    reader = reader_for(prepared(), head("application/json"))
    reader.feed(b'{"error": {"message": "no"}}')
    assert (reader.finish(), reader.facts().engine_error) == ([], "no")


def test_a_canary_of_a_rendered_pool_goes_the_same_way():
    """It is rendered, answered as text, and passes only by the right call."""
    chat = rendering().prepare(canary_request("n-1", "m"), "")
    assert "Call lookup_key with key n-1." in json.loads(chat.body)["prompt"]
    for key, passes in (("n-1", True), ("n-2", False)):
        reader = reader_for(chat, head("application/json"))
        text = f"</think>{XML_CALL.replace('7', key)}"
        reader.feed(json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}).encode())
        assert (canary_failure(reader.finish()[0].data, "n-1") is None) is passes


@given(st.binary(max_size=40) | st.builds(lambda body: json.dumps(body).encode(), st.dictionaries(
    st.sampled_from(["messages", "tools", "tool_choice", "stop", "stream", "chat_template_kwargs", "max_tokens"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                 | st.dictionaries(st.sampled_from(["role", "content", "function", "name", "type"]), inner)),
)))  # fmt: skip
def test_any_body_is_prepared_or_refused(body):
    """A bad request is the request's fault (promise 7)."""
    try:
        chat = rendering().prepare(body, ID)
    except InvalidRequest:
        return
    assert "prompt" in json.loads(chat.body)
