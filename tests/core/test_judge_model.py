"""Whatever a healthy build counts, and whatever its clients do, the judge recycles nobody; the seed it always sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from basert_fleet.core.api import DriftAction
from basert_fleet.core.calibration import Baseline, Ending, Probe, Reading, fit
from basert_fleet.core.isolation import DriftTrust, Evidence, JudgePolicy, judge, next_check
from basert_fleet.core.verdict import KIND_OF_REASON, Reason, Verdict, VerdictKind

POLICY = JudgePolicy(tolerance_tokens=2, require_slots=True, drift_action=DriftAction.RECYCLE)
BY_ENDING = {Ending.STOP: 0, Ending.TOOL_CALLS: 1, Ending.LENGTH: -1, Ending.CANCELLED: 1, Ending.OTHER: 0}

HEALTHY_GAPS: Mapping[str, Callable[[Ending, int], int]] = MappingProxyType({
    "equal": lambda ending, produced: 0,
    "constant": lambda ending, produced: 7,
    "completion": lambda ending, produced: produced,
    "ending": lambda ending, produced: BY_ENDING[ending],
    "completion and ending": lambda ending, produced: produced + BY_ENDING[ending],
})  # fmt: skip


class Lease(NamedTuple):
    """One request of a client: how it ended, what it produced, whether the engine told, and the reading's noise."""

    ending: Ending
    produced: int
    usage_told: bool
    noise: int


NOISE = st.integers(-1, 1)
LEASES = st.lists(st.builds(Lease, st.sampled_from(Ending), st.integers(0, 5000), st.booleans(), NOISE))


class HealthySlot:
    """A slot of a healthy build: its gap follows its rule, a token more or less."""

    def __init__(self, gap: str, noisy: bool) -> None:
        self._gap = HEALTHY_GAPS[gap]
        self._noisy = noisy
        self._prompt = 0

    def after(self, lease: Lease) -> Probe:
        self._prompt = (self._prompt * 31 + 274) % 4000
        gap = self._gap(lease.ending, lease.produced) + (lease.noise if self._noisy else 0)
        return Probe(is_processing=False, cache_tokens=self._prompt + 1, cache_position=self._prompt + 1 + gap)


def calibrated(slot: HealthySlot, noise: list[int]) -> Baseline:
    """Warm up as the agent does: two `length`, one `stop`, the canary, one cancelled of unknown length."""
    plan = [(Ending.LENGTH, 4), (Ending.LENGTH, 16), (Ending.STOP, 3), (Ending.TOOL_CALLS, 25), (Ending.CANCELLED, 11)]
    readings = [
        Reading(
            ending, None if ending is Ending.CANCELLED else produced, slot.after(Lease(ending, produced, True, off))
        )
        for (ending, produced), off in zip(plan, noise, strict=True)
    ]
    baseline = fit(readings)
    assert isinstance(baseline, Baseline), baseline
    return baseline


def evidence_of(lease: Lease, settled: Probe | None, after: Probe) -> Evidence:
    """Return what an agent knows of a lease that went well."""
    told = lease.usage_told and lease.ending is not Ending.CANCELLED
    return Evidence(
        settled=settled,
        before=settled,
        after=after,
        ending=lease.ending,
        prompt_tokens=None,
        expected_prompt_tokens=None,
        completion_tokens=lease.produced if told else None,
        tool_problem=None,
        idle_proven=True,
        server_restarted=False,
    )


@given(
    gap=st.sampled_from(sorted(HEALTHY_GAPS)),
    noisy=st.booleans(),
    warm_up_noise=st.lists(NOISE, min_size=5, max_size=5),
    leases=LEASES,
)
def test_a_healthy_slot_is_never_contaminated(
    gap: str, noisy: bool, warm_up_noise: list[int], leases: list[Lease]
) -> None:
    """In every healthy build, with a token of noise, any sequence of leases is clean or at worst unverifiable.

    And where nothing is unknown it is clean.
    """
    slot = HealthySlot(gap, noisy)
    baseline = calibrated(slot, warm_up_noise)
    settled: Probe | None = None
    for lease in leases:
        after = slot.after(lease)
        evidence = evidence_of(lease, settled, after)
        verdict = judge(evidence, baseline, POLICY)
        assert KIND_OF_REASON.get(verdict.reason) in {None, VerdictKind.UNVERIFIABLE}, (verdict, baseline)
        if evidence.completion_tokens is not None and lease.ending in baseline.intercepts:
            assert verdict.kind is VerdictKind.CLEAN
        if verdict.reason is Reason.NOT_CALIBRATED:  # a canary passed afterwards
            baseline = baseline.learn(lease.ending, after, evidence.completion_tokens)
        settled = after


@given(gap=st.sampled_from(sorted(HEALTHY_GAPS)), warm_up_noise=st.lists(NOISE, min_size=5, max_size=5))
def test_the_seeds_slot_is_contaminated_in_every_build(gap: str, warm_up_noise: list[int]) -> None:
    """275/403 after 2048 tokens that ended with length: no rule a build may have explains it."""
    slot = HealthySlot(gap, noisy=True)
    baseline = calibrated(slot, warm_up_noise)
    seed = Probe(is_processing=False, cache_tokens=275, cache_position=403)
    verdict = judge(evidence_of(Lease(Ending.LENGTH, 2048, True, 0), None, seed), baseline, POLICY)
    assert verdict.reason is Reason.POSITION_DRIFT


