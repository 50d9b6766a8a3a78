"""The engine's model: which generations run, what each of them answers, what /slots counts.

It owns the state of one process and knows no time: its caller says when a generation begins and ends, and has asked
`may_begin` before. Answers are not final until a generation ends: one that arrives meanwhile overlaps it, and with the
bug all answers of the overlapping group are decided anew, since the damage depends on how many they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from basert_fleet.sim.answer import Damage, damaged_answer, right_answer
from basert_fleet.sim.bug import BugPolicy, PrefixRun, later_damage, overlap_damage
from basert_fleet.sim.counters import DRIFT_STEP, FRESH, CounterMode, counters_after, counters_while_running
from basert_fleet.sim.finish import Finish

if TYPE_CHECKING:
    from basert_fleet.sim.ask import Ask


class Generation:
    """One generation from begin to end; only its engine changes it."""

    __slots__ = ("answer", "ask", "damage", "number", "overlap", "reuses")

    def __init__(self, number: int, ask: Ask, overlap: int, reuses: int) -> None:
        self.number, self.ask = number, ask
        self.overlap = overlap  # other generations running at its begin
        self.reuses = reuses  # of its prefix, in a row, this one included; 0 is a prompt rendered anew
        self.damage: Damage | None = None
        self.answer = right_answer(ask, reuses)

    @property
    def prompt_tokens(self) -> int:
        """Return what the server reports: after a reuse only what it had to read anew (report: 9 instead of 274)."""
        return self.ask.suffix_tokens if self.reuses else self.ask.prompt_tokens


class Totals(NamedTuple):
    """What /metrics counts since the process started."""

    begun: int = 0
    ended: int = 0
    cancelled: int = 0
    overlapped: int = 0  # begun while another one ran
    reused: int = 0
    damaged: int = 0  # ended with a wrong answer


class Engine:
    """All generations of one process. With the bug they overlap; without it `may_begin` makes them wait."""

    def __init__(self, bug: BugPolicy, counter_mode: CounterMode) -> None:
        self._bug, self._counter_mode = bug, counter_mode
        self._running: list[Generation] = []
        self._group: list[Generation] = []  # all that overlapped since the engine was last idle, ended ones too
        self._run = PrefixRun()
        self._since_contaminated: int | None = None  # generations decided as contaminated; None: the process is clean
        self._drift = 0
        self._last_value: str | None = None
        self.counters = FRESH
        self.totals = Totals()

    @property
    def running(self) -> tuple[Generation, ...]:
        """Return the generations that have begun and not ended."""
        return tuple(self._running)

    @property
    def contaminated(self) -> bool:
        """Say whether this process answers wrongly until it is restarted."""
        return self._since_contaminated is not None

    @property
    def may_begin(self) -> bool:
        """Say whether a generation may begin now; basert-serve's bug is that it always may."""
        return self._bug.enabled or not self._running

    def begin(self, ask: Ask) -> Generation:
        """Begin a generation and decide its answer; one that overlaps others changes theirs as well."""
        self._run = self._run.extended(ask.prefix)
        generation = Generation(self.totals.begun + 1, ask, len(self._running), self._run.reuses)
        if not self._running:
            self._group = []
        self._running.append(generation)
        self._group.append(generation)
        self._count_begin(generation)
        self._decide(generation)
        self.counters = counters_while_running(ask.prompt_tokens, self._drift)
        return generation

    def end(self, generation: Generation, finish: Finish, produced: int) -> None:
        """End a generation that produced so many tokens, with its answer's finish or CANCELLED."""
        self._running.remove(generation)
        if self.contaminated:
            self._drift += DRIFT_STEP
        if generation.ask.calls:
            self._last_value = generation.ask.calls[-1].value
        self.counters = counters_after(self._counter_mode, generation.ask.prompt_tokens, finish, produced, self._drift)
        self.totals = self.totals._replace(
            ended=self.totals.ended + 1,
            cancelled=self.totals.cancelled + (finish is Finish.CANCELLED),
            damaged=self.totals.damaged + (generation.damage is not None),
        )

    def contaminate(self) -> None:
        """Contaminate the process from the next generation on; again does nothing."""
        if self._since_contaminated is None:
            self._since_contaminated = 0

    def forget_cache(self) -> None:
        """Reset the counters and the cached prefix, as after `--idle-timeout`; this heals no contamination."""
        self.counters, self._run = FRESH, PrefixRun()

    def _count_begin(self, generation: Generation) -> None:
        self.totals = self.totals._replace(
            begun=generation.number,
            overlapped=self.totals.overlapped + (generation.overlap > 0),
            reused=self.totals.reused + (generation.reuses > 0),
        )

    def _decide(self, generation: Generation) -> None:
        """Give the newest generation its answer, by the first of: overlap, an old contamination, its reuse run."""
        if generation.overlap:
            self.contaminate()
            self._damage_group()
        elif self._since_contaminated is not None:
            damage = later_damage(self._since_contaminated, has_tools=generation.ask.has_tools)
            self._since_contaminated += 1
            self._damage(generation, damage, self._last_value)
        elif self._bug.enabled and generation.reuses >= self._bug.after_reuses:
            self.contaminate()
            self._damage(generation, Damage.RUNAWAY, None)

    def _damage_group(self) -> None:
        """Decide anew what the running members of the group answer; those that have ended keep what they told."""
        for place, generation in enumerate(self._group):
            if generation in self._running:
                before = self._group[place - 1].ask.calls  # of the first, the last one's
                stale_value = before[-1].value if before else None
                self._damage(generation, overlap_damage(place, len(self._group)), stale_value)

    @staticmethod
    def _damage(generation: Generation, damage: Damage, stale_value: str | None) -> None:
        generation.damage = damage
        generation.answer = damaged_answer(generation.ask, damage, stale_value, generation.reuses)
