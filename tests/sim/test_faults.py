"""Which generation a fault strikes."""

from __future__ import annotations

import pytest

from basert_fleet.sim.faults import Fault, FaultPlan, FaultRule, parse_rule


def test_a_rule_is_always_or_for_the_nth_or_by_chance():
    """The three forms of `--sim-fault`."""
    assert parse_rule("hang") == FaultRule(Fault.HANG)
    assert parse_rule("run-on:nth=3") == FaultRule(Fault.RUN_ON, nth=3)
    assert parse_rule("crash:p=0.25") == FaultRule(Fault.CRASH, probability=0.25)


@pytest.mark.parametrize("text", ["", "explode", "crash:nth=x", "crash:often=1", "crash:p=much"])
def test_a_misspelt_rule_is_refused(text):
    """What does not read is an error, never a fault that silently does not happen."""
    with pytest.raises(ValueError, match=r".*"):
        parse_rule(text)


def test_the_nth_generation_only():
    """`nth` counts requests for a generation from 1."""
    plan = FaultPlan((parse_rule("crash:nth=2"),))
    assert [bool(plan.of(number)) for number in (1, 2, 3)] == [False, True, False]


def test_chance_is_the_same_for_the_same_seed_and_about_as_likely_as_said():
    """A run can be repeated, and another seed gives another run."""
    rules = (parse_rule("hang:p=0.2"),)
    struck = [number for number in range(1000) if FaultPlan(rules, 1).of(number)]
    assert struck == [number for number in range(1000) if FaultPlan(rules, 1).of(number)]
    assert struck != [number for number in range(1000) if FaultPlan(rules, 2).of(number)]
    assert 150 < len(struck) < 250
