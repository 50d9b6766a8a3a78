"""What is measured: HAProxy, and the fleet. A target is a list of processes, an address, and keys."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from benchmarks.engines import Engines, wait_until
from benchmarks.processes import Managed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FLEET = Path(sys.executable).parent / "basert-fleet"
FRONT_CORE, AGENT_CORE = 0, 1
"""What clients talk to has one core for itself, as far as the machine is quiet; both competitors have the same one."""
KEYS = tuple(f"bench-key-{number}" for number in range(4))
"""One tenant each, so that the queue has something to be fair about."""
QUEUE_PLACES = 20_000


class Layout(StrEnum):
    """How the fleet is run."""

    UP = "up"
    """Gateway and agent in one process: their CPU cannot be told apart."""
    SPLIT = "split"
    """As across machines: a gateway, and an agent that dials it."""


@dataclass(frozen=True, slots=True)
class Target:
    """One running competitor."""

    name: str
    address: str
    keys: Sequence[str]
    group: str
    """Which of the engines' slots it uses."""
    processes: Mapping[str, Managed]
    """By role; the first is what clients talk to."""
    queued: Callable[[], int]
    """How many requests wait in it now."""

    @property
    def front(self) -> Managed:
        """The process that clients talk to."""
        return next(iter(self.processes.values()))

    def check(self) -> None:
        """Raise if any of its processes has ended.

        Raises:
            ProcessEnded: one has.
        """
        for process in self.processes.values():
            process.check()


# --- HAProxy ----------------------------------------------------------------------------------------------------------

HAPROXY_CONFIG = """\
global
    nbthread 1
    maxconn 15000
    no strict-limits  # it wants two descriptors per client; those that wait need one
    stats socket {stats}
defaults
    mode http
    option http-no-delay
    option abortonclose
    http-reuse always
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    timeout queue 10m
listen bench
    bind {address}
    balance leastconn
"""


@contextlib.contextmanager
def haproxy(folder: Path, engines: Engines, slots: int) -> Iterator[Target]:
    """Run HAProxy over plain slots, one server each, one connection per server."""
    address, stats = _free_address(), folder / "haproxy.sock"
    servers = [f"    server s{port} 127.0.0.1:{port} maxconn 1\n" for port in engines.open(slots)]
    config = folder / "haproxy.cfg"
    config.write_text(HAPROXY_CONFIG.format(address=address, stats=stats) + "".join(servers))
    process = Managed.start("haproxy", ["haproxy", "-db", "-f", config], log=folder / "haproxy.log", core=FRONT_CORE)
    try:
        wait_until(lambda: _accepts(process, address), f"haproxy listens on {address}")
        yield Target(
            "HAProxy", address, (), Engines.PLAIN, {"haproxy": process}, lambda: haproxy_queue(_ask_haproxy(stats))
        )
    finally:
        process.end()
        engines.close_plain()


def haproxy_queue(statistics: str) -> int:
    """Return how many requests wait in all, from the CSV of `show stat`."""
    header, *rows = [line.split(",") for line in statistics.removeprefix("# ").splitlines() if line]
    waiting = header.index("qcur")
    return sum(int(row[waiting]) for row in rows if row[waiting])  # in the backend, or at one server; frontends: none


def _ask_haproxy(stats: Path) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(stats))
        connection.sendall(b"show stat\n")
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


# --- The fleet --------------------------------------------------------------------------------------------------------

FLEET_FILE = """\
apiVersion: fleet.basert.dev/v1alpha1
kind: BasertPool
metadata:
  name: bench
spec:
  model:
    name: bench
    path: bench.base
  replicas: {slots}
  server:
    command: ["{program}", worker]
    args: [--bench-socket, "{socket}"]
  queue:
    maxRequests: {places}
"""


@contextlib.contextmanager
def fleet(folder: Path, engines: Engines, slots: int, layout: Layout) -> Iterator[Target]:
    """Run the fleet with keys, canaries and all defaults; it starts its own workers."""
    address, operators = _free_address(), _free_address()
    file, keys = folder / "fleet.yaml", folder / "keys.yaml"
    file.write_text(FLEET_FILE.format(slots=slots, program=engines.program, socket=engines.socket, places=QUEUE_PLACES))
    keys.write_text(keys_file())
    listen: list[str | Path] = ["--listen", address, "--ops-listen", operators, "--keys-file", keys]
    with contextlib.ExitStack() as stack, httpx.Client(base_url=f"http://{operators}", timeout=120) as client:
        start = _Starter(folder, stack)
        if layout is Layout.UP:
            up = start("up", [FLEET, "up", file, *listen, "--state-dir", folder / "state"], FRONT_CORE)
            processes = {"gateway and agent": up}
        else:
            agents = _free_address()
            gateway = start("gateway", [FLEET, "gateway", file, *listen, "--agents-listen", agents,
                                        "--state-dir", folder / "gateway"], FRONT_CORE)  # fmt: skip
            wait_until(lambda: _accepts(gateway, agents), f"the gateway listens on {agents}")
            agent = start("agent", [FLEET, "agent", f"ws://{agents}", "--state-dir", folder / "state"], AGENT_CORE)
            processes = {"gateway": gateway, "agent": agent}
        front = next(iter(processes.values()))
        wait_until(lambda: _accepts(front, operators), f"the fleet listens on {operators}")
        target = Target(
            "basert-fleet", address, KEYS, Engines.LEASED, processes, lambda: int(_observed(client)["queued"])
        )
        wait_until(lambda: _all_idle(target, client, slots), f"{slots} workers are ready")
        yield target


def is_available(layout: Layout) -> bool:
    """Say whether this version of the fleet has the commands of the layout."""
    command = "up" if layout is Layout.UP else "gateway"
    return (
        subprocess.run(  # noqa: S603 - our own program
            [FLEET, command, "--help"], capture_output=True, check=False
        ).returncode
        == 0
    )


def keys_file() -> str:
    """Return the fleet's keys file for `KEYS`."""
    entries = [
        f"  - {{name: key-{number}, tenant: tenant-{number}, sha256: {hashlib.sha256(key.encode()).hexdigest()}}}\n"
        for number, key in enumerate(KEYS)
    ]
    return "keys:\n" + "".join(entries)


class _Starter:
    """Starts processes that end with the stack."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def __call__(self, name: str, argv: Sequence[str | Path], core: int) -> Managed:
        process = Managed.start(name, argv, log=self._folder / f"{name}.log", core=core)
        self._stack.callback(process.end)
        return process


def _all_idle(target: Target, client: httpx.Client, slots: int) -> bool:
    target.check()
    return int(_observed(client)["idle"]) == slots


def _observed(client: httpx.Client) -> Mapping[str, int]:
    answer = client.get("/fleet/observed")
    answer.raise_for_status()
    pool: Mapping[str, int] = answer.json()["pools"][0]
    return pool


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _accepts(process: Managed, address: str) -> bool:
    process.check()
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True
