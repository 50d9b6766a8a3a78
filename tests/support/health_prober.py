"""How long a fleet's /health takes, asked by a process of its own: the asking test's event loop is no part of it.

Run as `python -m support.health_prober HOST PORT`, it asks at a steady pace until its standard input ends, then prints
what each answer took. An answer's time begins when it was due to be asked for: all that come due while one is held up
are late, so that a loop that is blocked for one second in a hundred shows in the 99th percentile.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

TESTS = Path(__file__).parents[1]
EVERY_SECONDS = 0.01
"""Between two probes: often enough to meet a short block, and no load of its own."""
ANSWER_SECONDS = 30.0
"""A backstop: an answer that takes longer fails the test."""


class HealthProber:
    """A running prober."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def stop(self) -> list[float]:
        """End it; return the seconds that each answer took, the quickest first."""
        out, _ = await self._process.communicate(b"")  # without any input it would leave the standard input open
        assert self._process.returncode == 0, "a probe of /health failed"
        return sorted(json.loads(out))


@asynccontextmanager
async def probing_health(port: int) -> AsyncIterator[HealthProber]:
    """Ask /health at a port of this machine within the block, one request after another."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "support.health_prober", "127.0.0.1", str(port)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=TESTS,
    )
    try:
        yield HealthProber(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate(b"")


def probe_until_input_ends(host: str, port: int) -> list[float]:
    """Return what each answer took. Each must be a 200, all on one connection."""
    connection = HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    took: list[float] = []
    due = time.monotonic()
    while not _input_ends_before(due):
        connection.request("GET", "/health")
        with connection.getresponse() as answer:
            answer.read()
        took.append(time.monotonic() - due)
        assert answer.status == HTTPStatus.OK, answer.status
        due += EVERY_SECONDS
    connection.close()
    return took


def _input_ends_before(due: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
    return bool(readable)


if __name__ == "__main__":
    json.dump(probe_until_input_ends(sys.argv[1], int(sys.argv[2])), sys.stdout)
