"""The judge's table row by row, and what a worker owes after each verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest

from basert_fleet.core.api import DriftAction
from basert_fleet.core.calibration import Baseline
from basert_fleet.core.isolation import (
    CanarySchedule,
    Check,
    DriftTrust,
    Ending,
    Evidence,
    JudgePolicy,
    Probe,
    foresees_clean,
    judge,
    next_check,
    used_by_others,
)
from basert_fleet.core.verdict import KIND_OF_REASON, Reason, Verdict, VerdictKind

POLICY = JudgePolicy(tolerance_tokens=2, require_slots=True, drift_action=DriftAction.RECYCLE)
FLAT = Baseline(0, {Ending.STOP: 0, Ending.LENGTH: 0, Ending.TOOL_CALLS: 0})
STEEP = Baseline(1, {Ending.STOP: 0, Ending.LENGTH: 0})

SETTLED = Probe(is_processing=False, cache_tokens=200, cache_position=200)
HEALTHY = Evidence(
    settled=SETTLED,
    before=SETTLED,
    after=Probe(is_processing=False, cache_tokens=275, cache_position=275),
    ending=Ending.STOP,
    prompt_tokens=274,
    expected_prompt_tokens=274,
    completion_tokens=142,
    tool_problem=None,
    idle_proven=True,
    server_restarted=False,
)
DRIFTED = Probe(is_processing=False, cache_tokens=275, cache_position=403)  # seed
TOOL_PROBLEMS = [reason for reason, kind in KIND_OF_REASON.items() if kind is VerdictKind.SUSPECT]


def test_a_healthy_lease_is_clean() -> None:
    """Proven idle, nobody else there, counters as expected: clean, and the drift is recorded."""
    assert judge(HEALTHY, FLAT, POLICY) == Verdict(VerdictKind.CLEAN, drift_tokens=0)


@pytest.mark.parametrize(
    ("reason", "evidence"),
    [
        (Reason.SERVER_RESTARTED, replace(HEALTHY, server_restarted=True)),
        (Reason.NO_PROOF_OF_IDLE, replace(HEALTHY, idle_proven=False)),
        (Reason.NO_PROOF_OF_IDLE, replace(HEALTHY, after=replace(SETTLED, is_processing=True))),
        (Reason.FOREIGN_TRAFFIC, replace(HEALTHY, before=replace(SETTLED, cache_tokens=201))),
        (Reason.FOREIGN_TRAFFIC, replace(HEALTHY, before=replace(SETTLED, cache_position=201))),
        (Reason.FOREIGN_TRAFFIC, replace(HEALTHY, before=replace(SETTLED, is_processing=True))),
        (Reason.FOREIGN_TRAFFIC, replace(HEALTHY, settled=None, before=replace(SETTLED, is_processing=True))),
        (Reason.POSITION_DRIFT, replace(HEALTHY, after=DRIFTED)),
        (Reason.TOOL_CALL_MISSING, replace(HEALTHY, tool_problem=Reason.TOOL_CALL_MISSING)),
        (Reason.SLOTS_UNREACHABLE, replace(HEALTHY, after=None)),
        (Reason.NOT_CALIBRATED, replace(HEALTHY, ending=Ending.CANCELLED)),
    ],
)
def test_each_row_of_the_table(reason: Reason, evidence: Evidence) -> None:
    """One finding alone leads to its own reason and to that reason's kind."""
    verdict = judge(evidence, FLAT, POLICY)
    assert (verdict.reason, verdict.kind) == (reason, KIND_OF_REASON[reason])


def test_the_most_serious_finding_is_told() -> None:
    """Findings are taken away from the worst on; each time the next one in the table's order is the reason."""
    evidence = replace(
        HEALTHY,
        server_restarted=True,
        idle_proven=False,
        before=replace(SETTLED, cache_tokens=201),
        after=DRIFTED,
        tool_problem=Reason.TOOL_NAME_UNKNOWN,
    )
    told = []
    for better in (
        {},
        {"server_restarted": False},
        {"idle_proven": True},
        {"before": SETTLED},
        {"after": None},
        {"tool_problem": None},
    ):
        evidence = replace(evidence, **better)
        told.append(judge(evidence, FLAT, POLICY).reason)
    assert told == [
        Reason.SERVER_RESTARTED,
        Reason.NO_PROOF_OF_IDLE,
        Reason.FOREIGN_TRAFFIC,
        Reason.POSITION_DRIFT,
        Reason.TOOL_NAME_UNKNOWN,
        Reason.SLOTS_UNREACHABLE,
    ]


def test_the_seeds_failure_is_contaminated() -> None:
    """275/403 after 2048 tokens without a call is position_drift of 128, not just a missing call."""
    evidence = replace(
        HEALTHY,
        after=DRIFTED,
        ending=Ending.LENGTH,
        prompt_tokens=9,
        completion_tokens=2048,
        tool_problem=Reason.TOOL_CALL_MISSING,
    )
    assert judge(evidence, FLAT, POLICY) == Verdict.because(Reason.POSITION_DRIFT, drift_tokens=128, prefix_reused=True)


