"""One part of a modelled fleet, and the table of what it does: each behaviour of the production code is computed once.

A fleet's state is a tuple of its parts' numbers. Most steps of a large graph repeat one part's step among other states
of the others, so the production code runs once per (part's state, event) and the rest is table look-ups: measured, a
hundred times as many states per second as with copies of whole fleets. It needs machines that are deterministic and
share nothing; both hold by how they are stored.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Hashable
from enum import Enum, StrEnum
from functools import partial
from typing import Protocol, TypeAlias

from basert_fleet.core.api import BasertPool
from basert_fleet.core.epoch import Epoch
from basert_fleet.gateway.ask import Ask
from basert_fleet.wire.messages import Lease, WorkerStatus


class Broken(Exception):
    """A promise does not hold in a state that the model reached."""

    def __init__(self, promise: int, what: str) -> None:
        super().__init__(f"promise {promise} is broken: {what}")
        self.promise = promise


class Fault(StrEnum):
    """What a bounded number of times goes wrong, or against a request. All else happens as often as it can."""

    CUT = "cut"
    """The connection between agent and gateway breaks; all that is on its way is lost."""
    AGENT_RESTART = "agent restart"
    GATEWAY_RESTART = "gateway restart"
    ACCEPT_TIMEOUT = "accept timeout"
    OVERDUE = "overdue"
    """The request's time is over, by the agent's clock or by the gateway's."""
    LEAVE = "leave"
    """The client goes away."""
    CANARY = "canary"
    """A canary falls due while the slot is offered: the offer is withdrawn."""
    CRASH = "crash"
    """The engine's process dies."""
    WRONG = "wrong"
    """The engine mixes requests up: its answer is wrong and its counters drift."""
    ODD = "odd"
    """The engine's answer is suspect, and its counters are well: the model's or the request's doing."""
    BREAK = "break"
    """The engine closes a response's connection early, and may go on generating."""
    WATCHDOG = "watchdog"
    """No byte came for long."""
    NO_PROOF = "no proof"
    """The settle time passes without a proof of idle."""


Event: TypeAlias = tuple[Hashable, ...]
"""What happens to a machine: its name, and what it is about."""
Move: TypeAlias = tuple[Event, Fault | None]
"""What a machine can do by itself now, and the fault that it takes."""
Output: TypeAlias = Hashable
"""What a machine asks of the rest of the fleet."""


class Machine(Protocol):
    """One part of a fleet, made of production code."""

    def handle(self, event: Event) -> tuple[Output, ...]:
        """Take one event; return what it leads to outside.

        Raises:
            Broken: a promise does not hold any more. Any other exception is a bug that the model found, too.
        """

    def moves(self) -> tuple[Move, ...]:
        """Return what it can do by itself."""

    def stored(self) -> Callable[[], Machine]:
        """Return what makes machines in the present state: `pickled`, where nothing cheaper is at hand."""

    def key(self) -> Hashable:
        """Return all that decides what it does next, and nothing else; clocks and counters folded away."""

    def view(self) -> Hashable:
        """Return what the whole fleet's promises look at."""


class Table:
    """The states that one part can have, numbered in the order in which they were first met."""

    def __init__(self, first: Machine) -> None:
        """Begin with state 0."""
        self._numbers: dict[Hashable, int] = {}
        self._stored: list[Callable[[], Machine]] = []
        self._steps: dict[tuple[int, Event], tuple[int, tuple[Output, ...]]] = {}
        self.moves: list[tuple[Move, ...]] = []
        """By state."""
        self.views: list[Hashable] = []
        """By state."""
        self._number(first)

    def __len__(self) -> int:
        return len(self._stored)

    def step(self, state: int, event: Event) -> tuple[int, tuple[Output, ...]]:
        """Return the state after this event and what it leads to outside."""
        known = self._steps.get((state, event))
        if known is None:
            machine = self._stored[state]()
            outputs = machine.handle(event)
            known = self._steps[state, event] = (self._number(machine), outputs)
        return known

    def _number(self, machine: Machine) -> int:
        key = machine.key()
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._stored)
            self._stored.append(machine.stored())
            self.moves.append(machine.moves())
            self.views.append(machine.view())
        return number


_BY_VALUE = (Enum, Epoch, Lease)
_BY_IDENTITY = (Ask, BasertPool, WorkerStatus)
_shared: list[object] = []
_shared_number: dict[Hashable, int] = {}


class _Pickler(pickle.Pickler):
    """Copies what can change; what cannot is shared by all snapshots."""

    def persistent_id(self, obj: object) -> int | None:
        if isinstance(obj, _BY_VALUE):
            name: Hashable = type(obj), obj
        elif isinstance(obj, _BY_IDENTITY):
            name = id(obj)
        else:
            return None
        number = _shared_number.get(name)
        if number is None:
            number = _shared_number[name] = len(_shared)
            _shared.append(obj)
        return number


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: int) -> object:
        return _shared[pid]


def pickled(machine: Machine) -> Callable[[], Machine]:
    """Return what makes copies of this machine as it is now."""
    target = io.BytesIO()
    _Pickler(target, pickle.HIGHEST_PROTOCOL).dump(machine)
    return partial(_restored, target.getvalue())


def _restored(snapshot: bytes) -> Machine:
    return _Unpickler(io.BytesIO(snapshot)).load()
