"""Tool calls as the clients' libraries put them together, and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming._deltas import accumulate_delta

from basert_fleet.core.verdict import Reason
from basert_fleet.engine.toolcalls import (
    MAX_VALIDATED_CALLS,
    NO_TOOLS,
    Call,
    CallDeltas,
    Fragment,
    ToolSet,
    by_index_appending,
)

LOOKUP = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}


def tool_set(**members):
    """Read the tools of a request with these members."""
    return ToolSet.read(msgspec.json.decode(json.dumps(members), type=dict[str, msgspec.Raw]))


def tool(name, parameters=LOOKUP):
    """Return a tool as a request gives it."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = tool_set(tools=[tool("lookup_key"), tool("free", None)])


def problem_of_stream(*deltas, tools=TOOLS, finish="tool_calls"):
    """Judge a stream of tool_calls deltas."""
    calls = CallDeltas()
    for delta in deltas:
        calls.add(delta)
    return calls.problem(tools, finish)


def as_openai_assembles(fragments):
    """Return what OpenAI's Python library makes of these fragments, or None where it raises."""
    told: dict = {}
    try:
        for one in fragments:
            function = {"name": one.name, "arguments": one.arguments}
            entry = {"function": {key: value for key, value in function.items() if value is not None}}
            accumulate_delta(told, {"tool_calls": [entry if one.index is None else {"index": one.index} | entry]})
    except (RuntimeError, TypeError):
        return None
    functions = [entry["function"] for entry in told.get("tool_calls", [])]
    return [Call(function.get("name", ""), function.get("arguments", "")) for function in functions]


def delta(index=None, id=None, name=None, arguments=None):  # noqa: A002  # the field's name
    """Return one delta with the fields that are given."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    given = {"index": index, "id": id, "function": function or None}
    return [{key: value for key, value in given.items() if value is not None}]


@pytest.mark.parametrize(
    ("calls", "finish", "found"),
    [
        ([("lookup_key", '{"key":"a"}')], "tool_calls", None),
        ([("lookup_key", '{"key":"a"}'), ("lookup_key", '{"key":"b"}')], "tool_calls", None),
        ([("free", "{}")], "tool_calls", None),
        ([("lookup_key", '{"key":1}')], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("lookup_key", '{"key":"a"}'), ("lookup_key", "{}")], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("lookup_key", '{"key":"a"')], "length", Reason.TOOL_ARGUMENTS_INVALID),
        ([("lookup_key", '{"key":"a"}{"key":"b"}')], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("free", '"text"')], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("free", "")], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("free", None)], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("free", '{"a": NaN}')], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("free", "[" * 100_000)], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("free", "\ud800")], "tool_calls", Reason.TOOL_ARGUMENTS_INVALID),
        ([("lookup_keys", '{"key":"a"}')], "tool_calls", Reason.TOOL_NAME_UNKNOWN),
        ([(None, "{}")], "tool_calls", Reason.TOOL_NAME_UNKNOWN),
        ([], "length", Reason.TOOL_CALL_MISSING),
        ([], "tool_calls", Reason.TOOL_CALL_MISSING),
        ([], "stop", None),
        ([], None, None),
    ],
)
def test_calls_are_held_against_the_requests_tools(calls, finish, found):
    """Unknown names, arguments that are no object or not as declared, and the seed's missing call are found."""
    assert TOOLS.problem([Call(*call) for call in calls], finish) is found


def test_only_so_many_calls_are_validated():
    """An answer with very many calls cannot hold up the loop: beyond the limit a call must only be an object."""
    sound, unsound = Call("lookup_key", '{"key":"a"}'), Call("lookup_key", "{}")
    fitting = [sound] * (MAX_VALIDATED_CALLS - 1)
    assert TOOLS.problem([*fitting, unsound], "tool_calls") is Reason.TOOL_ARGUMENTS_INVALID
    assert TOOLS.problem([*fitting, sound, unsound], "tool_calls") is None
    assert TOOLS.problem([*fitting, sound, Call("lookup_key", "x")], "tool_calls") is Reason.TOOL_ARGUMENTS_INVALID


