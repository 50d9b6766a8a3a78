"""Reading an answer as it grows: whatever its pieces, the same is said, and no truncated call ever."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from basert_fleet.engine import spoken_answer
from basert_fleet.engine.dialects import Dialect
from basert_fleet.engine.spoken_answer import Content, Reasoning, Speech, SpokenAnswer
from basert_fleet.engine.toolcalls import Call, ToolSet

TOOLS = ToolSet({"f": b'{"properties": {"p": {"type": "string"}, "q": {"type": "integer"}}}'})
HERMES, QWEN = Speech(Dialect.HERMES, TOOLS), Speech(Dialect.QWEN, TOOLS)
THINKING = Speech(Dialect.HERMES, TOOLS, thinks=True)
OPENED = Speech(Dialect.QWEN, TOOLS, thinks=True, is_thinking=True)
JSON_CALL = '<tool_call>\n{"name": "f", "arguments": {"p": "x"}}\n</tool_call>'
XML_CALL = "<tool_call>\n<function=f>\n<parameter=p>\nx\n</parameter>\n</function>\n</tool_call>"
CALL = Call("f", '{"p": "x"}')


def read(speech, *pieces, truncated=False):
    """Return what an answer of these pieces says, neighbours of one kind joined."""
    answer, said = SpokenAnswer(speech), []
    for one in [*(one for piece in pieces for one in answer.feed(piece)), *answer.finish(truncated=truncated)]:
        if said and not isinstance(one, Call) and type(said[-1]) is type(one):
            said[-1] = type(one)(said[-1].text + one.text)
        else:
            said.append(one)
    return said


@pytest.mark.parametrize(
    ("speech", "text", "said"),
    [
        (HERMES, "Hello.\n", [Content("Hello.\n")]),
        (HERMES, "  Hello", [Content("  Hello")]),
        (HERMES, f"I look.\n\n{JSON_CALL}\n", [Content("I look."), CALL]),
        (HERMES, f"{JSON_CALL}\n{JSON_CALL}", [CALL, CALL]),
        (HERMES, f"{JSON_CALL}\nDone.", [Content("Done."), CALL]),
        (HERMES, "a < b <tool", [Content("a < b <tool")]),
        (HERMES, f"<think>no tag of this template</think>{JSON_CALL}", [
            Content("<think>no tag of this template</think>"), CALL]),
        (QWEN, XML_CALL, [Call("f", '{"p":"x"}')]),
        (THINKING, f"\n<think>\nHm.\n</think>\n\nSo.\n{JSON_CALL}", [Reasoning("Hm."), Content("So."), CALL]),
        (THINKING, "<think>\n\n</think>\n\nSo.", [Content("So.")]),
        (THINKING, "So. <think> is a tag", [Content("So. <think> is a tag")]),
        (THINKING, f"<think>{JSON_CALL}</think>No.", [Reasoning(JSON_CALL), Content("No.")]),
        (OPENED, "Hm.\n</think>\n\nSo.", [Reasoning("Hm."), Content("So.")]),
        (OPENED, f"Hm.</think>{XML_CALL}", [Reasoning("Hm."), Call("f", '{"p":"x"}')]),
        (OPENED, "Hm.", [Reasoning("Hm.")]),
        (Speech(), f"{JSON_CALL} is how one calls", [Content(f"{JSON_CALL} is how one calls")]),
    ],
)  # fmt: skip
def test_what_is_said(speech, text, said):
    """Tags and the white space around them belong to nobody; all else comes through as it is."""
    assert read(speech, text) == said
    assert read(speech, *text) == said


@pytest.mark.parametrize("call", ['{"name": "f", "arguments": {"p"}}', '{"name": "f"'])
def test_a_closed_but_malformed_call_comes_out_broken(call):
    """The judge and the client's library find it; the sound call after it is one."""
    assert read(HERMES, f"<tool_call>{call}</tool_call>{JSON_CALL}") == [Call("f", call), CALL]


def test_a_malformed_call_without_a_name_is_text():
    """Nobody could call it."""
    assert read(HERMES, f"<tool_call>well</tool_call>{JSON_CALL}") == [Content("<tool_call>well</tool_call>"), CALL]


def test_a_call_that_was_never_closed_is_text_or_nothing():
    """Ended by itself, the text is shown; cut by a limit, it is half a call and left out."""
    begun = JSON_CALL.removesuffix("</tool_call>")
    assert read(HERMES, f"I look.{begun}") == [Content(f"I look.{begun}")]
    assert read(HERMES, f"I look.{begun}", truncated=True) == [Content("I look.")]


def test_a_truncated_answer_calls_nothing():
    """Not even what was whole in it: half of a plan is another plan."""
    assert read(HERMES, f"I look.{JSON_CALL}<tool_call>", truncated=True) == [Content("I look.")]


def test_an_argument_may_hold_the_closing_tag():
    """A call ends where it is well-formed."""
    arguments = json.dumps({"p": "</tool_call>"})
    text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
    assert read(HERMES, *text) == [Call("f", arguments)]


def test_work_is_bounded(monkeypatch):
    """A text of nothing but tags is not read again and again; beyond the bound it is text."""
    monkeypatch.setattr(spoken_answer, "MAX_CALLS", 2)
    assert read(HERMES, JSON_CALL * 3) == [Content(JSON_CALL), CALL, CALL]
    tried = []
    monkeypatch.setattr(spoken_answer, "read_call", lambda *call: tried.append(call))
    read(HERMES, "<tool_call>" + "</tool_call>" * 1000)
    assert len(tried) == spoken_answer.MAX_CLOSINGS


