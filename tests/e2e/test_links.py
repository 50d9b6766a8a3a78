"""A gateway and two agents as programs of their own: what is cut, killed and started again, and nobody notices."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from basert_fleet.sim.answer import expected_echo
from support.fleet import MODEL
from support.links import Links, agent_program, links, shared_pool
from support.users import REQUEST_SECONDS, Got, Kind, ask, storm, tally

CUT_SECONDS = 5.0
RECONNECT_SECONDS = 10.0


def chat(content: str, **more: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4000, **more}


def client_of(running: Links) -> httpx.AsyncClient:
    """Return a client of the fleet."""
    return httpx.AsyncClient(base_url=running.fleet.url, timeout=REQUEST_SECONDS)


async def no_gauge_is_left(running: Links) -> None:
    """Assert that a scrape shows nothing queued, leased or violated."""
    await running.all_serve()
    for name in ("basert_fleet_demand", "basert_fleet_queue_depth", "basert_fleet_lease_violations_total"):
        assert await running.fleet.total(name) == 0, name
    assert await running.fleet.total("basert_fleet_slots", state="leased") == 0
    assert running.fleet.overlaps() == []


async def test_the_reports_requests_are_right_over_websockets(tmp_path: Path) -> None:
    """60 of 60 one after another and 64 of 64 at once, by two agents with four workers each."""
    async with links(tmp_path, shared_pool("--sim-bug", "on")) as running:
        nodes = [worker["node"] for worker in (await running.fleet.observed())["workers"]]
        assert sorted(nodes) == ["mac-1"] * 4 + ["mac-2"] * 4
        one_by_one = await storm(running.fleet.url, requests=60, clients=1, seed=1, kinds=(Kind.TOOL,))
        at_once = await storm(running.fleet.url, requests=64, clients=64, seed=2, kinds=(Kind.TOOL,))
        assert tally(one_by_one + at_once) == {Got.RIGHT: 124}
        await no_gauge_is_left(running)


async def test_a_stream_outlives_its_connection(tmp_path: Path) -> None:
    """The lines of both agents are cut for 5 s in mid-stream; the stream arrives whole, from one attempt."""
    async with (
        links(tmp_path, shared_pool("--sim-tokens-per-second", "100", replicas=2)) as running,
        client_of(running) as client,
    ):
        content = "[[len=900]] a long story"
        async with client.stream("POST", "/v1/chat/completions", json=chat(content, stream=True)) as answer:
            lines = answer.aiter_lines()
            received = [await anext(lines) for _ in range(20)]
            for proxy in running.proxies.values():
                proxy.cut()
            await running.node_is("mac-1", connected=False)
            await running.node_is("mac-2", connected=False)
            for proxy in running.proxies.values():
                asyncio.get_running_loop().call_later(CUT_SECONDS, proxy.forward)
            received += [line async for line in lines]
        events = [line.removeprefix("data: ") for line in received if line and not line.startswith(":")]
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
        text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
        assert text.startswith(expected_echo(content))
        assert sum(bool(chunk["delta"].get("content")) for chunk in chunks) == 900
        assert answer.headers["x-basert-attempts"] == "1"
        await running.node_is("mac-1", connected=True)
        await no_gauge_is_left(running)


async def test_an_agent_that_is_killed_costs_its_requests_one_attempt(tmp_path: Path) -> None:
    """In mid-lease: its request runs elsewhere, and once the agent is started again all slots serve."""
    async with (
        links(tmp_path, shared_pool("--sim-tokens-per-second", "200")) as running,
        client_of(running) as client,
    ):
        asked = [
            asyncio.ensure_future(client.post("/v1/chat/completions", json=chat(f"[[len=600]] story {number}")))
            for number in range(8)
        ]
        await running.leased_on("mac-1")
        await running.agents["mac-1"].kill()
        await running.agents["mac-1"].start()
        answers = [await one for one in asked]
        assert [answer.status_code for answer in answers] == [200] * 8
        for number, answer in enumerate(answers):
            said = answer.json()["choices"][0]["message"]["content"]
            assert said.startswith(expected_echo(f"[[len=600]] story {number}"))
        assert {answer.headers["x-basert-attempts"] for answer in answers} == {"1", "2"}
        await no_gauge_is_left(running)


async def test_a_gateway_that_is_killed_finds_its_fleet_again(tmp_path: Path) -> None:
    """Its agents are back within 10 s of its start, no engine process was restarted, and all gauges are 0."""
    loop = asyncio.get_running_loop()
    async with links(tmp_path, shared_pool()) as running, client_of(running) as client:
        assert (await ask(client, Kind.TOOL, "before")).got is Got.RIGHT
        before = await running.pids()
        await running.gateway.kill()
        await running.start_gateway()
        started = loop.time()
        await running.all_serve()
        assert loop.time() - started < RECONNECT_SECONDS
        assert await running.pids() == before
        assert (await ask(client, Kind.TOOL, "after")).got is Got.RIGHT
        await no_gauge_is_left(running)


async def test_a_gateway_that_lost_its_plan_takes_the_workers_over(tmp_path: Path) -> None:
    """What agents say of their workers is enough: each stays where it is, and none is restarted."""
    async with links(tmp_path, shared_pool(replicas=4)) as running:
        before = (await running.fleet.observed())["workers"]
        await running.gateway.kill()
        (tmp_path / "gateway" / "plan.json").unlink()
        await running.start_gateway()
        await running.all_serve()
        after = (await running.fleet.observed())["workers"]
        assert [(w["name"], w["node"], w["pid"]) for w in after] == [(w["name"], w["node"], w["pid"]) for w in before]


async def test_an_agent_runs_its_workers_without_any_gateway(tmp_path: Path) -> None:
    """Promise 5: restarted while the gateway is away, it brings up what it was told last."""
    async with links(tmp_path, shared_pool(replicas=2)) as running:
        await running.gateway.kill()
        agent = running.agents["mac-1"]
        assert await agent.stop() == 0
        await agent.start()
        await agent.says("is ready", times=2)
        await running.start_gateway()
        await running.all_serve()


async def test_c25_a_second_agent_of_one_name_waits_for_the_first(tmp_path: Path) -> None:
    """C25: it is refused, and told why at both ends; once the first has ended it takes the name and the workers."""
    async with links(tmp_path, shared_pool(replicas=2)) as running:
        first = running.agents["mac-1"]
        clone = agent_program(tmp_path, "mac-1", running.proxies["mac-1"].port, state="clone")
        running.agents["clone"] = clone
        await clone.start()
        await clone.says("does not take this agent: another agent is connected as mac-1")
        await running.gateway.says("node mac-1 is there twice; the second one was refused")
        await running.all_serve()
        assert await first.stop() == 0
        await clone.says("is ready")
        await running.all_serve()


async def test_c40_a_half_open_connection_is_found_by_both_ends(tmp_path: Path) -> None:
    """C40: no error and no end comes; pings tell, the agent dials again, and nothing was lost."""
    async with links(tmp_path, shared_pool(replicas=2)) as running, client_of(running) as client:
        before = await running.pids()
        running.proxies["mac-1"].swallow()
        running.proxies["mac-2"].swallow()
        answer = asyncio.ensure_future(ask(client, Kind.TOOL, "into-the-void"))
        await running.gateway.says("is back, and nothing was lost", times=2)
        for agent in running.agents.values():
            await agent.says("the connection is back, and nothing was lost")
        assert (await answer).got is Got.RIGHT
        assert await running.pids() == before
        await no_gauge_is_left(running)


async def test_workers_follow_the_fleet_file_across_the_link(tmp_path: Path) -> None:
    """Fewer replicas stop workers on their node, and more bring them back."""
    async with links(tmp_path, shared_pool(replicas=2)) as running:
        file = running.fleet.file
        whole = file.read_text()
        file.write_text(whole.replace("replicas: 2", "replicas: 1"))
        await running.fleet.until(lambda seen: len(seen["workers"]) == 1)
        file.write_text(whole)
        await running.fleet.until(lambda seen: len(seen["workers"]) == 2)
        await running.all_serve()