@given(
    gap=st.sampled_from(sorted(HEALTHY_GAPS)),
    drift=st.integers(5, 10_000),
    sign=st.sampled_from([-1, 1]),
    lease=st.builds(
        Lease,
        st.sampled_from([Ending.LENGTH, Ending.STOP, Ending.TOOL_CALLS]),
        st.integers(0, 5000),
        st.just(value=True),
        NOISE,
    ),
    warm_up_noise=st.lists(NOISE, min_size=5, max_size=5),
)
def test_drift_beyond_tolerance_and_noise_is_contaminated(
    gap: str, drift: int, sign: int, lease: Lease, warm_up_noise: list[int]
) -> None:
    """More than the tolerance and the noise of both readings can hide is always seen, in either direction."""
    slot = HealthySlot(gap, noisy=True)
    baseline = calibrated(slot, warm_up_noise)
    healthy = slot.after(lease)
    after = Probe(
        is_processing=False, cache_tokens=healthy.cache_tokens, cache_position=healthy.cache_position + sign * drift
    )
    assert judge(evidence_of(lease, None, after), baseline, POLICY).reason is Reason.POSITION_DRIFT


PROBES = st.none() | st.builds(Probe, st.booleans(), st.integers(0, 10_000), st.integers(0, 10_000))
TOKENS = st.none() | st.integers(0, 10_000)
TOOL_PROBLEMS = st.none() | st.sampled_from([r for r, kind in KIND_OF_REASON.items() if kind is VerdictKind.SUSPECT])
BASELINES = st.none() | st.builds(
    Baseline, st.sampled_from([0, 1]), st.dictionaries(st.sampled_from(Ending), st.integers(-20, 20))
)


ANY_EVIDENCE = {
    "settled": PROBES,
    "before": PROBES,
    "after": PROBES,
    "ending": st.sampled_from(Ending),
    "prompt_tokens": TOKENS,
    "expected_prompt_tokens": TOKENS,
    "completion_tokens": TOKENS,
    "tool_problem": TOOL_PROBLEMS,
    "idle_proven": st.booleans(),
    "server_restarted": st.booleans(),
}
CLEAN_EVIDENCE = evidence_of(Lease(Ending.STOP, 10, usage_told=True, noise=0), None, Probe(False, 100, 100))


@st.composite
def evidences(draw: st.DrawFn) -> Evidence:
    """Clean evidence with anything at all in some of its fields, however contradictory."""
    disturbed = draw(st.sets(st.sampled_from(sorted(ANY_EVIDENCE))))
    return replace(CLEAN_EVIDENCE, **{name: draw(ANY_EVIDENCE[name]) for name in sorted(disturbed)})


@settings(max_examples=300)
@given(evidence=evidences(), baseline=BASELINES, require_slots=st.booleans())
def test_every_evidence_has_a_verdict_and_a_consequence(
    evidence: Evidence, baseline: Baseline | None, require_slots: bool
) -> None:
    """The judge is total, its reason belongs to its kind, and clean needs a proof of idle and a read slot."""
    policy = replace(POLICY, require_slots=require_slots)
    verdict = judge(evidence, baseline, policy)
    assert verdict.kind is (KIND_OF_REASON[verdict.reason] if verdict.reason is not None else VerdictKind.CLEAN)
    next_check(verdict, policy)
    if verdict.kind is VerdictKind.CLEAN:
        assert evidence.idle_proven
        assert not evidence.server_restarted
        assert evidence.tool_problem is None
        assert evidence.after is not None
        assert not evidence.after.is_processing


@settings(max_examples=300)
@given(evidence=evidences(), baseline=BASELINES, problem=TOOL_PROBLEMS)
def test_what_a_response_says_recycles_nobody(
    evidence: Evidence, baseline: Baseline | None, problem: Reason | None
) -> None:
    """Another tool problem in the same lease never decides between contaminated and not."""
    verdicts = [judge(each, baseline, POLICY) for each in (evidence, replace(evidence, tool_problem=problem))]
    contaminated = [verdict.kind is VerdictKind.CONTAMINATED for verdict in verdicts]
    assert contaminated[0] == contaminated[1]


@given(
    history=st.lists(
        st.tuples(
            st.sampled_from(["chat-0", "chat-1"]),
            st.integers(1, 4),
            st.sampled_from([Verdict.because(Reason.POSITION_DRIFT), Verdict(VerdictKind.CLEAN, drift_tokens=0)]),
        )
    )
)
def test_drift_is_only_doubted_by_processes_in_a_row(history: list[tuple[str, int, Verdict]]) -> None:
    """Drift is unusable only if three distinct processes drifted since the last clean lease."""
    trust = DriftTrust()
    drifted: set[tuple[str, int]] = set()
    for worker, generation, verdict in history:
        trust.judged(worker, generation, verdict)
        drifted = drifted | {(worker, generation)} if verdict.reason is not None else set()
        assert not (trust.unusable and len(drifted) < 3)
