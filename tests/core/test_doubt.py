"""What dispels the doubt about a server that cannot be killed, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from basert_fleet.core.calibration import Probe
from basert_fleet.core.doubt import Cause, Doubt, is_fresh

FRESH = Probe(is_processing=False, cache_tokens=0, cache_position=0)
BEFORE = Probe(is_processing=False, cache_tokens=275, cache_position=275)
MOVED = Probe(is_processing=False, cache_tokens=40, cache_position=56)
BUSY = Probe(is_processing=True, cache_tokens=275, cache_position=300)

PROBES = st.none() | st.builds(Probe, st.booleans(), st.integers(0, 3), st.integers(0, 3))


def looked(doubt: Doubt | None, *probes: Probe | None) -> Doubt | None:
    """What is left of a doubt after these looks."""
    for probe in probes:
        doubt = doubt.after(probe) if doubt is not None else None
    return doubt


@pytest.mark.parametrize("cause", Cause)
def test_a_fresh_process_dispels_any_doubt(cause: Cause) -> None:
    """Both counters at zero: what was doubted of the process before does not concern this one."""
    assert looked(Doubt(cause, BEFORE), FRESH) is None


@pytest.mark.parametrize("probes", [(MOVED,), (BUSY, BEFORE)], ids=["moved", "was busy"])
def test_a_missing_proof_comes_with_the_end_of_what_was_seen_to_start(probes: tuple[Probe, ...]) -> None:
    """Counters that moved, or a slot that was seen at work, tell that the request started; idle, that it ended."""
    assert looked(Doubt(Cause.UNPROVEN, BEFORE), *probes) is None
    assert looked(Doubt(Cause.CONTAMINATED, BEFORE), *probes) is not None


@pytest.mark.parametrize("probe", [None, BUSY, BEFORE], ids=["silent", "busy", "as before"])
def test_what_proves_nothing_leaves_a_doubt(probe: Probe | None) -> None:
    """An idle slot that shows what it did before may have the request in accept still."""
    assert looked(Doubt(Cause.UNPROVEN, BEFORE), probe) is not None


def test_unknown_counters_cannot_have_moved() -> None:
    """After a restart of the fleet nothing is known of before: only work that is seen, or a fresh process, helps."""
    assert looked(Doubt(Cause.UNPROVEN, None), MOVED, MOVED) is not None
    assert looked(Doubt(Cause.UNPROVEN, None), BUSY, MOVED) is None


@given(st.builds(Doubt, st.just(Cause.CONTAMINATED), PROBES), st.lists(PROBES))
def test_contamination_is_dispelled_by_a_fresh_process_alone(doubt: Doubt, probes: list[Probe | None]) -> None:
    """Whatever else is seen, in whatever order."""
    assert (looked(doubt, *probes) is None) == any(probe is not None and is_fresh(probe) for probe in probes)


@pytest.mark.parametrize(
    ("last", "now", "denied"),
    [
        (BEFORE, BEFORE, True),
        (BEFORE, BUSY, True),
        (BEFORE, None, True),
        (BEFORE, FRESH, False),
        (FRESH, FRESH, False),
        (BEFORE, MOVED, False),
        (None, BEFORE, False),
    ],
)
def test_a_command_that_restarted_nothing_is_found_out(last: Probe | None, now: Probe | None, denied: bool) -> None:
    """The same counters as before are the same process; other ones, or those of a fresh one, are not."""
    assert Doubt(Cause.CONTAMINATED, last).denies_restart(now) is denied
