"""The exhaustive check of `tests/model` in larger scopes: some minutes and 3 GB of memory instead of one minute."""

from __future__ import annotations

import pytest

from model.explorer import explore
from model.machine import Fault
from model.scopes import ANY_FAULT, STREAM, WHOLE, scope, told
from model.world import Scope

SCOPES = (
    scope("two slots, any fault", WHOLE, STREAM, workers=2, at_most=1, faults=ANY_FAULT),
    scope(
        "two slots, three requests, either of two faults",
        *(WHOLE, STREAM, WHOLE),
        workers=2,
        at_most=1,
        faults=(Fault.LEAVE, Fault.CRASH),
    ),
)
LEAST_STATES = {"two slots, any fault": 2_000_000, "two slots, three requests, either of two faults": 2_000_000}


@pytest.mark.timeout(1800)  # a backstop for a slow machine: the larger one needs three minutes
@pytest.mark.parametrize("large", SCOPES, ids=lambda scope: scope.name)
def test_promises_hold_in_every_state(large: Scope, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever happens in whatever order, nothing is broken, and the fleet comes to rest by itself."""
    found = explore(large)
    with capsys.disabled():
        told(found)
    assert not found.failure, str(found)
    assert found.states >= LEAST_STATES[large.name]