def test_call_without_tools_is_somebody_elses():
    """A request without tools has no call to expect, and none to get."""
    assert NO_TOOLS.problem([], "length") is None
    assert NO_TOOLS.problem([Call("lookup_key", '{"key":"a"}')], "tool_calls") is Reason.TOOL_NAME_UNKNOWN


@pytest.mark.parametrize(
    ("choice", "finish", "found"),
    [
        ("auto", "stop", None),
        ("auto", "length", Reason.TOOL_CALL_MISSING),
        ("none", "length", None),
        ("required", "stop", Reason.TOOL_CALL_MISSING),
        ({"type": "function", "function": {"name": "a"}}, "stop", Reason.TOOL_CALL_MISSING),
        (7, "stop", None),
    ],
)
def test_tool_choice_says_whether_a_call_is_due(choice, finish, found):
    """A call that was required and did not come is missing; one that was forbidden is not."""
    assert tool_set(tools=[tool("a"), tool("b")], tool_choice=choice).problem([], finish) is found


def test_named_choice_allows_only_its_tool():
    """A request for one tool by name is not answered by another."""
    named = tool_set(tools=[tool("a", {}), tool("b", {})], tool_choice={"type": "function", "function": {"name": "a"}})
    assert named.problem([Call("a", "{}")], "stop") is None
    assert named.problem([Call("b", "{}")], "stop") is Reason.TOOL_NAME_UNKNOWN


def test_older_functions_are_tools():
    """`functions` and `function_call` of the older API mean the same."""
    older = tool_set(functions=[{"name": "a", "parameters": LOOKUP}], function_call={"name": "a"})
    calls = CallDeltas()
    calls.add_function_call({"name": "a", "arguments": ""})
    calls.add_function_call({"arguments": '{"key":'})
    calls.add_function_call({"arguments": '"x"}'})
    assert calls.problem(older, "function_call") is None
    assert older.problem([], "stop") is Reason.TOOL_CALL_MISSING


@pytest.mark.parametrize("tools", [{}, "x", [1], [{"type": "function"}], [{"function": {"name": 1}}], None, []])
def test_malformed_tools_are_left_to_the_engine(tools):
    """Tools that cannot be read are none; refusing them is the engine's part."""
    assert not tool_set(tools=tools)


@pytest.mark.parametrize(
    "deltas",
    [
        # as OpenAI streams
        [delta(0, "a", "lookup_key", ""), delta(0, arguments='{"key"'), delta(0, arguments=':"x"}')],
        # two calls, interleaved
        [
            delta(0, "a", "lookup_key", '{"key":'),
            delta(1, "b", "lookup_key", '{"key":"y'),
            delta(0, arguments='"x"}'),
            delta(1, arguments='"}'),
        ],
        # index missing throughout
        [delta(None, "a", "lookup_key", '{"key":'), delta(None, arguments='"x"}')],
        # index repeated for two calls
        [delta(0, "a", "lookup_key", '{"key":"x"}'), delta(0, "b", "lookup_key", '{"key":"y"}')],
        # continuations that carry only an id
        [
            delta(0, "a", "lookup_key", '{"key":'),
            delta(1, "b", "lookup_key", '{"key":'),
            delta(None, "a", arguments='"x"}'),
            delta(None, "b", arguments='"y"}'),
        ],
        # the name repeated with every delta
        [delta(0, "a", "lookup_key", '{"key":'), delta(0, "a", "lookup_key", '"x"}')],
        # two calls without ids, the name repeated
        [
            delta(0, None, "lookup_key", '{"key":'),
            delta(1, None, "lookup_key", '{"key":'),
            delta(0, None, "lookup_key", '"x"}'),
            delta(1, None, "lookup_key", '"y"}'),
        ],
        # a new id and the name with every delta
        [delta(0, "a", "lookup_key", '{"key":'), delta(0, "b", "lookup_key", '"x"}')],
        # the name in pieces
        [delta(0, "a", "lookup", ""), delta(0, name="_key", arguments='{"key":"x"}')],
    ],
)
def test_stream_that_some_library_assembles_is_fine(deltas):
    """C38: an odd stream is judged by what comes out of it."""
    assert problem_of_stream(*deltas) is None