@pytest.mark.parametrize(("drift", "kind"), [(2, VerdictKind.CLEAN), (3, VerdictKind.CONTAMINATED)])
def test_drift_within_the_tolerance_is_clean(drift: int, kind: VerdictKind) -> None:
    """The tolerance itself is still allowed."""
    after = replace(DRIFTED, cache_position=DRIFTED.cache_tokens + drift)
    verdict = judge(replace(HEALTHY, after=after), FLAT, POLICY)
    assert (verdict.kind, verdict.drift_tokens) == (kind, drift)


def test_an_idle_reset_is_no_traffic() -> None:
    """Counters that fell while nobody held a lease are the engine's idle timeout."""
    reset = Probe(is_processing=False, cache_tokens=0, cache_position=0)
    assert judge(replace(HEALTHY, before=reset), FLAT, POLICY).kind is VerdictKind.CLEAN


@pytest.mark.parametrize("lacking", ["settled", "before"])
def test_a_missing_earlier_probe_accuses_nobody(lacking: str) -> None:
    """Foreign traffic needs two probes to be seen."""
    assert judge(replace(HEALTHY, **{lacking: None}), FLAT, POLICY).kind is VerdictKind.CLEAN


def test_missing_usage_on_a_slope_is_unverifiable() -> None:
    """An engine that keeps its token count back cannot be judged by it."""
    assert judge(replace(HEALTHY, completion_tokens=None), STEEP, POLICY).reason is Reason.USAGE_MISSING


def test_without_a_baseline_drift_is_not_considered() -> None:
    """A pool that fell back to canaries alone is clean where only drift speaks against it."""
    assert judge(replace(HEALTHY, after=DRIFTED), None, POLICY) == Verdict(VerdictKind.CLEAN)


def test_without_a_baseline_silent_slots_stay_unverifiable() -> None:
    """Falling back from drift does not turn silence into a proof."""
    assert judge(replace(HEALTHY, after=None), None, POLICY).reason is Reason.SLOTS_UNREACHABLE


@pytest.mark.parametrize(
    ("prompt", "expected", "reused"),
    [
        (9, 274, True),
        (274, 274, False),
        (137, 274, False),
        (136, 274, True),
        (9, 40, False),
        (8, 40, True),
        (300, 274, False),
        (None, 274, False),
        (9, None, False),
    ],
)
def test_a_reused_prefix_is_recorded_and_clean(prompt: int | None, expected: int | None, reused: bool) -> None:
    """Less than half of the prompt and at least 32 tokens short is a reused prefix, which is no fault in itself."""
    verdict = judge(replace(HEALTHY, prompt_tokens=prompt, expected_prompt_tokens=expected), FLAT, POLICY)
    assert (verdict.kind, verdict.prefix_reused) == (VerdictKind.CLEAN, reused)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in TOOL_PROBLEMS])
def test_a_tool_problem_cannot_blame_the_worker(reason: Reason) -> None:
    """What a request's content brings about never has a reason that recycles a worker."""
    with pytest.raises(ValueError, match=f"not {reason.value}"):
        replace(HEALTHY, tool_problem=reason)


@pytest.mark.parametrize("reason", Reason)
def test_what_a_worker_owes(reason: Reason) -> None:
    """Contamination is recycled, doubt is put to a canary; the two settings change exactly one row each."""
    for action, require_slots in product(DriftAction, [True, False]):
        expected = Check.RECYCLE if KIND_OF_REASON[reason] is VerdictKind.CONTAMINATED else Check.CANARY
        if reason is Reason.POSITION_DRIFT and action is DriftAction.CONFIRM:
            expected = Check.CANARY
        if reason is Reason.SLOTS_UNREACHABLE and not require_slots:
            expected = Check.NONE
        policy = JudgePolicy(tolerance_tokens=2, require_slots=require_slots, drift_action=action)
        assert next_check(Verdict.because(reason), policy) is expected


def test_a_clean_worker_owes_nothing() -> None:
    """A clean lease is followed by the next offer."""
    assert next_check(Verdict(VerdictKind.CLEAN), POLICY) is Check.NONE


def test_a_process_never_proven_is_due() -> None:
    """A canary comes before the first offer, whatever was served meanwhile."""
    schedule = CanarySchedule(every_requests=50, every_seconds=300)
    schedule.served(10)
    assert schedule.next_due_at() == -math.inf
    assert schedule.due(-1e9)


def test_a_canary_is_due_after_so_many_requests() -> None:
    """The count is from the last proof on, and its reaching is due at once."""
    schedule = CanarySchedule(every_requests=2, every_seconds=300)
    schedule.proven(0)
    schedule.served(1)
    assert not schedule.due(1)
    schedule.served(2)
    assert schedule.due(2)
    schedule.proven(3)
    assert not schedule.due(3)


