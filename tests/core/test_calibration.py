"""A baseline follows any rule a healthy build may have, and says in numbers why it found none."""

from __future__ import annotations

import pytest

from basert_fleet.core.calibration import Baseline, Ending, NoFit, Probe, Reading, fit
from basert_fleet.core.verdict import Reason

SEED_AFTER_FAILURE = Probe(is_processing=False, cache_tokens=275, cache_position=403)


def idle(offset: int, tokens: int = 100) -> Probe:
    """Return an idle slot with this gap."""
    return Probe(is_processing=False, cache_tokens=tokens, cache_position=tokens + offset)


def reading(ending: Ending, completion_tokens: int | None, offset: int) -> Reading:
    """Return one warm-up reading with this gap."""
    return Reading(ending, completion_tokens, idle(offset))


def fitted(*readings: Reading) -> Baseline:
    """Return the baseline of readings that must have one."""
    baseline = fit(readings)
    assert isinstance(baseline, Baseline), baseline
    return baseline


def unfitted(*readings: Reading) -> str:
    """Return the explanation of readings that must have no baseline."""
    found = fit(readings)
    assert isinstance(found, NoFit), found
    return found.explanation


FLAT = (reading(Ending.LENGTH, 4, 7), reading(Ending.LENGTH, 16, 7))
STEEP = (reading(Ending.LENGTH, 4, 4), reading(Ending.LENGTH, 16, 16))


def test_probe_offset_is_the_seeds_drift() -> None:
    """The seed's 275/403 is 128 tokens ahead."""
    assert SEED_AFTER_FAILURE.offset == 128


@pytest.mark.parametrize(
    ("tokens", "position", "rose"),
    [
        (10, 12, False),
        (11, 12, True),
        (10, 13, True),
        (9, 13, True),
        (11, 11, True),
        (9, 12, False),
        (10, 11, False),
        (0, 0, False),
    ],
)
def test_one_grown_counter_is_a_rise(tokens: int, position: int, rose: bool) -> None:
    """A counter that grew is traffic, even if the other one shrank; only shrinking is none."""
    earlier = Probe(is_processing=False, cache_tokens=10, cache_position=12)
    assert Probe(is_processing=False, cache_tokens=tokens, cache_position=position).rose_since(earlier) is rose


def test_equal_gaps_give_no_slope() -> None:
    """Two length readings with one gap mean a constant gap."""
    assert fitted(*FLAT) == Baseline(0, {Ending.LENGTH: 7})


def test_gaps_that_follow_the_completion_give_a_slope() -> None:
    """A gap that grows by the completion tokens means a slope of one."""
    assert fitted(*STEEP) == Baseline(1, {Ending.LENGTH: 0})


@pytest.mark.parametrize("noise", [(1, -1), (-1, 1), (1, 1), (0, 1), (-1, 0)])
@pytest.mark.parametrize(("slope", "gaps"), [(0, (7, 7)), (1, (11, 23))])
def test_noisy_readings_still_give_the_slope(slope: int, gaps: tuple[int, int], noise: tuple[int, int]) -> None:
    """A token more or less per reading never turns one slope into the other."""
    found = fitted(reading(Ending.LENGTH, 4, gaps[0] + noise[0]), reading(Ending.LENGTH, 16, gaps[1] + noise[1]))
    assert found.slope == slope
    assert abs(found.intercepts[Ending.LENGTH] - 7) <= 1


def test_each_ending_gets_its_own_intercept() -> None:
    """Builds may count each ending differently."""
    found = fitted(
        *FLAT, reading(Ending.STOP, 9, 8), reading(Ending.TOOL_CALLS, 30, 6), reading(Ending.CANCELLED, None, 5)
    )
    assert found.intercepts == {Ending.STOP: 8, Ending.TOOL_CALLS: 6, Ending.LENGTH: 7, Ending.CANCELLED: 5}