@pytest.mark.parametrize("speech", [HERMES, QWEN, THINKING, OPENED])
@pytest.mark.parametrize(
    "repeated",
    [
        *("<tool_call></tool_call>", "<tool_call>", "</tool_call>", "<function=", "<function=f>", "<parameter=p>"),
        *("</parameter> ", "<parameter=p>x</parameter>", "<think>", "</think>", '"name"', '"name": "', "{", "<", " "),
    ],
)
def test_no_text_takes_long(speech, repeated):
    """A client can have a model write this. Were the work not linear in its length, this would take minutes."""
    for begun in ("", "<tool_call>", "<tool_call><function=f>", "<tool_call><function=f><parameter=p>"):
        read(speech, begun + repeated * (200_000 // len(repeated)) + "</tool_call>")


def seconds_for(speech, begun, repeated, pieces, limit=math.inf):
    """Return the CPU time in which an answer is read that comes in so many pieces; past the limit none is read."""
    answer = SpokenAnswer(speech)
    answer.feed(begun)
    started, took = time.thread_time(), 0.0
    for _ in range(pieces):
        if took < limit:
            answer.feed(repeated)
            took = time.thread_time() - started
    answer.finish(truncated=False)
    return took


LONG = "text" * 64  # so long that copying the pieces before it costs more than all else


@pytest.mark.parametrize(
    ("speech", "begun", "repeated"),
    [
        *((HERMES, "<tool_call>", LONG), (QWEN, "<tool_call>" + "</tool_call>" * 9, LONG + "</tool_call>")),
        *((HERMES, "Hello", "\n\n\n\n"), (HERMES, "", "    "), (HERMES, "Hello", "<tool"), (Speech(), "", "    ")),
        *((THINKING, "", "    "), (THINKING, "<think>", "    "), (THINKING, "<think>Hm.", "\n\n\n\n")),
        *((OPENED, "Hm.", "\n\n\n\n"), (OPENED, "Hm.", "</th"), (OPENED, "Hm.</think>", "    ")),
    ],
)
def test_no_number_of_pieces_takes_long(speech, begun, repeated):
    """As many tokens again take as long again, whatever waits: eight times the pieces not the 64 times of a square."""
    for _ in range(3):  # a busy machine may disturb one measurement, not three
        limit = 24 * seconds_for(speech, begun, repeated, 2_000)
        if seconds_for(speech, begun, repeated, 16_000, limit) < limit:
            return
    pytest.fail("not linear in the number of pieces")


TEXTS = st.lists(
    st.sampled_from(
        [
            *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=p>"),
            *("</parameter>", '{"name": "f", "arguments": {}}', '{"name":', "\n", " ", "a", "東", "<", JSON_CALL),
            XML_CALL,
        ]
    )
    | st.text(max_size=5),
    max_size=12,
).map("".join)
SPEECHES = st.sampled_from([HERMES, QWEN, THINKING, OPENED, Speech(thinks=True), Speech()])


@given(SPEECHES, TEXTS, st.booleans(), st.data())
def test_pieces_do_not_matter(speech, text, truncated, data):
    """However an engine cuts its text into tokens, the same is said."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(speech, *pieces, truncated=truncated) == read(speech, text, truncated=truncated)


@given(SPEECHES, TEXTS)
@example(HERMES, JSON_CALL)
def test_no_call_comes_of_a_truncated_text(speech, text):
    """Promise 3, whatever the model wrote."""
    assert not any(isinstance(one, Call) for one in read(speech, *text, truncated=True))


@given(st.sampled_from([HERMES, QWEN]), TEXTS, st.integers(min_value=0))
def test_a_call_needs_its_closing_tag(speech, text, end):
    """A text that was cut without saying so has as many calls as closing tags, at most."""
    cut = text[: end % (len(text) + 1)]
    assert sum(isinstance(one, Call) for one in read(speech, cut)) <= cut.count("</tool_call>")


ARGUMENTS = st.dictionaries(
    st.text(st.characters(exclude_characters="<>\n", exclude_categories=["Cs", "Cc", "Z"]), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"]))
    .filter(lambda value: "</parameter>" not in value and "</tool_call>" not in value)
    .map(lambda value: f".{value}."),
    max_size=4,
)


@given(st.lists(ARGUMENTS, min_size=1, max_size=4), st.sampled_from(list(Dialect)))
def test_calls_that_were_written_are_read(calls, dialect):
    """What a model writes by its template comes back as it was, in order."""
    write = written_as_json if dialect is Dialect.HERMES else written_as_xml
    said = read(Speech(dialect, TOOLS), *"\n".join(map(write, calls)))
    assert [(one.name, json.loads(one.arguments)) for one in said] == [("f", arguments) for arguments in calls]


def written_as_json(arguments):
    """Write a call as Hermes does."""
    return f"<tool_call>\n{json.dumps({'name': 'f', 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def written_as_xml(arguments):
    """Write a call as Qwen3-Coder does."""
    inner = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments.items())
    return f"<tool_call>\n<function=f>\n{inner}</function>\n</tool_call>"
