"""What the evidence of one lease says of its slot, and what its worker must do to be trusted again.

The verdict is about the slot. Whether a response goes out is decided in `delivery`, what a healthy slot looks like in
`calibration`. Nothing that a request's content alone can bring about is ever contaminated: a client must not be able
to have workers recycled.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from basert_fleet.core.api import DriftAction
from basert_fleet.core.calibration import Baseline, Ending, Probe
from basert_fleet.core.verdict import KIND_OF_REASON, Reason, Verdict, VerdictKind

__all__ = [
    "CanarySchedule",
    "Check",
    "DriftTrust",
    "Ending",
    "Evidence",
    "JudgePolicy",
    "Probe",
    "judge",
    "next_check",
    "shows_reuse",
    "used_by_others",
]

REUSED_AT_LEAST_TOKENS = 32
"""Fewer missing prompt tokens are an estimate's error, not a reused prefix (chosen; the report misses 265 of 274)."""
UNUSABLE_AFTER_PROCESSES = 3
"""Fresh processes that drift at once, one after another, before drift itself is doubted (chosen)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePolicy:
    """What a pool asks of its judge."""

    tolerance_tokens: int
    """Drift up to this is clean; the report's is 128."""
    require_slots: bool
    """False: the pool's owner takes leases that /slots says nothing of, and relies on the scheduled canaries."""
    drift_action: DriftAction


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that is known of one lease once it is over.

    Raises:
        ValueError: `tool_problem` is a reason that would blame the worker for what the request made the model say.
    """

    settled: Probe | None
    """The slot after the lease before this one; None for the first of a process, or if /slots was silent."""
    before: Probe | None
    """Read just before the request was sent; None: not read again, `settled` is trusted."""
    after: Probe | None
    """The probe that proved this lease's end; None: /slots was silent or does not exist."""
    ending: Ending
    prompt_tokens: int | None
    expected_prompt_tokens: int | None
    """What the prompt has by our own estimate; None without one."""
    completion_tokens: int | None
    tool_problem: Reason | None
    """What is wrong with the response's tool calls, a suspect reason; None without tools."""
    idle_proven: bool
    server_restarted: bool
    """Another process than the one this lease was sent to answered by its end."""

    def __post_init__(self) -> None:
        if self.tool_problem is not None and KIND_OF_REASON[self.tool_problem] is not VerdictKind.SUSPECT:
            raise ValueError(f"a tool problem is a suspect reason, not {self.tool_problem.value}")

    @property
    def prefix_reused(self) -> bool:
        """Say whether the engine reported less than half of the expected prompt (report: 9 of 274)."""
        if self.prompt_tokens is None or self.expected_prompt_tokens is None:
            return False
        return shows_reuse(self.prompt_tokens, self.expected_prompt_tokens)

    @property
    def proves_idle(self) -> bool:
        """Say whether the lease's end was proven and its last probe does not deny it."""
        return self.idle_proven and not (self.after is not None and self.after.is_processing)

    @property
    def foreign_traffic(self) -> bool:
        """Say whether somebody used the slot while nobody held a lease."""
        return self.before is not None and used_by_others(self.settled, self.before)


def shows_reuse(prompt_tokens: int, expected: int) -> bool:
    """Say whether an engine that reports so few prompt tokens has reused a prefix of a prompt with `expected` ones."""
    missing = expected - prompt_tokens
    return missing >= REUSED_AT_LEAST_TOKENS and missing > prompt_tokens


def used_by_others(settled: Probe | None, before: Probe) -> bool:
    """Say whether a slot that nobody held a lease of was used since it had settled.

    Counters that changed tell of a request, also where they fell: a shorter prompt leaves them lower. Only both at
    zero are the engine's idle-timeout reset.
    """
    if before.is_processing:
        return True
    was_reset = before.cache_tokens == before.cache_position == 0
    return settled is not None and before != settled and not was_reset


def judge(evidence: Evidence, baseline: Baseline | None, policy: JudgePolicy) -> Verdict:
    """Say whether one lease left its slot clean.

    A contaminated reason wins over a suspect one, and that over an unverifiable one. Without a baseline the pool has
    fallen back to canaries alone and drift is not considered; a silent /slots is unverifiable all the same.
    """
    drift = _drift(evidence, baseline)
    drift_tokens = drift if isinstance(drift, int) else None
    reason = _contamination(evidence, drift_tokens, policy) or evidence.tool_problem
    if reason is None and isinstance(drift, Reason):
        reason = drift
    if reason is None:
        return Verdict(VerdictKind.CLEAN, drift_tokens=drift_tokens, prefix_reused=evidence.prefix_reused)
    return Verdict.because(reason, drift_tokens=drift_tokens, prefix_reused=evidence.prefix_reused)


def _drift(evidence: Evidence, baseline: Baseline | None) -> int | Reason | None:
    """Return the drift in tokens, or why it cannot be told; None when it is not considered."""
    if evidence.after is None:
        return Reason.SLOTS_UNREACHABLE
    if baseline is None:
        return None
    drift = baseline.drift(evidence.after, evidence.ending, evidence.completion_tokens)
    # A request that the engine refused, or served without its slot, leaves the counters as they were.
    return 0 if drift is Reason.NOT_CALIBRATED and evidence.after == (evidence.before or evidence.settled) else drift


