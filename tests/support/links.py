"""A fleet across machines as its user runs it: gateway and agents as programs of their own, each on a line to cut."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from basert_fleet.agent.node import allocatable_bytes
from support.cut_proxy import CutProxy, cut_proxy
from support.fleet import LOOK_SECONDS, PATIENCE_SECONDS, Fleet, free_ports, pool, write_pools

NODES = ("mac-1", "mac-2")
WORKERS_PER_NODE = 4
MEBIBYTE = 1024**2


def shared_pool(*sim_options: str, replicas: int = 2 * WORKERS_PER_NODE, **spec: Any) -> dict[str, Any]:
    """Return a pool of which each of two nodes can take half, whichever dials first."""
    memory = f"{allocatable_bytes() // (replicas // 2) // MEBIBYTE}Mi"
    return pool(*sim_options, replicas=replicas, resources={"memory": memory}, **spec)


@dataclass
class Program:
    """One command of basert-fleet, which can be killed and started again. `log` is all that it ever said."""

    arguments: list[str]
    log_path: Path
    process: asyncio.subprocess.Process | None = field(default=None, init=False)

    @property
    def running(self) -> asyncio.subprocess.Process:
        """The process of now, or the last one."""
        assert self.process is not None
        return self.process

    def log(self) -> str:
        """Return what it wrote to stderr."""
        return self.log_path.read_text(errors="replace")

    async def start(self) -> None:
        """Start it."""
        with self.log_path.open("ab") as stderr:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "basert_fleet.cli.main",
                *self.arguments,
                stderr=stderr,
                stdin=asyncio.subprocess.DEVNULL,
            )

    async def kill(self) -> None:
        """End it as a crash does; what it started lives on."""
        if self.running.returncode is None:
            self.running.kill()
        await self.running.wait()

    async def stop(self) -> int:
        """End it as an operator does; return its exit status."""
        if self.running.returncode is None:
            self.running.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.running.wait()

    async def says(self, text: str, *, times: int = 1) -> None:
        """Wait until it has said something so often."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.log().count(text) < times:  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(LOOK_SECONDS)


class Links:
    """A gateway, its agents, and the lines between them."""

    def __init__(
        self, folder: Path, gateway: Program, agents: dict[str, Program], proxies: dict[str, CutProxy]
    ) -> None:
        self.folder, self.gateway, self.agents, self.proxies = folder, gateway, agents, proxies
        self.fleet: Fleet

    async def start_gateway(self) -> None:
        """Start the gateway, for the first time or again; `fleet` is what its clients see."""
        await self.gateway.start()
        self.fleet.process = self.gateway.running

    async def all_serve(self) -> dict[str, Any]:
        """Wait until every slot is offered and nothing is under way; return what is observed then."""
        return await self.fleet.until(
            lambda seen: (
                bool(seen["pools"])
                and all(p["demand"] == p["queued"] == p["inFlight"] == 0 for p in seen["pools"])
                and all(p["idle"] == p["desired"] for p in seen["pools"])
            )
        )

    async def node_is(self, node: str, *, connected: bool) -> None:
        """Wait until a node is connected, or is not."""
        await self.fleet.until(
            lambda seen: any(n["name"] == node and n["connected"] is connected for n in seen["nodes"])
        )

    async def leased_on(self, node: str) -> str:
        """Wait for a lease on a node; return its worker."""

        def leased(seen: dict[str, Any]) -> list[str]:
            return [worker["name"] for worker in seen["workers"] if worker["node"] == node and worker["lease"]]

        return leased(await self.fleet.until(lambda seen: bool(leased(seen))))[0]

    async def pids(self) -> dict[str, int]:
        """Return the process of each worker."""
        return {worker["name"]: worker["pid"] for worker in (await self.fleet.observed())["workers"]}

    def engines(self) -> list[psutil.Process]:
        """Return every emulated worker that lives, whoever started it."""
        mark = str(self.fleet.journal_path)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if "basert_fleet.sim" in (line := process.cmdline()) and mark in line:
                    found.append(process)
        return found


def gateway_program(folder: Path, port: int, ops_port: int, agents_port: int, *options: str) -> Program:
    """Return a gateway of the folder's fleet file."""
    listen = ["--listen", f"127.0.0.1:{port}", "--ops-listen", f"127.0.0.1:{ops_port}"]
    agents = ["--agents-listen", f"127.0.0.1:{agents_port}", "--wait-for-agents", "0"]
    state = ["--state-dir", str(folder / "gateway")]
    return Program(["gateway", str(folder / "fleet.yaml"), *listen, *agents, *state, *options], folder / "stderr")


def agent_program(folder: Path, node: str, port: int, *options: str, state: str = "") -> Program:
    """Return an agent that dials a port of this machine."""
    state_dir = folder / (state or node)
    arguments = ["agent", f"ws://127.0.0.1:{port}", "--node", node, "--state-dir", str(state_dir), *options]
    return Program(arguments, folder / f"{state or node}.stderr")


@asynccontextmanager
async def links(folder: Path, *pools: dict[str, Any], nodes: tuple[str, ...] = NODES) -> AsyncIterator[Links]:
    """Run a gateway and agents whose slots all serve; afterwards all have ended by themselves and left nothing."""
    write_pools(folder, *pools)
    port, ops_port, agents_port = free_ports(3)
    async with AsyncExitStack() as stack:
        proxies = {node: await stack.enter_async_context(cut_proxy(agents_port)) for node in nodes}
        agents = {node: agent_program(folder, node, proxies[node].port) for node in nodes}
        gateway = gateway_program(folder, port, ops_port, agents_port)
        running = Links(folder, gateway, agents, proxies)
        try:
            await gateway.start()
            running.fleet = Fleet(folder, gateway.running, port, ops_port)
            for agent in agents.values():
                await agent.start()
            await running.all_serve()
            yield running
            ended = {node: await agent.stop() for node, agent in agents.items()}
            assert set(ended.values()) == {0}, (ended, *(agent.log()[-2000:] for agent in agents.values()))
            assert await running.fleet.stop(), gateway.log()[-3000:]
            assert running.engines() == [], "left behind"
        finally:
            for program in (gateway, *agents.values()):
                if program.process is not None:
                    await program.kill()
            for process in running.engines():
                os.kill(process.pid, signal.SIGKILL)
