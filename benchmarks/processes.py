"""The processes under measurement: started, placed on a core, asked what they used, and ended.

Linux only: CPU time and memory are read from /proc.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
END_SECONDS = 90.0
"""How long a process may take to end by itself; the fleet ends a thousand workers in it. Then it is killed."""
QUOTED = 2000
"""Characters of a log that an error repeats."""
UTIME_FIELD, STIME_FIELD = 11, 12
"""Of /proc/PID/stat, counted after the program's name (proc(5) numbers them 14 and 15)."""


class ProcessEnded(Exception):
    """A process under measurement is gone: no figure of this run means anything."""

    def __init__(self, name: str, status: int, log: Path) -> None:
        super().__init__(f"{name} ended with status {status}; its log ends with: {log.read_text()[-QUOTED:]}")


@dataclass(frozen=True, slots=True)
class Managed:
    """One process that this benchmark started, in a group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(
        cls, name: str, argv: Sequence[str | Path], *, log: Path, core: int, env: Mapping[str, str] | None = None
    ) -> Self:
        """Start it on one core; its output is appended to the log."""
        with log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - the programs of this benchmark
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        os.sched_setaffinity(process.pid, {core})
        return cls(name, process, log)

    def check(self) -> None:
        """Raise if it is not running any more.

        Raises:
            ProcessEnded: it is not.
        """
        status = self.process.poll()
        if status is not None:
            raise ProcessEnded(self.name, status, self.log)

    def cpu_seconds(self) -> float:
        """Return the CPU time it has used so far, all its threads and both modes, in steps of a clock tick (10 ms)."""
        return cpu_seconds(Path(f"/proc/{self.process.pid}/stat").read_text())

    def resident_bytes(self) -> int:
        """Return the memory that is resident now."""
        return resident_bytes(Path(f"/proc/{self.process.pid}/status").read_text())

    def end(self) -> None:
        """Ask it to end, and kill its group if it does not in time."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def cpu_seconds(stat: str) -> float:
    """Return the CPU time that a /proc/PID/stat tells; the program's name in it may hold spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[UTIME_FIELD]) + int(fields[STIME_FIELD])) / TICKS_PER_SECOND


def resident_bytes(status: str) -> int:
    """Return the resident memory that a /proc/PID/status tells."""
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024
