"""The clients: runs the load generator and reads what it saw, together with the CPU that others used meanwhile."""

from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.engines import build, next_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Clients:
    """A closed loop: each client asks, reads the whole answer, and asks again."""

    addresses: Sequence[str]
    keys: Sequence[str] = ()
    count: int = 1
    body_bytes: int = 500
    streams: bool = False

    def argv(self) -> list[str]:
        """Return the load generator's arguments for these clients."""
        words = ["--addresses", ",".join(self.addresses), "--keys", ",".join(self.keys)]
        words += ["--clients", str(self.count), "--size", str(self.body_bytes)]
        return [*words, "--stream"] if self.streams else words


@dataclass(frozen=True, slots=True)
class Span:
    """How long a window is, and how long the load runs before it opens."""

    warm_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What the clients saw within the window."""

    seconds: float
    requests: int
    events: int
    latency_p50_us: float
    latency_p99_us: float


class RequestsFailed(Exception):
    """Some request was not answered with 200: the run's figures mean nothing."""

    def __init__(self, failures: dict[str, int]) -> None:
        super().__init__(f"clients that stopped at a failure: {failures}")


class LoadBroken(Exception):
    """The load generator did not say what it should."""

    def __init__(self, wanted: str, found: str) -> None:
        super().__init__(f"the load generator said {found!r} instead of {wanted!r}")


def run(clients: Clients, span: Span, *, opened: Callable[[], None], closed: Callable[[], None]) -> Seen:
    """Run the clients; `opened` and `closed` are called as the window opens and closes.

    Raises:
        RequestsFailed: a client saw a failure.
    """
    timing = ["--warm", f"{span.warm_seconds}s", "--measure", f"{span.seconds}s"]
    argv = [str(build("load")), *clients.argv(), *timing]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:  # noqa: S603 - our own program
        _expect(process, "measuring")
        opened()
        _expect(process, "measured")
        closed()
        return read_seen(next_line(process))


@contextlib.contextmanager
def held(clients: Clients) -> Iterator[None]:
    """Have every client ask once and wait for its answer within the block; then all hang up."""
    argv = [str(build("load")), *clients.argv(), "--hold"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as process:  # noqa: S603 - as above
        _expect(process, "sent")
        yield


def read_seen(line: str) -> Seen:
    """Read the load generator's last line.

    Raises:
        RequestsFailed: it tells of failures.
    """
    found = json.loads(line)
    failures: dict[str, int] = found.pop("failures")
    if failures:
        raise RequestsFailed(failures)
    return Seen(**found)


def _expect(process: subprocess.Popen[bytes], wanted: str) -> None:
    found = next_line(process)
    if found != wanted:
        raise LoadBroken(wanted, found)
