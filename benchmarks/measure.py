"""One measurement: clients run against a target; what they, the engines and the kernel saw becomes figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import load
from benchmarks.engines import Work, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.engines import Engines, Window
    from benchmarks.targets import Target


@dataclass(frozen=True, slots=True)
class Case:
    """What the clients do, and what each generation is."""

    key: str
    work: Work
    clients: int
    streams: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One window."""

    seen: load.Seen
    window: Window
    cpu_seconds: Mapping[str, float]
    """By role; the first is what clients talk to."""

    @property
    def front_cpu_seconds(self) -> float:
        """What the process that clients talk to has used."""
        return next(iter(self.cpu_seconds.values()))

    @property
    def behind_cpu_seconds(self) -> float:
        """What the other processes of the target have used."""
        return sum(self.cpu_seconds.values()) - self.front_cpu_seconds


class Overlapped(Exception):
    """A slot had two generations at once: a fault of the competitor, and the end of the comparison."""

    def __init__(self, target: str, case: str, overlaps: int) -> None:
        super().__init__(f"{target}, {case}: {overlaps} generations began while another one ran on their slot")


class _Meter:
    """Reads the CPU and the engines as the window opens and closes."""

    def __init__(self, target: Target, engines: Engines) -> None:
        self._target, self._engines = target, engines
        self.used: dict[str, float] = {}
        self.windows: list[Window] = []

    def opened(self) -> None:
        self._engines.open_window()
        self.used = {role: -process.cpu_seconds() for role, process in self._target.processes.items()}

    def closed(self) -> None:
        for role, process in self._target.processes.items():
            self.used[role] += process.cpu_seconds()
        self.windows.append(self._engines.window(self._target.group))


def measure(target: Target, engines: Engines, case: Case, span: load.Span) -> Measurement:
    """Run one case against one target.

    Raises:
        RequestsFailed: a client saw a failure.
        Overlapped: a slot ran two generations at once.
    """
    target.check()
    engines.set_work(case.work)
    meter = _Meter(target, engines)
    clients = load.Clients([target.address], target.keys, case.clients, streams=case.streams)
    seen = load.run(clients, span, opened=meter.opened, closed=meter.closed)
    engines.wait_idle(target.group)
    wait_until(lambda: target.queued() == 0, "the queue is empty")
    (window,) = meter.windows
    if window.overlaps:
        raise Overlapped(target.name, case.key, window.overlaps)
    return Measurement(seen=seen, window=window, cpu_seconds=meter.used)


def measure_direct(engines: Engines, case: Case, span: load.Span) -> load.Seen:
    """Run one case without anything between clients and engines: one slot for each client."""
    engines.set_work(case.work)
    ports = engines.open(case.clients)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return load.run(load.Clients(addresses, (), case.clients), span, opened=_nothing, closed=_nothing)


def measure_queue(target: Target, engines: Engines, slots: int, waiting: int) -> int:
    """Return the memory of the target's front while this many requests of 2 kB wait in it."""
    engines.set_work(Work(seconds=600))
    with load.held(load.Clients([target.address], target.keys, slots + waiting, body_bytes=2000)):
        wait_until(lambda: target.queued() >= waiting, f"{waiting} requests wait in {target.name}")
        resident = target.front.resident_bytes()
    engines.set_work(Work())
    wait_until(lambda: target.queued() == 0, "the queue is empty")
    engines.wait_idle(target.group)
    return resident


def _nothing() -> None:
    """Take note of nothing: there is no process to measure."""
