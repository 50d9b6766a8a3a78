"""Waiting, leaving and being refused, as a client sees it."""

from __future__ import annotations

import asyncio

import pytest

from basert_fleet.core.delivery import Part
from basert_fleet.gateway.auth import Key, Keys
from support.scripted_agent import ROLE, ScriptedAgent, pool, text
from support.turns import until

CHAT = "/v1/chat/completions"
ASK = {"model": "qwen", "messages": []}
STREAM = {**ASK, "stream": True}


async def until_queued(gateway, count: int) -> None:
    """Wait until so many requests are in progress."""
    await until(lambda: gateway.fleet.traffic.in_progress == count)


def demand(gateway) -> dict[str, float | None]:
    """Return what the queue's gauges say."""
    return {
        "depth": gateway.metric("queue_depth", pool="qwen", priority="normal"),
        "bytes": gateway.metric("queue_bytes", pool="qwen"),
        "demand": gateway.metric("demand", pool="qwen"),
        "leased": gateway.metric("slots", pool="qwen", state="leased"),
    }


async def test_a_full_queue_refuses_with_retry_after(start):
    """One request more than may wait gets 429 with Retry-After, and SDKs may try it again."""
    async with start(pool(queue={"maxRequests": 1})) as gateway:
        waiting = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
        await until_queued(gateway, 1)
        refused = await gateway.client.post(CHAT, json=ASK)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert "x-should-retry" not in refused.headers
        ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
        assert (await waiting).status_code == 200


