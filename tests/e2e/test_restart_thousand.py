"""A gateway that is killed has a thousand slots back in the time that is promised, with not one process restarted."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from basert_fleet.cli.gateway import ARRIVAL_SECONDS
from support.fleet import Fleet, free_ports, pool, write_pools
from support.lent_engines import COMMAND, lent_engines
from support.links import agent_program, gateway_program

SLOTS = 1_000
PROMISED_SECONDS = 10.0
DESCRIPTORS = 8_192
"""Chosen: an agent needs four for each worker, and what serves them all five."""

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="a worker lends its listening socket by Linux's rules"),
    pytest.mark.skipif(
        resource.getrlimit(resource.RLIMIT_NOFILE)[1] < DESCRIPTORS, reason=f"needs {DESCRIPTORS} descriptors"
    ),
]


def all_idle(seen: dict[str, Any]) -> bool:
    """Say whether every slot is offered."""
    return [one["idle"] for one in seen["pools"]] == [SLOTS]


def processes(seen: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the process of each worker."""
    return [(worker["name"], worker["pid"]) for worker in seen["workers"]]


@pytest.mark.timeout(180)  # a backstop; some 50 s on two cores
async def test_a_thousand_slots_are_back_within_ten_seconds_of_a_gateways_start(tmp_path: Path) -> None:
    """Killed with SIGKILL and started with all defaults on the same state; its agent's processes are the same ones."""
    loop = asyncio.get_running_loop()
    port, ops_port, agents_port = free_ports(3)
    gateway = gateway_program(tmp_path, port, ops_port, agents_port)
    agent = agent_program(tmp_path, "mac-1", agents_port)
    async with lent_engines(tmp_path) as lent:
        write_pools(tmp_path, pool(replicas=SLOTS, server={"command": COMMAND, "args": ["--lend-to", str(lent)]}))
        try:
            began = loop.time()
            await gateway.start()
            fleet = Fleet(tmp_path, gateway.running, port, ops_port)
            await agent.start()
            await agent.says("is ready", times=SLOTS)  # to ask the gateway all the time would take a core from it
            before = await fleet.until(all_idle)
            ready = loop.time() - began
            await gateway.kill()
            gateway.arguments += ["--wait-for-agents", f"{ARRIVAL_SECONDS:g}"]
            started = loop.time()
            await gateway.start()
            fleet.process = gateway.running
            after = await fleet.until(all_idle)
            took = loop.time() - started
            print(f"{SLOTS} slots: ready after {ready:.1f} s, back after {took:.1f} s")  # noqa: T201 - the figures
            assert took <= PROMISED_SECONDS
            assert processes(after) == processes(before)
            assert fleet.overlaps() == []
            assert await agent.stop() == 0, agent.log()[-2000:]
            assert await fleet.stop(), gateway.log()[-2000:]
        finally:
            for program in (gateway, agent):
                if program.process is not None:
                    await program.kill()