def _contamination(evidence: Evidence, drift_tokens: int | None, policy: JudgePolicy) -> Reason | None:
    if evidence.server_restarted:
        return Reason.SERVER_RESTARTED
    if not evidence.proves_idle:
        return Reason.NO_PROOF_OF_IDLE
    if evidence.foreign_traffic:
        return Reason.FOREIGN_TRAFFIC
    if drift_tokens is not None and drift_tokens > policy.tolerance_tokens:
        return Reason.POSITION_DRIFT
    return None


class Check(StrEnum):
    """What a worker must do before its next offer."""

    NONE = "none"
    CANARY = "canary"
    """Scrub, then canary; offer only if it passes."""
    RECYCLE = "recycle"


def next_check(verdict: Verdict, policy: JudgePolicy, *, agreed: AbstractSet[Reason] = frozenset()) -> Check:
    """Say what the worker owes after this verdict.

    `agreed` are reasons that another worker gave for the same request before. The same suspicion again clears this
    worker: two of them do not fail alike by chance, and a client could keep a fleet busy with canaries otherwise.

    A pool that does not require /slots owes nothing for its absence: it would pay a canary for every request, and its
    schedule (`canary.everyRequests`, down to 1) is there to say how often.
    """
    match verdict.kind:
        case VerdictKind.CLEAN:
            return Check.NONE
        case VerdictKind.CONTAMINATED:
            confirms = verdict.reason is Reason.POSITION_DRIFT and policy.drift_action is DriftAction.CONFIRM
            return Check.CANARY if confirms else Check.RECYCLE
        case VerdictKind.SUSPECT:
            return Check.NONE if verdict.reason in agreed else Check.CANARY
        case VerdictKind.UNVERIFIABLE:
            waived = verdict.reason is Reason.SLOTS_UNREACHABLE and not policy.require_slots
            return Check.NONE if waived else Check.CANARY
        case _:
            assert_never(verdict.kind)


def foresees_clean(
    baseline: Baseline | None, ending: Ending, completion_tokens: int | None, tool_problem: Reason | None
) -> bool:
    """Say whether only the counters can still speak against a lease whose response is whole.

    A guess, never a verdict: `judge` decides once the slot is settled.
    """
    return baseline is not None and tool_problem is None and baseline.covers(ending, completion_tokens)


class CanarySchedule:
    """When one process must prove itself although nothing speaks against it: by use, and by idleness.

    A process that was never proven is due at once.
    """

    def __init__(self, *, every_requests: int, every_seconds: float) -> None:
        self._every_requests = every_requests
        self._every_seconds = every_seconds
        self._served = 0
        self._used_at: float | None = None

    def reconfigure(self, *, every_requests: int, every_seconds: float) -> None:
        """Follow a changed pool. What was served and proven stays counted, so a canary may become due by it."""
        self._every_requests = every_requests
        self._every_seconds = every_seconds

    def served(self, now: float) -> None:
        """Count one lease that ended at `now`."""
        self._served += 1
        if self._used_at is not None:
            self._used_at = now

    def proven(self, now: float) -> None:
        """Start anew: a canary passed at `now`."""
        self._served = 0
        self._used_at = now

    def due(self, now: float) -> bool:
        """Say whether the slot must run a canary before its next offer."""
        return now >= self.next_due_at()

    def due_after_another(self, now: float) -> bool:
        """Say whether it must once the lease in progress has ended, if that happens now."""
        return self._used_at is None or self._served + 1 >= self._every_requests or now >= self.next_due_at()

    def next_due_at(self) -> float:
        """Return when a canary is due if the slot stays idle; minus infinity for a process never proven."""
        if self._used_at is None:
            return -math.inf
        if self._served >= self._every_requests:
            return self._used_at
        return self._used_at + self._every_seconds


class DriftTrust:
    """Whether drift can be believed in one pool on one build.

    A process offers only after its canary passed and its baseline fitted. One that drifts all the same before any
    clean lease may be contaminated; several in a row, with no clean lease between, mean that the rule is wrong:
    then drift is unusable (condition DriftUnusable) and the pool must judge without a baseline, or it would recycle
    for ever.
    """

    def __init__(self) -> None:
        self._drifted: set[tuple[str, int]] = set()
        self._clean_generation: dict[str, int] = {}

    @property
    def unusable(self) -> bool:
        """Say whether the pool's leases must be judged with no baseline."""
        return len(self._drifted) >= UNUSABLE_AFTER_PROCESSES

    def judged(self, worker: str, generation: int, verdict: Verdict) -> None:
        """Take note of one lease's verdict. Clean ones count only if their drift was told."""
        if verdict.kind is VerdictKind.CLEAN and verdict.drift_tokens is not None:
            self._clean_generation[worker] = generation
            self._drifted.clear()
        elif verdict.reason is Reason.POSITION_DRIFT and self._clean_generation.get(worker) != generation:
            self._drifted.add((worker, generation))
