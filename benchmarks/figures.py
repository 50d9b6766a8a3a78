"""From measurements to the lines of the table: medians over the rounds, ratios, and whether a goal is met."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.load import Seen
    from benchmarks.measure import Measurement

MICROSECONDS = 1e6


class Bound(StrEnum):
    """Which way a goal limits a figure."""

    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit for the ratio to HAProxy or, if it is absolute, for the fleet's own figure."""

    bound: Bound
    value: float
    absolute: bool = False

    def met_by(self, figure: float) -> bool:
        """Say whether a figure keeps the limit."""
        return figure >= self.value if self.bound is Bound.AT_LEAST else figure <= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    what: str
    slots: int
    unit: str
    haproxy: float | None
    fleet: float
    goal: Goal | None = None

    @property
    def ratio(self) -> float | None:
        """The fleet's figure by HAProxy's; None where HAProxy has none."""
        return self.fleet / self.haproxy if self.haproxy else None

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        if self.goal is None:
            return None
        judged = self.fleet if self.goal.absolute else self.ratio
        return None if judged is None else self.goal.met_by(judged)


@dataclass(frozen=True, slots=True)
class Rounds:
    """The same case, measured again and again on both competitors in turn."""

    haproxy: list[Measurement]
    fleet: list[Measurement]

    def line(
        self, figure: Callable[[Measurement], float], what: str, slots: int, unit: str, goal: Goal | None = None
    ) -> Line:
        """Return the line of one figure: its median over the rounds for each competitor."""
        return Line(
            what=what,
            slots=slots,
            unit=unit,
            haproxy=statistics.median(map(figure, self.haproxy)),
            fleet=statistics.median(map(figure, self.fleet)),
            goal=goal,
        )


# --- Figures of one measurement ---------------------------------------------------------------------------------------


def requests_per_front_cpu_second(measured: Measurement) -> float:
    """Return how many requests one second of the front's CPU serves."""
    return measured.seen.requests / measured.front_cpu_seconds


def front_us_per_request(measured: Measurement) -> float:
    """Return the front's CPU per request."""
    return measured.front_cpu_seconds / measured.seen.requests * MICROSECONDS


def behind_us_per_request(measured: Measurement) -> float:
    """Return the CPU per request of what stands behind the front."""
    return measured.behind_cpu_seconds / measured.seen.requests * MICROSECONDS


def requests_per_second(measured: Measurement) -> float:
    """Return the throughput."""
    return measured.seen.requests / measured.seen.seconds


def front_us_per_chunk(measured: Measurement) -> float:
    """Return the front's CPU per streamed event, everything else that it does included."""
    return measured.front_cpu_seconds / measured.seen.events * MICROSECONDS


def behind_us_per_chunk(measured: Measurement) -> float:
    """Return the CPU per streamed event of what stands behind the front."""
    return measured.behind_cpu_seconds / measured.seen.events * MICROSECONDS


def chunks_per_second(measured: Measurement) -> float:
    """Return how many streamed events arrived per second."""
    return measured.seen.events / measured.seen.seconds


def busy_share(measured: Measurement) -> float:
    """Return the share of the slots' time in which they generated."""
    return measured.window.busy


def handoff_p50_ms(measured: Measurement) -> float:
    """Return the median time between two generations on one slot."""
    return measured.window.handoff_p50_us / 1000


def handoff_p99_ms(measured: Measurement) -> float:
    """Return the 99th percentile of the time between two generations on one slot."""
    return measured.window.handoff_p99_us / 1000


def added_ms(direct: Sequence[Seen], measured: Sequence[Measurement], quantile: Callable[[Seen], float]) -> float:
    """Return what a target adds to the latency of asking an engine directly, by the medians over the rounds."""
    without = statistics.median(map(quantile, direct))
    return (statistics.median(quantile(each.seen) for each in measured) - without) / 1000


def own_share(rounds: Sequence[Measurement]) -> float:
    """Return the share of generations that the fleet itself asked for: canaries and what goes with them."""
    return statistics.median((each.window.generations - each.window.users) / each.window.generations for each in rounds)


# --- The table --------------------------------------------------------------------------------------------------------

HEADER = "| Measure | Slots | HAProxy | basert-fleet | Ratio | Goal |\n|---|--:|--:|--:|--:|---|\n"


def table(lines: Sequence[Line]) -> str:
    """Write the lines as a table in Markdown."""
    return HEADER + "".join(
        f"| {line.what}, {line.unit} | {line.slots:,} | {_number(line.haproxy)} | {_number(line.fleet)} "
        f"| {_number(line.ratio)} | {_goal(line)} |\n"
        for line in lines
    )


def _goal(line: Line) -> str:
    if line.goal is None:
        return ""
    limit = f"{line.goal.bound} {line.goal.value:g}{' ' + line.unit if line.goal.absolute else ' × HAProxy'}"
    return f"{limit}: {'met' if line.met else '**not met**'}"


def _number(value: float | None) -> str:
    """Write a figure with three significant digits, at most three after the point, and separated thousands."""
    if value is None:
        return ""
    digits = 3 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 3)}f}"


class NoMarkers(Exception):
    """The page has no place for the measured part."""

    def __init__(self) -> None:
        super().__init__(f"the page has no {BEGIN} … {END}")


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def between_markers(page: str, text: str) -> str:
    """Return the page with this text as its measured part.

    Raises:
        NoMarkers: it has none.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise NoMarkers
    return f"{before}{BEGIN}\n{text.strip()}\n{END}{after}"


def context(facts: Mapping[str, str]) -> str:
    """Write what the figures depend on, as one paragraph."""
    return "; ".join(f"{name} {value}" for name, value in facts.items()) + ".\n"
