"""Breadth first through every state that a small fleet can reach, and back from the states at rest.

Breadth first makes the first trace to a broken promise a shortest one. A state from which no progress leads to rest is
found by going backwards along the steps that take no fault: whatever has happened, a fleet that is left alone must come
to rest, by itself, with every request over and every slot offered.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from time import perf_counter

from model.machine import Broken
from model.world import Scope, State, World


@dataclass(frozen=True, slots=True)
class Explored:
    """What came of one scope."""

    scope: Scope
    states: int
    steps: int
    seconds: float
    failure: str
    """Which promise is broken, or that a state never comes to rest; empty if all holds."""
    trace: tuple[str, ...]
    """A shortest way to the failure, step by step."""
    parts: tuple[int, ...]
    """How many states each part has by itself."""

    def __str__(self) -> str:
        rate = self.states / self.seconds
        found = f"{self.scope.name}: {self.states:,} states, {self.steps:,} steps, {rate:,.0f} states/s"
        if not self.failure:
            return found
        lines = (f"  {number}. {step}" for number, step in enumerate(self.trace, 1))
        return "\n".join([found, self.failure, *lines])


class Explorer:
    """The graph of one world, as far as it is known."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._world = World(scope)
        self._states: list[State] = [self._world.first]
        self._number: dict[State, int] = {self._world.first: 0}
        self._parents = array("I", [0])
        self._progress_ends = array("I")
        """By state: where its steps of progress end in `_progress`."""
        self._progress = array("I")
        self._steps = 0
        self._began = perf_counter()

    def explore(self) -> Explored:
        """Visit every state, and end with the first broken promise."""
        at = 0
        while at < len(self._states):
            failure = self._expand(at)
            if failure is not None:
                return self._explored(*failure)
            at += 1
        restless = self._first_restless()
        if restless is not None:
            return self._explored("promise 4 is broken: nothing leads from here to rest", self._trace_to(restless))
        return self._explored("", ())

    def _expand(self, at: int) -> tuple[str, tuple[str, ...]] | None:
        """Take every step of one state; return a failure and its trace, if one fails."""
        world, state = self._world, self._states[at]
        numbers, states = self._number, self._states
        for step in world.steps(state):
            try:
                target = world.take(state, step)
            except Exception as error:  # noqa: BLE001 - any exception of production code is a finding, shown with its trace
                failure = str(error) if isinstance(error, Broken) else f"production code failed: {error!r}"
                return failure, (*self._trace_to(at), world.describe(state, step))
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(states)
                states.append(target)
                self._parents.append(at)
            if step.is_progress:
                self._progress.append(number)
            self._steps += 1
        self._progress_ends.append(len(self._progress))
        return None

    def _first_restless(self) -> int | None:
        """Return the first state from which progress never comes to rest."""
        starts, sources = self._backwards()
        reached = bytearray(len(self._states))
        due = deque[int]()
        for number, state in enumerate(self._states):
            if self._world.is_at_rest(state):
                reached[number] = 1
                due.append(number)
        while due:
            number = due.popleft()
            for source in sources[starts[number] : starts[number + 1]]:
                if not reached[source]:
                    reached[source] = 1
                    due.append(source)
        restless = reached.find(0)
        return None if restless < 0 else restless

    def _backwards(self) -> tuple[array[int], array[int]]:
        """Return the steps of progress by their target: where each target's sources begin, and all sources."""
        starts = array("I", bytes(4 * (len(self._states) + 1)))
        for target in self._progress:
            starts[target + 1] += 1
        for number in range(len(self._states)):
            starts[number + 1] += starts[number]
        places, sources = array("I", starts), array("I", bytes(4 * len(self._progress)))
        begin = 0
        for source, end in enumerate(self._progress_ends):
            for target in self._progress[begin:end]:
                sources[places[target]] = source
                places[target] += 1
            begin = end
        return starts, sources

    def _trace_to(self, number: int) -> tuple[str, ...]:
        """Return the steps of a shortest way to a state."""
        steps: list[str] = []
        while number:
            parent = self._parents[number]
            state, target = self._states[parent], self._states[number]
            step = next(step for step in self._world.steps(state) if self._world.take(state, step) == target)
            steps.append(self._world.describe(state, step))
            number = parent
        return tuple(reversed(steps))

    def _explored(self, failure: str, trace: tuple[str, ...]) -> Explored:
        seconds = perf_counter() - self._began
        parts = tuple(len(table) for table in self._world.tables)
        return Explored(self._scope, len(self._states), self._steps, seconds, failure, trace, parts)


def explore(scope: Scope) -> Explored:
    """Explore one scope to its end, or to the first broken promise."""
    return Explorer(scope).explore()