def test_a_canary_is_due_after_idleness() -> None:
    """Use puts the idle canary off; idleness is from the last use or proof on."""
    schedule = CanarySchedule(every_requests=50, every_seconds=300)
    schedule.proven(0)
    assert schedule.next_due_at() == 300
    schedule.served(200)
    assert schedule.next_due_at() == 500
    assert not schedule.due(499.9)
    assert schedule.due(500)


def test_a_changed_schedule_keeps_its_count() -> None:
    """New limits hold at once for what was already served, and for the idleness already begun."""
    schedule = CanarySchedule(every_requests=50, every_seconds=300)
    schedule.proven(0)
    schedule.served(10)
    schedule.reconfigure(every_requests=50, every_seconds=20)
    assert schedule.next_due_at() == 30
    schedule.reconfigure(every_requests=1, every_seconds=20)
    assert schedule.due(10)


DRIFT = Verdict.because(Reason.POSITION_DRIFT, drift_tokens=128)
CLEAN = Verdict(VerdictKind.CLEAN, drift_tokens=0)


def test_fresh_processes_that_all_drift_make_drift_unusable() -> None:
    """Three distinct processes in a row that drift before any clean lease: the rule is wrong, not the processes."""
    trust = DriftTrust()
    trust.judged("chat-0", 1, DRIFT)
    trust.judged("chat-0", 1, DRIFT)
    trust.judged("chat-0", 2, DRIFT)
    assert not trust.unusable
    trust.judged("chat-1", 1, DRIFT)
    assert trust.unusable


def test_a_clean_lease_restores_trust_in_drift() -> None:
    """One process that fits its baseline shows that the rule can be met."""
    trust = DriftTrust()
    for generation in (1, 2, 3):
        trust.judged("chat-0", generation, DRIFT)
    trust.judged("chat-1", 1, CLEAN)
    assert not trust.unusable


def test_drift_after_clean_leases_is_contamination_and_no_doubt() -> None:
    """The seed's own build, clean for five requests and then drifting, never makes drift unusable."""
    trust = DriftTrust()
    for generation in range(1, 10):
        trust.judged("chat-0", generation, CLEAN)
        trust.judged("chat-0", generation, DRIFT)
    for generation in range(1, 10):
        trust.judged("chat-0", generation, CLEAN)
    trust.judged("chat-1", 1, DRIFT)
    assert not trust.unusable


@pytest.mark.parametrize(
    "verdict",
    [Verdict(VerdictKind.CLEAN), *map(Verdict.because, set(Reason) - {Reason.POSITION_DRIFT})],
)
def test_leases_that_say_nothing_of_drift_leave_its_trust_alone(verdict: Verdict) -> None:
    """Neither a clean lease judged without drift nor another reason counts for or against."""
    trust = DriftTrust()
    for generation in (1, 2, 3):
        trust.judged("chat-0", generation, verdict)
    assert not trust.unusable
    for generation in (1, 2, 3):
        trust.judged("chat-0", generation, DRIFT)
    trust.judged("chat-0", 4, verdict)
    assert trust.unusable


@pytest.mark.parametrize(
    ("before", "used"),
    [
        (Probe(False, 275, 275), False),
        (Probe(False, 0, 0), False),
        (Probe(False, 11, 11), True),
        (Probe(False, 300, 300), True),
        (Probe(True, 275, 275), True),
    ],
)
def test_what_an_idle_slots_counters_tell(before: Probe, used: bool) -> None:
    """Any change is somebody else's request, but for the engine's reset to zero."""
    assert used_by_others(Probe(False, 275, 275), before) is used


@pytest.mark.parametrize(
    ("baseline", "ending", "tokens", "problem", "foreseen"),
    [
        (Baseline(0, {Ending.STOP: 3}), Ending.STOP, None, None, True),
        (Baseline(1, {Ending.STOP: 3}), Ending.STOP, 8, None, True),
        (Baseline(1, {Ending.STOP: 3}), Ending.STOP, None, None, False),
        (Baseline(0, {Ending.STOP: 3}), Ending.LENGTH, 8, None, False),
        (Baseline(0, {Ending.STOP: 3}), Ending.STOP, 8, Reason.TOOL_CALL_MISSING, False),
        (None, Ending.STOP, 8, None, False),
    ],
    ids=["no count needed", "counted", "count missing", "ending unknown", "odd answer", "no baseline"],
)
def test_a_clean_verdict_is_foreseen_where_only_the_counters_are_missing(
    baseline: Baseline | None, ending: Ending, tokens: int | None, problem: Reason | None, foreseen: bool
) -> None:
    """What makes a lease suspect or unverifiable whatever /slots says is known with its response."""
    assert foresees_clean(baseline, ending, tokens, problem) is foreseen


def test_a_canary_that_the_lease_in_progress_makes_due_is_foreseen() -> None:
    """By use, or because the time came while it ran; a process never proven owes one anyway."""
    schedule = CanarySchedule(every_requests=2, every_seconds=100.0)
    assert schedule.due_after_another(0.0)
    schedule.proven(0.0)
    assert not schedule.due_after_another(99.0)
    assert schedule.due_after_another(100.0)
    schedule.served(10.0)
    assert schedule.due_after_another(20.0)
