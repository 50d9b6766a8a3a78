"""After any storm nothing is left behind (C31), and no slot ever had two leases (C36)."""

from __future__ import annotations

import asyncio
import io
import random

import pytest

from basert_fleet.core.delivery import Outcome, Part
from basert_fleet.core.dispatch import Priority
from basert_fleet.core.verdict import Reason, Verdict
from basert_fleet.gateway.ask import Ask, Terms
from basert_fleet.gateway.cors import RESPONSE
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.gateway.writer import write_response
from basert_fleet.telemetry.logs import FleetLog
from support.scripted_agent import DRIFTED, SUSPECT, ScriptedAgent, pool, text
from support.virtual_loop import run_virtual

REQUESTS = 500
STALE = text("somebody else's")
WORKERS = tuple(f"qwen-{index}" for index in range(4))


class Misbehaving:
    """Answers leases late, badly, twice, or not at all, but never ends one without a new offer after it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.held: dict[str, object] = {}
        self.before: dict[str, object] = {}
        self.violations = 0

    def lease(self, agent: ScriptedAgent, lease) -> None:
        """Take a lease; a second one on the same slot is what must never happen."""
        self.violations += lease.worker in self.held
        self.held[lease.worker] = lease
        if lease.worker in self.before and self.chance.random() < 0.5:
            agent.body(self.before[lease.worker], STALE, Part.TEXT)
            agent.end(self.before[lease.worker])
        self.before[lease.worker] = lease
        if self.chance.random() < 0.1:
            self.done(lambda: agent.refuse(lease), agent, lease)
        elif self.chance.random() > 0.05:  # else it is never accepted
            agent.accept(lease)
            self.later(self.respond, agent, lease)
        else:
            self.later(self.forget, agent, lease)

    def respond(self, agent: ScriptedAgent, lease) -> None:
        """Send something of a response, then end it in some way."""
        if self.held.get(lease.worker) is not lease:
            return  # cancelled meanwhile
        agent.head(lease, self.chance.choice([200, 200, 200, 400, 500]))
        for _ in range(self.chance.randrange(4)):
            agent.body(lease, text("x"), self.chance.choice([Part.OPENING, Part.TEXT, Part.TOOL_CALL]))
        if self.chance.random() < 0.3:
            agent.body(lease, b'{"whole":1}', Part.WHOLE)
        outcome = self.chance.choice([outcome for outcome in Outcome if outcome is not Outcome.CANCELLED])
        verdict = self.chance.choice([DRIFTED, SUSPECT, Verdict.because(Reason.SLOTS_UNREACHABLE)])
        self.done(lambda: agent.end(lease, outcome, verdict), agent, lease)

    def cancel(self, agent: ScriptedAgent, cancel) -> None:
        """Settle a cancelled lease, if it is still held."""
        lease = self.held.get(cancel.worker)
        if lease is not None and lease.epoch == cancel.epoch:
            self.done(lambda: agent.end(cancel, Outcome.CANCELLED), agent, cancel)

    def forget(self, agent: ScriptedAgent, lease) -> None:
        """Offer anew after a lease that was never accepted."""
        if self.held.get(lease.worker) is lease:
            self.done(lambda: None, agent, lease)

    def done(self, last_word, agent: ScriptedAgent, lease) -> None:
        """Free the slot, say the last word, and offer it some time later."""
        del self.held[lease.worker]
        last_word()
        new_process = self.chance.random() < 0.3
        self.later(lambda agent, lease: agent.settle(lease, new_process=new_process), agent, lease)

    def later(self, call, agent: ScriptedAgent, lease) -> None:
        """Do something within the next seconds."""
        asyncio.get_running_loop().call_later(self.chance.uniform(0, 5), call, agent, lease)


async def one_client(fleet: Fleet, number: int, chance: random.Random) -> int:
    """Make one request, leave early perhaps, and return how many heads were sent."""
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.call_later(chance.uniform(0, 300), arrived.set)
    await arrived.wait()
    terms = Terms(
        tenant=chance.choice("abc"), weight=1.0, priority=chance.choice(list(Priority)), verify=None,
        max_wait_seconds=chance.choice([None, 1.0, 30.0]),
    )  # fmt: skip
    ask = Ask(
        request_id=f"r-{number}", path="/v1/chat/completions", content_type="application/json",
        body=b"{%d}" % number, model="qwen", streams=chance.random() < 0.7, terms=terms,
    )  # fmt: skip
    heads = 0

    async def send(message: dict) -> None:
        nonlocal heads
        assert STALE not in message.get("body", b"")
        heads += message["type"] == "http.response.start"

    exchange = fleet.submit(ask, lambda: None)
    if chance.random() < 0.4:
        loop.call_later(chance.uniform(0, 20), fleet.traffic.client_gone, exchange)
    await write_response(exchange, send, RESPONSE, fleet.traffic.first_byte)
    return heads


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_after_a_storm(seed) -> None:
    """Whatever agents and clients do, each request is answered at most once, and every gauge is 0 at the end."""

    async def main() -> None:
        chance = random.Random(seed)
        storm = Misbehaving(chance)
        fleet = Fleet(FleetLog(io.BytesIO()))
        fleet.apply([pool(replicas=4, queue={"maxRequests": 50})])
        agent = ScriptedAgent(storm.lease, workers=WORKERS)
        agent.on_cancel = storm.cancel
        agent.join(fleet)
        heads = await asyncio.gather(*(one_client(fleet, number, chance) for number in range(REQUESTS)))
        assert set(heads) <= {0, 1}
        quiet = asyncio.Event()
        asyncio.get_running_loop().call_later(30, quiet.set)
        await quiet.wait()
        assert storm.violations == 0
        sample = fleet.metrics.registry.get_sample_value
        for gauge in ("queue_bytes", "demand"):
            assert sample(f"basert_fleet_{gauge}", {"pool": "qwen"}) == 0
        for priority in ("high", "normal", "low"):
            assert sample("basert_fleet_queue_depth", {"pool": "qwen", "priority": priority}) == 0
        slots = {state: sample("basert_fleet_slots", {"pool": "qwen", "state": state}) for state in ("idle", "leased")}
        assert slots == {"idle": len(WORKERS), "leased": 0}
        assert fleet.traffic.in_progress == 0
        assert fleet.traffic.leases == {}
        counted = [s.value for f in fleet.metrics.requests.collect() for s in f.samples if s.name.endswith("_total")]
        assert sum(counted) == REQUESTS

    run_virtual(main())