@pytest.mark.parametrize(
    ("deltas", "found"),
    [
        (
            [delta(0, "a", "lookup_key", '{"key":"x"}'), delta(0, arguments='{"key":"y"}')],
            Reason.TOOL_ARGUMENTS_INVALID,
        ),
        ([delta(None, None, "lookup_key", '{"key":"x"}')] * 2, Reason.TOOL_ARGUMENTS_INVALID),
        ([delta(0, "a", "other", "{}")], Reason.TOOL_NAME_UNKNOWN),
        ([delta(0, "a", None, '{"key":"x"}')], Reason.TOOL_NAME_UNKNOWN),
        ([[7]], Reason.TOOL_ARGUMENTS_INVALID),
        ([{"index": 0}], Reason.TOOL_ARGUMENTS_INVALID),
        ([[{"index": "0"}]], Reason.TOOL_ARGUMENTS_INVALID),
        (
            [[{"index": 0, "function": {"name": "lookup_key", "arguments": {"key": "x"}}}]],
            Reason.TOOL_ARGUMENTS_INVALID,
        ),
        ([delta(0, "a", "lookup_key", '{"key":"x"}'), [None]], Reason.TOOL_ARGUMENTS_INVALID),
    ],
)
def test_stream_that_no_library_assembles_is_suspect(deltas, found):
    """C38: what no library could turn into sound calls is suspect."""
    assert problem_of_stream(*deltas) is found


def test_whole_message_needs_no_index():
    """The calls of a response in one piece are told apart by their place, ids or not."""
    calls = CallDeltas()
    calls.add_whole([{"function": {"name": "lookup_key", "arguments": f'{{"key":"{key}"}}'}} for key in "ab"])
    assert calls.problem(TOOLS, "tool_calls") is None


def in_library_order(fragments):
    """Number the calls in the order in which they begin, the first fragment with its index, as the library needs it."""
    numbers: dict[int, int] = {}
    ordered = []
    for one in fragments:
        index = one.index or 0 if not ordered else one.index
        ordered.append(replace(one, index=None if index is None else numbers.setdefault(index, len(numbers))))
    return ordered


indexes = st.sampled_from([0, 0, 1, 2, None])
fragment_lists = st.lists(st.builds(Fragment, indexes, st.none(), st.none() | st.just("n"), st.none() | st.text()))


@given(fragment_lists.map(in_library_order))
def test_python_assembly_is_openais(fragments):
    """Our reading by index is what OpenAI's own library makes of the same deltas."""
    assert by_index_appending(fragments) == as_openai_assembles(fragments)


@given(
    calls=st.lists(st.tuples(st.sampled_from(["lookup_key", "free"]), st.text(max_size=9)), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    order=st.randoms(use_true_random=False),
)
def test_every_regular_stream_is_fine(calls, cuts, order):
    """However a library-conforming engine cuts and interleaves sound calls, nothing is found."""
    queues = []
    for index, (name, key) in enumerate(calls):
        text = json.dumps({"key": key.encode("utf-8", "replace").decode()}, ensure_ascii=False)
        places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
        pieces = [text[start:end] for start, end in pairwise(places)]
        queues.append([delta(index, f"id{index}", name, ""), *(delta(index, arguments=piece) for piece in pieces)])
    started = [queue.pop(0) for queue in queues]
    rest = []
    while any(queues):
        rest.append(order.choice([queue for queue in queues if queue]).pop(0))
    assert problem_of_stream(*started, *rest) is None