async def test_waiting_too_long_is_told_by_status(gateway):
    """A request that asked for a short wait gets 503 with Retry-After, though it wanted a stream (C04)."""
    refused = await gateway.client.post(CHAT, json=STREAM, headers={"x-basert-max-wait": "0.01"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_timeout")
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert gateway.metric("requests_total", pool="qwen", outcome="queue_timeout") == 1


async def test_a_pool_without_replicas_has_no_capacity(start):
    """A pool that can have no worker refuses at once, and says that trying again is no use."""
    async with start(pool(replicas=0)) as gateway:
        refused = await gateway.client.post(CHAT, json=ASK)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_capacity")
    assert refused.headers["x-should-retry"] == "false"


async def test_a_request_waits_for_the_first_worker(gateway):
    """What was queued before any worker was there is served by the first one (C28)."""
    waiting = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await until_queued(gateway, 1)
    ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    assert (await waiting).status_code == 200


async def test_a_client_that_leaves_the_queue_frees_its_place(gateway):
    """Its place is free, the running generation goes on, and its own request never reaches a worker (C03)."""
    agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(gateway.fleet)
    running = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await agent.until(lambda: agent.leases)
    leaving = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await until_queued(gateway, 2)
    assert demand(gateway) == {"depth": 1, "bytes": 30, "demand": 2, "leased": 1}
    leaving.cancel()
    await until_queued(gateway, 1)
    assert demand(gateway) == {"depth": 0, "bytes": 0, "demand": 1, "leased": 1}
    assert agent.cancels == []
    agent.answer(agent.leases[0])
    assert (await running).status_code == 200
    assert len(agent.leases) == 1


async def test_a_client_that_leaves_cancels_its_lease(gateway):
    """The agent is told once; the slot stays taken until the agent has ended the lease (C02)."""
    agent = ScriptedAgent(lambda agent, lease: agent.begin(lease)).join(gateway.fleet)
    agent.on_cancel = lambda agent, cancel: None
    leaving = asyncio.create_task(gateway.client.post(CHAT, json=STREAM))
    await agent.until(lambda: agent.leases)
    next_one = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await until_queued(gateway, 2)
    leaving.cancel()
    await agent.until(lambda: agent.cancels)
    assert demand(gateway)["leased"] == 1
    assert len(agent.leases) == 1
    agent.script = lambda agent, lease: agent.answer(lease)
    agent.end(agent.cancels[0])
    agent.settle(agent.cancels[0])
    assert (await next_one).status_code == 200
    assert gateway.metric("requests_total", pool="qwen", outcome="cancelled") == 1
    assert demand(gateway) == {"depth": 0, "bytes": 0, "demand": 0, "leased": 0}


async def test_a_refused_lease_is_no_attempt(gateway):
    """A lease that crossed a withdrawal goes to the next offer, and is not counted."""
    agent = ScriptedAgent(ScriptedAgent.refuse).join(gateway.fleet)
    asked = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await agent.until(lambda: agent.leases)
    agent.script = ScriptedAgent.answer
    agent.offer("qwen-0")
    response = await asked
    assert response.headers["x-basert-attempts"] == "1"
    assert len(agent.leases) == 2


async def test_a_slow_client_is_cut_and_its_lease_cancelled(start):
    """A client that does not read is cut at the buffer's bound, and the slot goes to the next one."""
    async with start(buffer_bytes=100_000) as gateway:
        agent = ScriptedAgent(lambda agent, lease: agent.begin(lease)).join(gateway.fleet)
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = b'{"model":"qwen","messages":[],"stream":true}'
        writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
        await agent.until(lambda: agent.leases)
        reader._transport.pause_reading()
        while not agent.cancels:
            agent.body(agent.leases[0], text("x" * 50_000), Part.TEXT)
            await asyncio.sleep(0)
        assert gateway.metric("requests_total", pool="qwen", outcome="client_error") == 1
        agent.script = lambda agent, lease: agent.answer(lease)
        agent.settle(agent.leases[0])
        assert (await gateway.client.post(CHAT, json=ASK)).status_code == 200
        writer.close()


async def test_a_key_bounds_the_priority(start):
    """A key that may not ask for high gets 400 that names the header and what is allowed."""
    key = Key(name="ci", sha256="a" * 64, tenant="build", priorities=("normal", "low"))
    open_keys = Keys()
    open_keys.find = lambda authorization: key
    async with start(keys=open_keys) as gateway:
        refused = await gateway.client.post(CHAT, json=ASK, headers={"x-basert-priority": "high"})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "x-basert-priority"
        assert "normal, low" in refused.json()["error"]["message"]
        waiting = asyncio.create_task(gateway.client.post(CHAT, json=ASK, headers={"x-basert-priority": "low"}))
        await until_queued(gateway, 1)
        assert gateway.metric("queue_depth", pool="qwen", priority="low") == 1
        waiting.cancel()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-basert-priority", "urgent"),
        ("x-basert-verify", "maybe"),
        ("x-basert-max-wait", "nan"),
        ("x-basert-max-wait", "-1"),
    ],
)
async def test_a_header_that_means_nothing_is_refused(gateway, name, value):
    """A value that this API does not define is an error, never ignored."""
    refused = await gateway.client.post(CHAT, json=ASK, headers={name: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_request", name)


async def test_a_removed_pool_lets_running_requests_finish(gateway):
    """New requests do not find the model, waiting ones are refused, and the running one gets its answer."""
    agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(gateway.fleet)
    running = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await agent.until(lambda: agent.leases)
    waiting = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await until_queued(gateway, 2)
    gateway.fleet.apply([])
    assert (await waiting).json()["error"]["code"] == "no_capacity"
    gone = await gateway.client.post(CHAT, json=ASK)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "model_not_found")
    agent.answer(agent.leases[0])
    assert (await running).status_code == 200
    assert gateway.fleet.observed()["pools"] == []


async def test_a_draining_gateway_finishes_what_it_has(gateway):
    """Draining refuses new requests, waits for the running one, and is not ready meanwhile."""
    agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(gateway.fleet)
    running = asyncio.create_task(gateway.client.post(CHAT, json=ASK))
    await agent.until(lambda: agent.leases)
    draining = asyncio.create_task(gateway.fleet.drain(limit_seconds=30))
    await until(lambda: not gateway.fleet.ready())
    refused = await gateway.client.post(CHAT, json=ASK)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert not draining.done()
    agent.answer(agent.leases[0])
    assert await draining
    assert (await running).status_code == 200


async def test_a_drain_past_its_limit_tells_the_clients(gateway):
    """What is still running at the limit ends in an error event, and its lease is cancelled."""
    agent = ScriptedAgent(lambda agent, lease: (agent.begin(lease), agent.body(lease, text("a"), Part.TEXT)))
    agent.join(gateway.fleet)
    async with gateway.client.stream("POST", CHAT, json=STREAM) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == ROLE + text("a")
        assert not await gateway.fleet.drain(limit_seconds=0)
        rest = b"".join([piece async for piece in pieces])
    assert b'"draining"' in rest
    await agent.until(lambda: agent.cancels)


async def test_a_wait_of_zero_takes_an_idle_slot_or_nothing(gateway):
    """x-basert-max-wait: 0 means now or never: served by an idle slot, refused when there is none."""
    headers = {"x-basert-max-wait": "0"}
    assert (await gateway.client.post(CHAT, json=ASK, headers=headers)).status_code == 503
    ScriptedAgent(lambda agent, lease: agent.answer(lease)).join(gateway.fleet)
    await until(lambda: gateway.fleet.observed()["pools"][0]["idle"])
    assert (await gateway.client.post(CHAT, json=ASK, headers=headers)).status_code == 200
