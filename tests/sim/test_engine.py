"""The bug: reuse runs, overlaps, contamination; and what the counters show of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.sim.answer import right_answer
from basert_fleet.sim.ask import Limits, read_chat, read_completion
from basert_fleet.sim.bug import BugPolicy
from basert_fleet.sim.counters import CounterMode
from basert_fleet.sim.engine import Engine
from basert_fleet.sim.finish import Finish
from support.seed import lookup, plain

LIMITS = Limits(max_context=100_000, max_tokens=2048, directives=True)


def engine(*, bug=True, after=5, mode=CounterMode.EQUAL):
    """Return a fresh process's engine."""
    return Engine(BugPolicy(bug, after), mode)


def serve(engine, ask):
    """Run one generation alone and return its answer."""
    generation = engine.begin(ask)
    engine.end(generation, generation.answer.finish, generation.answer.tokens)
    return generation.answer


def tool(key):
    """Return the report's request."""
    return read_chat(lookup(key), LIMITS)


def values(answers):
    """Return the value each answer calls with, or None for one without a call."""
    return [answer.calls[0].value if answer.calls else None for answer in answers]


def test_the_sixth_request_of_one_prefix_fails_and_the_slot_drifts():
    """The report's sequence: five right, then `length` with 2048 tokens, and 275/403."""
    process = engine()
    answers = [serve(process, tool(f"seq-{n}")) for n in range(6)]
    assert values(answers) == ["seq-0", "seq-1", "seq-2", "seq-3", "seq-4", None]
    assert (answers[5].finish, answers[5].tokens) == (Finish.LENGTH, 2048)
    assert process.counters == (275, 403)


def test_at_its_worst_every_reuse_contaminates():
    """`--sim-bug-after 1` fails the second request of a prefix."""
    process = engine(after=1)
    assert values([serve(process, tool("a")), serve(process, tool("b"))]) == ["a", None]


@pytest.mark.parametrize("between", [read_chat(plain("hi"), LIMITS), read_completion({"prompt": "hi"}, LIMITS)])
def test_another_request_between_breaks_the_run(between):
    """Control 2: with a plain chat after each, a hundred of one shape are right."""
    process = engine()
    for n in range(100):
        assert values([serve(process, tool(f"k-{n}"))]) == [f"k-{n}"]
        serve(process, between)
    assert not process.contaminated


def test_nothing_heals_a_contamination():
    """After it tool calls are wrong or run away by turns, texts echo wrongly, and the drift grows."""
    process = engine(after=1)
    serve(process, tool("a"))
    serve(process, tool("b"))
    text = read_chat(plain("hi"), LIMITS)
    assert serve(process, text).text != right_answer(text, 0).text
    assert values([serve(process, tool(key)) for key in "cdef"]) == [None, "c", None, "e"]
    process.forget_cache()
    assert process.counters == (0, 0)
    assert serve(process, text).text != right_answer(text, 0).text
    assert process.counters.cache_position - process.counters.cache_tokens == 7 * 128


def overlap(process, asks):
    """Begin all, then end all in order; return the answers."""
    generations = [process.begin(ask) for ask in asks]
    for generation in generations:
        process.end(generation, generation.answer.finish, generation.answer.tokens)
    return [generation.answer for generation in generations]


@pytest.mark.parametrize(
    ("keys", "got"),
    [
        (["c2-0", "c2-1"], ["key", None]),
        (["c4-0", "c4-1", "c4-2", "c4-3"], ["4", "4", None, "4-3"]),
        (["c3-0", "c3-1", "c3-2"], ["c3-2", None, "c3-1"]),
    ],
)
def test_overlapping_requests_get_the_reports_answers(keys, got):
    """N=2 and N=4 are the report's tables; of other N every second runs away, the rest get others' values."""
    process = engine()
    answers = overlap(process, map(tool, keys))
    assert values(answers) == got
    assert all(answer.tokens == 2048 for answer in answers if not answer.calls)
    assert process.contaminated


def test_one_that_ended_before_the_next_arrived_was_no_overlap():
    """Back to back is safe; one after the first of three has ended still joins the group of three."""
    process = engine()
    assert values([serve(process, tool("a")), serve(process, tool("b"))]) == ["a", "b"]
    assert not process.contaminated
    first = process.begin(tool("c"))
    second = process.begin(tool("d"))
    process.end(first, first.answer.finish, 1)
    third = process.begin(tool("e"))
    assert values([first.answer, second.answer, third.answer]) == ["key", None, "d"]


def test_without_the_bug_a_second_generation_has_to_wait():
    """`may_begin` serializes: what the report expects of a server that cannot branch its state."""
    process = engine(bug=False)
    first = process.begin(tool("a"))
    assert not process.may_begin
    process.end(first, first.answer.finish, 1)
    assert process.may_begin
    assert values([serve(process, tool(f"k-{n}")) for n in range(20)]) == [f"k-{n}" for n in range(20)]


def test_reported_prompt_tokens_fall_with_reuse():
    """274 anew, 9 with the prefix reused, 274 again after something else."""
    process = engine(bug=False)
    prompts = []
    for ask in (tool("seq-0"), tool("seq-1"), read_chat(plain("hi"), LIMITS), tool("seq-2")):
        generation = process.begin(ask)
        prompts.append(generation.prompt_tokens)
        process.end(generation, Finish.STOP, 1)
    assert prompts == [274, 9, 10, 274]


GAPS = {
    CounterMode.EQUAL: dict.fromkeys(Finish, 0),
    CounterMode.CONSTANT: dict.fromkeys(Finish, 7),
    CounterMode.COMPLETION: dict.fromkeys(Finish, 30),
    CounterMode.ENDING: {Finish.STOP: 0, Finish.TOOL_CALLS: 1, Finish.LENGTH: -1, Finish.CANCELLED: 1},
}


@pytest.mark.parametrize("mode", CounterMode)
@pytest.mark.parametrize("finish", Finish)
def test_each_build_has_its_own_healthy_gap(mode, finish):
    """What cache_position - cache_tokens is after each ending of 30 tokens; a fresh process shows 0/0."""
    process = engine(mode=mode)
    assert process.counters == (0, 0)
    process.end(process.begin(tool("seq-0")), finish, 30)
    assert process.counters == (275, 275 + GAPS[mode][finish])


@pytest.mark.parametrize("mode", CounterMode)
def test_drift_comes_on_top_of_the_healthy_gap(mode):
    """A contaminated slot is 128 further ahead than its build's gap."""
    process = engine(mode=mode)
    process.contaminate()
    process.end(process.begin(tool("seq-0")), Finish.STOP, 30)
    assert process.counters == (275, 275 + GAPS[mode][Finish.STOP] + 128)


@given(st.lists(st.sampled_from(["tool a", "tool b", "plain", "end", "cancel"]), max_size=40), st.booleans())
def test_totals_and_states_hold_in_any_order(steps, bug):
    """Whatever begins and ends when: counts add up, and only the bug ever contaminates."""
    process = engine(bug=bug)
    for step in steps:
        if step in ("end", "cancel"):
            if process.running:
                finish = Finish.CANCELLED if step == "cancel" else process.running[0].answer.finish
                process.end(process.running[0], finish, 1)
        elif process.may_begin:
            process.begin(read_chat(plain("x"), LIMITS) if step == "plain" else tool(step[-1]))
        totals = process.totals
        assert totals.begun - totals.ended == len(process.running)
        assert bug or (len(process.running) <= 1 and not process.contaminated and not totals.damaged)
        assert process.contaminated or totals.overlapped == 0
