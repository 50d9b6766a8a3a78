"""The engines under both competitors: one Go process that serves every slot, and the load generator's program.

Both are built once into a cache folder and rebuilt by Go itself when their source has changed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "basert-fleet-bench"
POLL_SECONDS = 0.05
WAIT_SECONDS = 180.0
"""A backstop for what is waited for: a thousand workers warm up in less."""


class TooLong(Exception):
    """Something that should happen did not."""

    def __init__(self, what: str) -> None:
        super().__init__(f"waited {WAIT_SECONDS:.0f} s in vain: {what}")


@dataclass(frozen=True, slots=True)
class Work:
    """What each generation is from now on."""

    seconds: float = 0.0
    """Of an answer in one piece."""
    tokens: int = 64
    """Of any answer; a stream has one event for each."""
    interval_seconds: float = 0.0
    """Between a stream's tokens."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one group of slots did since the window was opened."""

    slots: int
    running: int
    generations: int
    """Those of the fleet itself included: canaries are generations like others."""
    users: int
    overlaps: int
    """Generations that began while another one ran on the same slot. More than 0 is a fault of the competitor."""
    busy: float
    """Share of the slots' time in which a generation ran."""
    handoff_p50_us: float
    handoff_p99_us: float
    """From the end of one generation to the beginning of the next on the same slot."""


class Engines:
    """The running backend. `LEASED` slots were started by an agent, `PLAIN` ones by this benchmark."""

    LEASED, PLAIN = "leased", "plain"

    def __init__(self, program: Path, socket: Path, control: str) -> None:
        self.program, self.socket = program, socket
        self._client = httpx.Client(base_url=control, timeout=30)

    def open(self, count: int) -> list[int]:
        """Open plain slots; return their ports."""
        ports: list[int] = self._post("/open", count=str(count))
        return ports

    def close_plain(self) -> None:
        """Close all plain slots."""
        self._post("/close")

    def set_work(self, work: Work) -> None:
        """Change what generations are; those that run are not changed."""
        self._post(
            "/work",
            tokens=str(work.tokens),
            generation=f"{work.seconds * 1e6:.0f}us",
            interval=f"{work.interval_seconds * 1e6:.0f}us",
        )

    def open_window(self) -> None:
        """Begin to count anew."""
        self._post("/window")

    def window(self, group: str) -> Window:
        """Return what a group of slots did since then."""
        answer = self._client.get("/window", params={"group": group})
        answer.raise_for_status()
        return Window(**answer.json())

    def wait_idle(self, group: str) -> None:
        """Return once no generation runs in the group."""
        wait_until(lambda: self.window(group).running == 0, f"all {group} slots are idle")

    def close(self) -> None:
        """Close the connection to its control port."""
        self._client.close()

    def _post(self, path: str, **parameters: str) -> list[int]:
        answer = self._client.post(path, params=parameters)
        answer.raise_for_status()
        value: list[int] = answer.json()
        return value


@contextlib.contextmanager
def running_engines(folder: Path) -> Iterator[Engines]:
    """Run the backend within the block."""
    program, socket = build("backend"), folder / "engines.sock"
    with (folder / "engines.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [program, "serve", "--socket", socket], stdout=subprocess.PIPE, stderr=log
        )
    try:
        engines = Engines(program, socket, next_line(process))
        with contextlib.closing(engines):
            yield engines
    finally:
        process.kill()
        process.wait()


def build(name: str) -> Path:
    """Build one of the Go programs and return where it is."""
    program = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(  # noqa: S603 - our own source
        ["go", "build", "-o", program, "."],  # noqa: S607 - whatever Go the user has
        cwd=HERE / name,
        check=True,
    )
    return program


def next_line(process: subprocess.Popen[bytes]) -> str:
    """Return the next line that a process with a piped output prints; empty when it has ended."""
    return process.stdout.readline().decode().strip() if process.stdout is not None else ""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once the condition holds.

    Raises:
        TooLong: it does not come to hold.
    """
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise TooLong(what)
        time.sleep(POLL_SECONDS)
