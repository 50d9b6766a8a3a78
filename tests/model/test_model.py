"""Every interleaving of small fleets: promises 1-4 and 7 hold in each state, and each state leads back to rest."""

from __future__ import annotations

import pytest

from model.explorer import Explored
from model.machine import Fault
from model.scopes import ANY_FAULT, LINK_FAULTS, OTHER_FAULTS, STREAM, WHOLE, explore_all, scope, told

SCOPES = (
    scope("one slot, any two faults", WHOLE, STREAM, workers=1, at_most=2, faults=ANY_FAULT),
    scope(
        "one slot, three faults around the link",
        *(WHOLE, STREAM),
        workers=1,
        at_most=3,
        faults=(*LINK_FAULTS, Fault.LEAVE, Fault.ACCEPT_TIMEOUT),
    ),
    scope("two slots, any fault but the link's", WHOLE, STREAM, workers=2, at_most=1, faults=OTHER_FAULTS),
    scope("two slots, one request, a link that breaks", WHOLE, workers=2, at_most=1, faults=LINK_FAULTS),
    scope(
        "one slot, three requests, any two faults but the link's",
        *(WHOLE, STREAM, WHOLE),
        workers=1,
        at_most=2,
        faults=OTHER_FAULTS,
    ),
)
LEAST_STATES = 1_000_000

pytestmark = pytest.mark.timeout(900)  # a backstop for a slow machine: two processes need about a minute


@pytest.fixture(scope="module")
def explored() -> dict[str, Explored]:
    """Explore all scopes."""
    return {found.scope.name: found for found in explore_all(SCOPES)}


@pytest.mark.parametrize("name", [scope.name for scope in SCOPES])
def test_promises_hold_in_every_state(
    name: str, explored: dict[str, Explored], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever happens in whatever order, nothing is broken, and the fleet comes to rest by itself."""
    with capsys.disabled():
        told(explored[name])
    assert not explored[name].failure, str(explored[name])


def test_the_scopes_are_not_too_small(explored: dict[str, Explored]) -> None:
    """Together they have at least a million distinct states."""
    assert sum(found.states for found in explored.values()) >= LEAST_STATES
