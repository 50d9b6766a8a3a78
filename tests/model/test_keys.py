"""Folding loses nothing: machines that count as one state behave alike, whatever histories they come from."""

from __future__ import annotations

from collections import defaultdict

import pytest

from model.explorer import explore
from model.machine import Event, Fault, Machine, Output, Table
from model.scopes import STREAM, WHOLE, scope
from model.world import Scope

SCOPES = (
    scope("engine", WHOLE, STREAM, workers=1, at_most=1, faults=[fault for fault in Fault if fault is not Fault.CUT]),
    scope("link", WHOLE, STREAM, workers=1, at_most=1, faults=(Fault.CUT,)),
    scope("two slots", WHOLE, STREAM, workers=2, at_most=1, faults=(Fault.ACCEPT_TIMEOUT,)),
)


class SuspiciousTable(Table):
    """A table that tries each machine it takes for known beside the one it knows."""

    def __init__(self, first: Machine) -> None:
        self._met: defaultdict[int, dict[Event, None]] = defaultdict(dict)
        super().__init__(first)

    def step(self, state: int, event: Event) -> tuple[int, tuple[Output, ...]]:
        self._met[state][event] = None
        return super().step(state, event)

    def _number(self, machine: Machine) -> int:
        known = len(self)
        number = super()._number(machine)
        if number < known:
            self._compare(number, machine)
        return number

    def _compare(self, number: int, machine: Machine) -> None:
        assert machine.moves() == self.moves[number]
        assert machine.view() == self.views[number]
        for event in self._met[number] | dict.fromkeys(event for event, _ in self.moves[number]):
            stored, other = self._stored[number](), machine.stored()()
            assert stored.handle(event) == other.handle(event), event
            assert stored.key() == other.key(), event


@pytest.mark.parametrize("small", SCOPES, ids=lambda scope: scope.name)
def test_equal_keys_behave_alike(small: Scope, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine and its double from another history say the same and go to the same state, at every event."""
    monkeypatch.setattr("model.world.Table", SuspiciousTable)
    assert not explore(small).failure
