"""Measures the fleet beside HAProxy and prints the table: `python -m benchmarks`, or `make bench`."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import figures
from benchmarks.engines import Engines, Work, running_engines
from benchmarks.figures import Bound, Goal, Line, Rounds
from benchmarks.load import Seen, Span
from benchmarks.measure import Case, measure, measure_direct, measure_queue
from benchmarks.targets import Layout, fleet, haproxy, is_available

if TYPE_CHECKING:
    from benchmarks.measure import Measurement
    from benchmarks.targets import Target

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
FEW, MANY = 8, 1000
CHUNKS_PER_SECOND = 30_000
"""Of all streams together: a thousand slots of 30 tokens per second."""
STREAM_SECONDS = 5.0
WARM_GENERATIONS = 2
"""Clients begin together: it takes some generations until a fleet's slots end at different times."""
MB = 1e6
LAST_WORDS = 30
"""Lines of each log that are shown when a run is refused."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how often everything is measured."""

    rounds: int
    span: Span
    sizes: tuple[int, ...]


FULL = Effort(3, Span(1.0, 3.0), (FEW, MANY))
QUICK = Effort(1, Span(0.5, 2.0), (FEW,))


def instant(slots: int) -> Case:
    """Return clients enough to keep every slot asked for, and generations that take no time."""
    return Case("instant", Work(), clients=max(64, slots * 3 // 2))


def saturated(slots: int, seconds: float) -> Case:
    """Return clients that always wait, and generations of a set time."""
    return Case("saturated", Work(seconds=seconds), clients=min(slots * 8, slots + 500))


def streamed(slots: int) -> Case:
    """Return one stream per slot, all of them together at the set rate."""
    rate = CHUNKS_PER_SECOND / slots
    return Case("streamed", Work(tokens=int(rate * STREAM_SECONDS), interval_seconds=1 / rate), slots, streams=True)


UNLOADED = Case("unloaded", Work(seconds=0.02), clients=4)
"""Fewer clients than slots: nobody waits, so what is added to the engine's time is the target's own."""


@dataclass(slots=True)
class Bench:
    """One invocation: both competitors run at once, and are measured in turn."""

    engines: Engines
    effort: Effort
    layout: Layout
    folder: Path
    lines: list[Line] = field(default_factory=list)

    def run(self) -> None:
        """Measure everything."""
        for slots in self.effort.sizes:
            folder = self.folder / str(slots)
            folder.mkdir()
            say(f"starting HAProxy and the fleet ({self.layout}) with {slots} slots")
            with ExitStack() as stack:
                proxy = stack.enter_context(haproxy(folder, self.engines, slots))
                ours = stack.enter_context(fleet(folder, self.engines, slots, self.layout))
                self._measure(proxy, ours, slots)

    def _measure(self, proxy: Target, ours: Target, slots: int) -> None:
        if slots == FEW:
            self._memory(proxy, ours, slots)
        self._requests(self._rounds(proxy, ours, instant(slots)), slots)
        self._saturation(self._rounds(proxy, ours, saturated(slots, 0.05)), slots, "50 ms generations")
        if slots == MANY:
            self._saturation(self._rounds(proxy, ours, saturated(slots, 2.0)), slots, "2 s generations")
        self._streams(self._rounds(proxy, ours, streamed(slots)), slots)
        self._latency(proxy, ours, slots)

    def _rounds(self, proxy: Target, ours: Target, case: Case) -> Rounds:
        rounds = Rounds([], [])
        warm_seconds = self.effort.span.warm_seconds + WARM_GENERATIONS * case.work.seconds
        span = Span(warm_seconds, self.effort.span.seconds)
        for number in range(self.effort.rounds):
            pairs: list[tuple[Target, list[Measurement]]] = [(proxy, rounds.haproxy), (ours, rounds.fleet)]
            for target, measurements in pairs if number % 2 == 0 else reversed(pairs):
                say(f"  {case.key}, round {number + 1}: {target.name}")
                measurements.append(measure(target, self.engines, case, span))
        return rounds

    def _requests(self, rounds: Rounds, slots: int) -> None:
        add, line = self.lines.append, rounds.line
        goal = Goal(Bound.AT_LEAST, 0.2)
        add(line(figures.requests_per_front_cpu_second, "Requests per CPU-second of the gateway", slots, "1/s", goal))
        add(line(figures.front_us_per_request, "CPU of the gateway per request", slots, "µs"))
        if self.layout is Layout.SPLIT:
            add(line(figures.behind_us_per_request, "CPU of the agent per request", slots, "µs"))
        add(line(figures.requests_per_second, "Throughput of instant requests", slots, "1/s"))

    def _saturation(self, rounds: Rounds, slots: int, what: str) -> None:
        add, line = self.lines.append, rounds.line
        add(line(figures.busy_share, f"Busy slots, {what}", slots, "share", Goal(Bound.AT_LEAST, 0.995)))
        add(line(figures.handoff_p50_ms, f"Handoff p50, {what}", slots, "ms"))
        add(line(figures.handoff_p99_ms, f"Handoff p99, {what}", slots, "ms", Goal(Bound.AT_MOST, 2)))
        say(f"  the fleet's own generations: {figures.own_share(rounds.fleet):.1%} of all")

    def _streams(self, rounds: Rounds, slots: int) -> None:
        add, line = self.lines.append, rounds.line
        add(line(figures.front_us_per_chunk, "CPU of the gateway per SSE chunk", slots, "µs", Goal(Bound.AT_MOST, 0.9)))
        if self.layout is Layout.SPLIT:
            add(line(figures.behind_us_per_chunk, "CPU of the agent per SSE chunk", slots, "µs"))
        add(line(figures.chunks_per_second, "SSE chunks delivered", slots, "1/s"))

    def _latency(self, proxy: Target, ours: Target, slots: int) -> None:
        direct: list[Seen] = [
            measure_direct(self.engines, UNLOADED, self.effort.span) for _ in range(self.effort.rounds)
        ]
        rounds = self._rounds(proxy, ours, UNLOADED)
        for name, quantile, goal in (
            ("p50", lambda seen: seen.latency_p50_us, Goal(Bound.AT_MOST, 1.0, absolute=True)),
            ("p99", lambda seen: seen.latency_p99_us, None),
        ):
            self.lines.append(
                Line(
                    what=f"Added latency {name}",
                    slots=slots,
                    unit="ms",
                    haproxy=figures.added_ms(direct, rounds.haproxy, quantile),
                    fleet=figures.added_ms(direct, rounds.fleet, quantile),
                    goal=goal,
                )
            )

    def _memory(self, proxy: Target, ours: Target, slots: int) -> None:
        for waiting, goal in ((1000, Goal(Bound.AT_MOST, 120.0, absolute=True)), (10_000, None)):
            say(f"  memory with {waiting} waiting requests")
            self.lines.append(
                Line(
                    what=f"Memory of the gateway, {waiting:,} requests of 2 kB waiting",
                    slots=slots,
                    unit="MB",
                    haproxy=measure_queue(proxy, self.engines, slots, waiting) / MB,
                    fleet=measure_queue(ours, self.engines, slots, waiting) / MB,
                    goal=goal,
                )
            )


def say(text: str) -> None:
    """Tell a person how it goes."""
    sys.stderr.write(f"{text}\n")


def facts(layout: Layout, effort: Effort) -> dict[str, str]:
    """Return what the figures depend on."""
    return {
        "Commit": output_of("git", "rev-parse", "--short", "HEAD"),
        "fleet run as": "`up`" if layout is Layout.UP else "`gateway` and `agent`",
        "HAProxy": output_of("haproxy", "-v").split()[2],
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "CPU": f"{os.cpu_count()} × {cpu_model()}",
        "median of": f"{effort.rounds} rounds of {effort.span.seconds:g} s",
    }


def output_of(*argv: str) -> str:
    """Return what a program prints."""
    return subprocess.run(argv, capture_output=True, check=True, text=True).stdout.strip()  # noqa: S603 - see callers


def cpu_model() -> str:
    """Return what the kernel calls the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def tell_last_words(folder: Path) -> None:
    """Show how the log of each competitor ends: the folder goes, and a refused run would leave no reason."""
    for log in sorted(folder.rglob("*.log")):
        say(f"== {log.relative_to(folder)} ends with")
        for line in log.read_text(errors="replace").splitlines()[-LAST_WORDS:]:
            say(f"   {line}")


def main() -> int:
    """Run the benchmark; the exit code is 1 if a goal was not met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the fleet beside HAProxy.")
    parser.add_argument("--quick", action="store_true", help="8 slots and one short round; docs are left alone")
    parser.add_argument("--layout", type=Layout, choices=list(Layout), help="how the fleet runs (default: split)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that everything started is ended
    effort: Effort = QUICK if arguments.quick else FULL
    layout: Layout = arguments.layout or (Layout.SPLIT if is_available(Layout.SPLIT) else Layout.UP)
    with tempfile.TemporaryDirectory(prefix="basert-bench-") as name, running_engines(Path(name)) as engines:
        bench = Bench(engines, effort, layout, Path(name))
        try:
            bench.run()
        except BaseException:
            tell_last_words(Path(name))
            raise
        finally:
            text = f"{figures.table(bench.lines)}\n{figures.context(facts(layout, effort))}"
            sys.stdout.write(text)  # what was measured before a failure is true all the same
    if effort is FULL:
        PAGE.write_text(figures.between_markers(PAGE.read_text(), text))
    return 0 if all(line.met is not False for line in bench.lines) else 1


if __name__ == "__main__":
    sys.exit(main())
