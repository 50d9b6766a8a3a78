"""The words in which the judge speaks; `isolation` says what they mean for a worker, `delivery` for a response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VerdictKind(StrEnum):
    """How far one lease can be trusted."""

    CLEAN = "clean"
    SUSPECT = "suspect"
    """The response is odd; whether the slot or the request is to blame is open."""
    CONTAMINATED = "contaminated"
    """The slot mixed something up, or nothing proves that it is idle."""
    UNVERIFIABLE = "unverifiable"
    """Nothing speaks against the slot, and nothing for it."""


class Reason(StrEnum):
    """Why a verdict is not clean; metrics, logs and incidents use these very words."""

    POSITION_DRIFT = "position_drift"
    FOREIGN_TRAFFIC = "foreign_traffic"
    NO_PROOF_OF_IDLE = "no_proof_of_idle"
    SERVER_RESTARTED = "server_restarted"
    CANARY_FAILED = "canary_failed"
    TOOL_ARGUMENTS_INVALID = "tool_arguments_invalid"
    TOOL_NAME_UNKNOWN = "tool_name_unknown"
    TOOL_CALL_MISSING = "tool_call_missing"
    SLOTS_UNREACHABLE = "slots_unreachable"
    NOT_CALIBRATED = "not_calibrated"
    USAGE_MISSING = "usage_missing"


KIND_OF_REASON: dict[Reason, VerdictKind] = {
    Reason.POSITION_DRIFT: VerdictKind.CONTAMINATED,
    Reason.FOREIGN_TRAFFIC: VerdictKind.CONTAMINATED,
    Reason.NO_PROOF_OF_IDLE: VerdictKind.CONTAMINATED,
    Reason.SERVER_RESTARTED: VerdictKind.CONTAMINATED,
    Reason.CANARY_FAILED: VerdictKind.CONTAMINATED,
    Reason.TOOL_ARGUMENTS_INVALID: VerdictKind.SUSPECT,
    Reason.TOOL_NAME_UNKNOWN: VerdictKind.SUSPECT,
    Reason.TOOL_CALL_MISSING: VerdictKind.SUSPECT,
    Reason.SLOTS_UNREACHABLE: VerdictKind.UNVERIFIABLE,
    Reason.NOT_CALIBRATED: VerdictKind.UNVERIFIABLE,
    Reason.USAGE_MISSING: VerdictKind.UNVERIFIABLE,
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's word on one lease."""

    kind: VerdictKind
    reason: Reason | None = None
    """None exactly when the verdict is clean."""
    drift_tokens: int | None = None
    """How far the slot's counters were from the expected, in tokens; None when that could not be told."""
    prefix_reused: bool = False
    """A recorded fact, not a fault: the engine reported far fewer prompt tokens than the prompt has."""

    @classmethod
    def because(cls, reason: Reason, *, drift_tokens: int | None = None, prefix_reused: bool = False) -> Verdict:
        """Build the verdict that this reason stands for."""
        return cls(KIND_OF_REASON[reason], reason, drift_tokens, prefix_reused)
