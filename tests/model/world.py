"""A whole small fleet: one gateway, one agent with its workers, the link between, and how much may go wrong.

An agent has one gateway and tells it everything; more gateways are not modelled before agents know of them.

It says which steps each state has and where they lead. A fleet's state is the tuple of its parts' numbers; the last one
tells which faults are still to come. A step that takes no fault is progress: what a fleet can always do by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from model.agent_side import WorkerSide
from model.gateway_side import GatewaySide, Kind, ask_of
from model.link_side import AGENT, GATEWAY, LinkSide
from model.machine import Event, Fault, Output, Table
from model.post import opened

State: TypeAlias = tuple[int, ...]
"""Numbers of the gateway's, the link's, each worker's and the budget's state, in this order."""
_GATEWAY, _LINK, _FIRST_WORKER = 0, 1, 2
FLEET = -2
"""In place of a part: what happens to several at once."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How small a fleet is, and what may happen to it."""

    name: str
    requests: tuple[Kind, ...]
    workers: int
    faults: Mapping[Fault, int]
    """How often each may happen; those that are missing never do."""
    at_most: int
    """How many faults may happen in one history."""


class Step(NamedTuple):
    """One step that a state has; a fleet takes those without a fault by itself."""

    part: int
    """Whose: a place in the state, or `FLEET` for what happens to several at once."""
    event: Event
    fault: Fault | None
    is_progress: bool


class World:
    """One fleet's possible steps."""

    def __init__(self, scope: Scope) -> None:
        asks = [ask_of(number, kind) for number, kind in enumerate(scope.requests, 1)]
        names = [f"w{number}" for number in range(1, scope.workers + 1)]
        breakable = any(step.fault in scope.faults for step in _ON_THE_WHOLE)
        self._names = ["gateway", "link", *names]
        self._workers = range(_FIRST_WORKER, _FIRST_WORKER + scope.workers)
        self._of_name = dict(zip(names, self._workers, strict=True))
        self.tables = [
            Table(GatewaySide(asks, names)),
            Table(LinkSide(breakable=breakable)),
            *(Table(WorkerSide(name, _incarnation(0))) for name in names),
        ]
        self._budgets = _Budgets(scope.faults, scope.at_most)
        parts = [0] * (len(self.tables) + 1)
        self._tell(parts, _GATEWAY, ("dialled", _incarnation(0)))
        self.first: State = tuple(parts)

    def steps(self, state: State) -> list[Step]:
        """Return every step that this state has."""
        steps = []
        left = self._budgets.left[state[-1]]
        for part in range(len(self.tables)):
            for event, fault in self.tables[part].moves[state[part]]:
                if fault is None or fault in left:
                    steps.append(Step(part, event, fault, fault is None))
        connected, _, waiting = self.tables[_LINK].views[state[_LINK]]
        steps += [Step(_LINK, ("give up", side), None, False) for side in waiting]
        steps += [step for step in _ON_THE_WHOLE if step.fault in left and (connected or step.fault is not Fault.CUT)]
        return steps

    def take(self, state: State, step: Step) -> State:
        """Return the state after this step.

        Raises:
            Broken: it breaks a promise. So does any other exception: production code met what it takes for impossible.
        """
        parts = list(state)
        if step.fault is not None:
            parts[-1] = self._budgets.after(state[-1], step.fault)
        if step.part == FLEET:
            self._befall(parts, step)
        else:
            self._tell(parts, step.part, step.event)
        return tuple(parts)

    def describe(self, state: State, step: Step) -> str:
        """Return a step in words, for a trace."""
        whose = "fleet" if step.part == FLEET else self._names[step.part]
        words = " ".join(map(str, step.event))
        if step.event[0] != "deliver":
            return f"{whose}: {words}"
        _, outputs = self.tables[_LINK].step(state[_LINK], step.event)
        items = [opened(item) for _, _, item in outputs]
        return f"{whose}: {words} {', '.join(f'{type(item).__name__} of {item.worker}' for item in items)}"

    def is_at_rest(self, state: State) -> bool:
        """Say whether every slot is offered, both ends agree on that, and no request is left."""
        done, idle = self.tables[_GATEWAY].views[state[_GATEWAY]]
        _, calm, _ = self.tables[_LINK].views[state[_LINK]]
        if not (done and calm):
            return False
        return all((name, self.tables[part].views[state[part]]) in idle for name, part in self._of_name.items())

    # --- How one part's outputs become the others' events

    def _tell(self, parts: list[int], part: int, event: Event) -> None:
        parts[part], outputs = self.tables[part].step(parts[part], event)
        for output in outputs:
            if part == _LINK:
                self._arrive(parts, output)
            else:
                side = GATEWAY if part == _GATEWAY else AGENT
                self._tell(parts, _LINK, ("send", side, output))

    def _arrive(self, parts: list[int], output: Output) -> None:
        """Hand on what the link tells one of its sides."""
        match output:
            case ("agent", "message", str(item)):
                self._tell(parts, self._of_name[opened(item).worker], ("message", item))
            case ("agent", "lost"):
                for worker in self._workers:
                    self._tell(parts, worker, ("lost",))
            case ("agent", "dialled"):
                for worker in self._workers:
                    self._tell(parts, worker, ("introduce",))
            case ("gateway", "dialled"):
                self._tell(parts, _GATEWAY, ("dialled", self._incarnation(parts)))
            case ("gateway", *event):
                self._tell(parts, _GATEWAY, tuple(event))

    def _befall(self, parts: list[int], step: Step) -> None:
        """Let something happen to several parts at once."""
        match step.fault:
            case Fault.CUT:
                self._tell(parts, _LINK, ("cut",))
            case Fault.AGENT_RESTART:
                for worker in self._workers:
                    self._tell(parts, worker, ("restart", self._incarnation(parts)))
                self._tell(parts, _LINK, ("restart", AGENT))
            case Fault.GATEWAY_RESTART:
                self._tell(parts, _GATEWAY, ("restart",))
                self._tell(parts, _LINK, ("restart", GATEWAY))

    def _incarnation(self, parts: list[int]) -> str:
        return _incarnation(self._budgets.spent(parts[-1], Fault.AGENT_RESTART))


class _Budgets:
    """Which faults are still to come: numbered, as a part of a fleet's state."""

    def __init__(self, faults: Mapping[Fault, int], at_most: int) -> None:
        self._faults = dict(faults)
        self._numbers: dict[tuple[tuple[tuple[Fault, int], ...], int], int] = {}
        self._all: list[tuple[dict[Fault, int], int]] = []
        self.left: list[frozenset[Fault]] = []
        """By budget: what may happen next."""
        self._number(self._faults, at_most)

    def after(self, budget: int, fault: Fault) -> int:
        """Return the budget with one fault less."""
        faults, at_most = self._all[budget]
        return self._number({**faults, fault: faults[fault] - 1}, at_most - 1)

    def spent(self, budget: int, fault: Fault) -> int:
        """Return how often this fault has happened."""
        return self._faults.get(fault, 0) - self._all[budget][0].get(fault, 0)

    def _number(self, faults: dict[Fault, int], at_most: int) -> int:
        key = tuple(faults.items()), at_most
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._all)
            self._all.append((faults, at_most))
            self.left.append(frozenset(fault for fault, times in faults.items() if times and at_most))
        return number


_ON_THE_WHOLE = tuple(
    Step(FLEET, (fault,), fault, is_progress=False) for fault in (Fault.CUT, Fault.AGENT_RESTART, Fault.GATEWAY_RESTART)
)


def _incarnation(restarts: int) -> str:
    return f"agent-{restarts + 1}"
