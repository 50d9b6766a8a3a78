"""The emulator's own log: what really ran, from which a harness proves that no two generations ever overlapped.

One JSON object a line, each written by one write(2) to an O_APPEND file, so many processes may share the file. `t` is
CLOCK_MONOTONIC in seconds, the same for all processes of one machine.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from basert_fleet.sim.finish import Finish

if TYPE_CHECKING:
    from basert_fleet.sim.engine import Engine, Generation


class Journal:
    """Appends one process's events; without a path it writes nothing."""

    def __init__(self, path: str | None) -> None:
        self._fd = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._port = 0

    def started(self, port: int, *, orphan_pid: int | None) -> None:
        """Record that the process listens; `orphan_pid` is the child that `--sim-orphan` forked."""
        self._port = port
        self._write("start", orphan_pid=orphan_pid)

    def exited(self, reason: str) -> None:
        """Record an exit of the process's own choice; one that is killed records none."""
        self._write("exit", reason=reason)

    def generation_began(self, generation: Generation) -> None:
        """Record a begin, with how many others were running then (`overlap`)."""
        self._write(
            "begin",
            generation=generation.number,
            kind=generation.ask.kind,
            tools=generation.ask.has_tools,
            reuse=generation.reuses,
            overlap=generation.overlap,
        )

    def generation_ended(self, generation: Generation, finish: Finish, produced: int, engine: Engine) -> None:
        """Record an end; `contaminated` is the process's state, `damaged` says how this answer was wrong, or null."""
        self._write(
            "end",
            generation=generation.number,
            kind=generation.ask.kind,
            tools=generation.ask.has_tools,
            reuse=generation.reuses,
            overlap=generation.overlap,
            finish=finish,
            prompt_tokens=generation.prompt_tokens,
            completion_tokens=produced,
            cancelled=finish is Finish.CANCELLED,
            contaminated=engine.contaminated,
            damaged=generation.damage.name.lower() if generation.damage else None,
        )

    def _write(self, event: str, **fields: object) -> None:
        if self._fd is None:
            return
        record = {"event": event, "pid": os.getpid(), "port": self._port, "t": time.monotonic(), **fields}
        os.write(self._fd, json.dumps(record).encode() + b"\n")
