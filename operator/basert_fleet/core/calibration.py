"""What a healthy slot of one process shows on /slots after a generation, learnt from warm-up requests.

The gap between a slot's two counters is undocumented: the report (docs/background.md) shows 275/403 after its failure
and nothing of a healthy slot, so each fresh process is asked. Healthy is `intercept[ending] + slope *
completion_tokens`, with a slope of 0 or 1 and an intercept per ending; what follows from an unhealthy gap is decided in
`isolation`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from basert_fleet.core.verdict import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Slope = Literal[0, 1]

READING_NOISE_TOKENS = 1
"""How far one reading of a healthy slot may lie from its rule (chosen: one token more or less, by how it ended).

Two readings may so differ by twice as much. With the default tolerance of 2 tokens a lease as noisy is still clean.
"""
SPREAD_TOKENS = 2 * READING_NOISE_TOKENS


class Ending(StrEnum):
    """How a generation ended; builds may count each ending differently."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CANCELLED = "cancelled"
    OTHER = "other"
    """No finish_reason to tell, as for embeddings."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer of /slots: what the slot's only sequence is doing, and its two counters in tokens."""

    is_processing: bool
    cache_tokens: int
    cache_position: int

    @property
    def offset(self) -> int:
        """How far the position is ahead of the tokens; the report's contaminated slot has 128."""
        return self.cache_position - self.cache_tokens

    def rose_since(self, earlier: Probe) -> bool:
        """Say whether either counter grew: on a slot that nobody held, somebody else's request."""
        return self.cache_tokens > earlier.cache_tokens or self.cache_position > earlier.cache_position


@dataclass(frozen=True, slots=True)
class Reading:
    """A settled slot after one warm-up request."""

    ending: Ending
    completion_tokens: int | None
    """None when the engine did not say, as after a cancel."""
    probe: Probe

    def __str__(self) -> str:
        tokens = "unknown" if self.completion_tokens is None else self.completion_tokens
        return (
            f"{self.ending.value} after {tokens} completion tokens: "
            f"position {self.probe.cache_position} - tokens {self.probe.cache_tokens} = {self.probe.offset}"
        )


@dataclass(frozen=True, slots=True)
class NoFit:
    """The readings follow no rule that drift could be told by."""

    explanation: str
    """What was expected and every reading in numbers, for a person."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """The rule that one process's healthy slot follows. It belongs to that process and dies with it."""

    slope: Slope
    intercepts: Mapping[Ending, int]

    def drift(self, after: Probe, ending: Ending, completion_tokens: int | None) -> int | Reason:
        """Return how many tokens a settled slot is off its rule (never negative), or why that cannot be told.

        NOT_CALIBRATED: no reading had this ending, or a cancel left its number of tokens unknown.
        USAGE_MISSING: the engine kept back the token count that the rule needs.
        """
        if ending not in self.intercepts:
            return Reason.NOT_CALIBRATED
        expected = self._expected(self.intercepts[ending], completion_tokens)
        if expected is None:
            return Reason.NOT_CALIBRATED if ending is Ending.CANCELLED else Reason.USAGE_MISSING
        return abs(after.offset - expected)

    def covers(self, ending: Ending, completion_tokens: int | None) -> bool:
        """Say whether a drift can be told after this ending."""
        return ending in self.intercepts and self._expected(self.intercepts[ending], completion_tokens) is not None

    def learn(self, ending: Ending, probe: Probe, completion_tokens: int | None) -> Baseline:
        """Return a baseline that knows this ending too; call it only for a lease that a passing canary followed.

        What is known never moves, or a slow drift would teach its own tolerance. With a slope and no token count
        nothing can be learnt.
        """
        if ending in self.intercepts:
            return self
        intercept = _intercept(self.slope, Reading(ending, completion_tokens, probe))
        if intercept is None:
            return self
        return replace(self, intercepts=MappingProxyType({**self.intercepts, ending: intercept}))

    def _expected(self, intercept: int, completion_tokens: int | None) -> int | None:
        if self.slope == 0:
            return intercept
        return None if completion_tokens is None else intercept + completion_tokens


def fit(readings: Sequence[Reading]) -> Baseline | NoFit:
    """Find the rule that all readings of one fresh process follow.

    The slope comes from at least two `length` readings whose token counts differ (warm-up asks for 4 and 16). An ending
    without a usable reading stays uncalibrated; readings of one ending that disagree are no fit.
    """
    slope = _slope([reading for reading in readings if reading.ending is Ending.LENGTH])
    if isinstance(slope, str):
        return _no_fit(slope, readings)
    intercepts: dict[Ending, int] = {}
    for ending in Ending:
        found = [_intercept(slope, reading) for reading in readings if reading.ending is ending]
        known = [intercept for intercept in found if intercept is not None]
        if not known:
            continue
        low, high = min(known), max(known)
        if high - low > SPREAD_TOKENS:
            return _no_fit(
                f"with a slope of {slope} the {ending.value} readings start from {low} to {high} tokens, "
                f"more than {SPREAD_TOKENS} apart",
                readings,
            )
        intercepts[ending] = (low + high) // 2
    return Baseline(slope, MappingProxyType(intercepts))


def _slope(lengths: Sequence[Reading]) -> Slope | str:
    """Return how the gap grows per completion token, or why no slope is told."""
    counted = sorted(
        (reading.completion_tokens, reading.probe.offset)
        for reading in lengths
        if reading.completion_tokens is not None
    )
    if len(counted) < 2:  # noqa: PLR2004 - a slope is drawn through two points
        return f"a slope needs two length readings with token counts, found {len(counted)}"
    (few, low), (many, high) = counted[0], counted[-1]
    if many - few <= 2 * SPREAD_TOKENS:
        return f"length readings of {few} and {many} completion tokens are too close to tell a slope of 0 from 1"
    if abs(high - low) <= SPREAD_TOKENS:
        return 0
    if abs(high - low - (many - few)) <= SPREAD_TOKENS:
        return 1
    return (
        f"from {few} to {many} completion tokens the gap grew by {high - low}; "
        f"expected 0 or {many - few}, give or take {SPREAD_TOKENS}"
    )


def _intercept(slope: Slope, reading: Reading) -> int | None:
    if slope == 0:
        return reading.probe.offset
    return None if reading.completion_tokens is None else reading.probe.offset - reading.completion_tokens


def _no_fit(why: str, readings: Sequence[Reading]) -> NoFit:
    listed = "; ".join(map(str, readings)) or "none"
    return NoFit(f"no drift baseline: {why}. Readings: {listed}.")