def test_a_cancel_of_unknown_length_stays_uncalibrated_on_a_slope() -> None:
    """Nothing is guessed from a reading whose tokens are unknown."""
    found = fitted(*STEEP, reading(Ending.CANCELLED, None, 5))
    assert Ending.CANCELLED not in found.intercepts
    assert found.drift(idle(5), Ending.CANCELLED, None) is Reason.NOT_CALIBRATED


@pytest.mark.parametrize(
    ("readings", "told"),
    [
        ((), "found 0. Readings: none."),
        ((reading(Ending.LENGTH, 4, 7),), "found 1. Readings: length after 4 completion tokens"),
        ((reading(Ending.LENGTH, None, 7), reading(Ending.LENGTH, 16, 7)), "length after unknown completion tokens"),
        ((reading(Ending.LENGTH, 4, 7), reading(Ending.LENGTH, 8, 7)), "4 and 8 completion tokens are too close"),
        ((reading(Ending.LENGTH, 4, 0), reading(Ending.LENGTH, 16, 6)), "grew by 6; expected 0 or 12, give or take 2"),
        ((reading(Ending.LENGTH, 4, 0), reading(Ending.LENGTH, 16, -12)), "grew by -12; expected 0 or 12"),
        ((*FLAT, reading(Ending.STOP, 5, 0), reading(Ending.STOP, 5, 3)), "stop readings start from 0 to 3 tokens"),
    ],
)
def test_no_fit_is_told_with_its_readings(readings: tuple[Reading, ...], told: str) -> None:
    """A person learns from the explanation alone what the slot showed."""
    explanation = unfitted(*readings)
    assert told in explanation
    for each in readings:
        assert f"position {each.probe.cache_position} - tokens {each.probe.cache_tokens}" in explanation


def test_drift_has_no_sign() -> None:
    """A slot that is behind its rule has drifted as much as one that is ahead."""
    flat = fitted(*FLAT)
    assert flat.drift(idle(9), Ending.LENGTH, 100) == 2
    assert flat.drift(idle(5), Ending.LENGTH, 100) == 2


def test_drift_on_a_slope_needs_the_usage() -> None:
    """Without a token count a slope predicts nothing."""
    steep = fitted(*STEEP)
    assert steep.drift(idle(100), Ending.LENGTH, 100) == 0
    assert steep.drift(idle(100), Ending.LENGTH, None) is Reason.USAGE_MISSING


def test_drift_without_a_slope_needs_no_usage() -> None:
    """A constant gap can be judged whatever the engine tells of its tokens."""
    assert fitted(*FLAT).drift(idle(7), Ending.LENGTH, None) == 0


@pytest.mark.parametrize("readings", [FLAT, STEEP])
def test_the_seeds_slot_has_drifted_by_any_baseline(readings: tuple[Reading, ...]) -> None:
    """275/403 after 2048 tokens that ended with length is far off, whatever a healthy build counts."""
    drift = fitted(*readings).drift(SEED_AFTER_FAILURE, Ending.LENGTH, 2048)
    assert isinstance(drift, int)
    assert drift > 100


def test_an_ending_is_learnt_once() -> None:
    """A missing ending is learnt, and what is known never moves: slow drift must not teach its own tolerance."""
    learnt = fitted(*FLAT).learn(Ending.OTHER, idle(3), None)
    assert learnt.intercepts == {Ending.LENGTH: 7, Ending.OTHER: 3}
    assert learnt.learn(Ending.OTHER, idle(50), None) is learnt


def test_learning_on_a_slope_takes_the_tokens_away() -> None:
    """What is learnt is the intercept, not the gap."""
    steep = fitted(*STEEP)
    assert steep.learn(Ending.STOP, idle(21), 20).intercepts[Ending.STOP] == 1


def test_nothing_is_learnt_from_an_unknown_length_on_a_slope() -> None:
    """A cancel of unknown length leaves a sloped baseline as it was."""
    steep = fitted(*STEEP)
    assert steep.learn(Ending.CANCELLED, idle(21), None) is steep
