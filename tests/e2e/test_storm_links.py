"""Impatient users on a fleet across machines, while everything in it is killed, halted, cut or started again."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

import httpx
import psutil
import pytest

from support.links import NODES, Links, links, shared_pool
from support.users import REQUEST_SECONDS, Got, Kind, Reply, ask, forget_cut_connections, tally, wrong

REQUESTS, CLIENTS, HANG_UP_SHARE = 5_000, 64, 0.2
REQUESTS_PER_BLOW = 200
"""Chosen: some twenty blows in all, each while the one before may not be over."""
CUT_SECONDS = 5.0
KNOWN_ERRORS = {"response_contaminated", "worker_lost", "queue_full", "queue_timeout", "request_timeout"}
GATEWAY_AWAY = "the gateway was away"


@dataclass
class Storm:
    """The users, and what hits the fleet meanwhile."""

    running: Links
    draw: random.Random
    replies: list[Reply] = field(default_factory=list)
    blows: Counter[str] = field(default_factory=Counter)
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the gateway was away, by the loop's clock."""
    gateway_is_here: asyncio.Event = field(default_factory=asyncio.Event)

    async def rage(self) -> None:
        """Send all requests, with a blow after each so many replies and one restart of the gateway half-way."""
        work = [(list(Kind)[number % len(Kind)], f"storm-{number}") for number in range(REQUESTS)]
        blows = cycle((self.kill_worker, self.halt_worker, self.kill_agent, self.cut_line))
        under_way: list[asyncio.Task[None]] = []

        async def user() -> None:
            async with httpx.AsyncClient(base_url=self.running.fleet.url, timeout=REQUEST_SECONDS) as client:
                while work:
                    await self.request(client, *work.pop())
                    done = len(self.replies)
                    if done == REQUESTS // 2:
                        under_way.append(self.strike(self.restart_gateway))
                    elif done % REQUESTS_PER_BLOW == 0:
                        under_way.append(self.strike(next(blows)))

        async with asyncio.TaskGroup() as users:
            for number in range(CLIENTS):
                users.create_task(user(), name=f"user {number}")
        await asyncio.gather(*under_way)
        forget_cut_connections()

    def strike(self, blow: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Begin a blow."""
        self.blows[blow.__name__] += 1
        return asyncio.ensure_future(blow())

    async def request(self, client: httpx.AsyncClient, kind: Kind, key: str) -> None:
        """Send one request; one that a dead gateway did not answer failed as clearly as can be."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = self.draw.uniform(0.0, 0.4) if self.draw.random() < HANG_UP_SHARE else None
        try:
            reply = await ask(client, kind, key, hang_up_after=patience)
        except httpx.TransportError as error:
            reply = Reply(kind, key, Got.WRONG, f"cut off: {error!r}")
        if reply.detail.startswith("cut off") and self.was_away(began, loop.time()):
            reply = replace(reply, got=Got.ERROR, detail=GATEWAY_AWAY)
            await self.gateway_is_here.wait()  # a user who asks again at once would only be refused again
        self.replies.append(reply)

    def was_away(self, began: float, ended: float) -> bool:
        """Say whether the gateway was away at some moment of a span."""
        return any(start <= ended and began <= end for start, end in self.outages)

    # --- Blows

    async def kill_worker(self) -> None:
        """SIGKILL one engine process."""
        self.signal_worker(signal.SIGKILL)

    async def halt_worker(self) -> None:
        """SIGSTOP one engine process; nobody lets it go on."""
        self.signal_worker(signal.SIGSTOP)

    def signal_worker(self, number: signal.Signals) -> None:
        """Signal one engine process that lives."""
        with suppress(psutil.NoSuchProcess, IndexError):
            self.draw.choice(self.running.engines()).send_signal(number)

    async def kill_agent(self) -> None:
        """SIGKILL an agent, and start it again."""
        agent = self.running.agents[self.draw.choice(NODES)]
        await agent.kill()
        await agent.start()

    async def cut_line(self) -> None:
        """Cut an agent's connection, and keep it from a new one for some seconds."""
        proxy = self.running.proxies[self.draw.choice(NODES)]
        proxy.cut()
        restored = asyncio.Event()
        asyncio.get_running_loop().call_later(CUT_SECONDS, restored.set)
        await restored.wait()
        proxy.forward()

    async def restart_gateway(self) -> None:
        """SIGKILL the gateway, and start it again."""
        loop = asyncio.get_running_loop()
        self.outages.append((loop.time(), float("inf")))
        self.gateway_is_here.clear()
        await self.running.gateway.kill()
        await self.running.start_gateway()
        await self.running.fleet.until(lambda seen: True)
        self.outages[-1] = (self.outages[-1][0], loop.time())
        self.gateway_is_here.set()


@pytest.mark.timeout(420)  # a backstop; some two minutes on two cores
async def test_five_thousand_requests_while_everything_breaks(tmp_path: Path) -> None:
    """No wrong answer, no overlap in any engine, clear errors only, every slot back, and nothing left behind."""
    async with links(tmp_path, shared_pool("--sim-bug", "on")) as running:
        storm = Storm(running, random.Random(1))
        storm.gateway_is_here.set()
        await storm.rage()
        await running.all_serve()
        assert wrong(storm.replies) == []
        assert running.fleet.overlaps() == []
        errors = Counter(reply.detail for reply in storm.replies if reply.got is Got.ERROR)
        assert all(detail == GATEWAY_AWAY or any(code in detail for code in KNOWN_ERRORS) for detail in errors), errors
        assert len(storm.replies) == REQUESTS
        assert set(storm.blows) == {"kill_worker", "halt_worker", "kill_agent", "cut_line", "restart_gateway"}
        assert tally(storm.replies)[Got.RIGHT] >= 0.7 * REQUESTS, (tally(storm.replies), errors)
        for name in ("basert_fleet_demand", "basert_fleet_queue_depth", "basert_fleet_lease_violations_total"):
            assert await running.fleet.total(name) == 0, name
        assert await running.fleet.total("basert_fleet_slots", state="leased") == 0
        assert await running.fleet.total("basert_fleet_node_connected") == len(NODES)
