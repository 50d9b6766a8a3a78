"""An agent and its gateways: links that come and go, what it brings to a new one, and what it runs without any."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

from basert_fleet.agent.agent import Agent
from basert_fleet.agent.state import StateDirectory
from basert_fleet.core.delivery import Outcome
from basert_fleet.telemetry.logs import make_logger
from basert_fleet.wire.messages import Desired, Hello, Rejected
from support.desk import NODE, Desk, desk, pool_document, stopped
from support.turns import settled


def hello(front: Desk) -> Hello:
    """Return the agent's last introduction."""
    return [message for message in front.received if isinstance(message, Hello)][-1]


def brought(front: Desk) -> list[str]:
    """Return the names of the workers that it brought."""
    return [json.loads(document)["metadata"]["name"] for document in hello(front).workers]


async def test_a_new_gateway_counts_its_revisions_anew(tmp_path: Path) -> None:
    """What it wants holds, though the gateway before had come further; within one link an older one is ignored."""
    async with desk(tmp_path) as front:
        (worker,) = front.want_pool(pool_document())
        await front.phase("READY")
        front.forget_revision()
        front.want(stopped(worker))
        await settled()
        assert front.statuses["qwen-0"].phase == "READY"
        front.cut()
        await settled()
        front.dial()
        front.forget_revision()
        front.want(stopped(worker))
        await front.phase("STOPPED")


async def test_an_agent_brings_what_it_was_told(tmp_path: Path) -> None:
    """A new gateway hears of each worker with its whole document, but not of those that were to stop and have."""
    async with desk(tmp_path) as front:
        await settled()
        assert hello(front).workers == ()
        workers = front.want_pool(pool_document(replicas=2))
        front.want(workers[0], stopped(workers[1]))
        await front.phase("READY", "qwen-0")
        await front.phase("STOPPED", "qwen-1")
        front.cut()
        await settled()
        front.dial()
        await front.offer()
        assert brought(front) == ["qwen-0"]
        assert hello(front).workers == (workers[0].model_dump_json(by_alias=True).encode(),)


async def test_an_agent_runs_what_it_was_told_last_without_a_gateway(tmp_path: Path) -> None:
    """Promise 5: its workers come up before any link; the first gateway gets their offers, and may ask at once."""
    kept: list[tuple[bytes, ...]] = []
    log = make_logger(io.BytesIO())
    first = Agent(NODE, StateDirectory(tmp_path), version="test", log=log, keep=kept.append)
    front = Desk(first)
    front.dial()
    front.want_pool(pool_document())
    await front.phase("READY")
    await first.close()

    ready = asyncio.Event()
    second = Agent(NODE, StateDirectory(tmp_path), version="test", log=log)
    second.on_status.append(lambda status: ready.set() if status.phase == "READY" else None)
    second.restore(kept[-1])
    try:
        await ready.wait()
        later = Desk(second)
        later.dial()
        end, _ = await later.ask("without-a-wait")
        assert end.outcome is Outcome.RELEASED
    finally:
        await second.close()


async def test_what_is_kept_is_the_newest_state(tmp_path: Path) -> None:
    """Each newer desired state is kept once; an older one is neither taken nor kept."""
    kept: list[tuple[bytes, ...]] = []
    agent = Agent(NODE, StateDirectory(tmp_path), version="test", log=make_logger(io.BytesIO()), keep=kept.append)
    try:
        agent.message_received(Desired(2, ()))
        agent.message_received(Desired(1, ()))
        assert kept == [()]
    finally:
        await agent.close()


async def test_a_document_of_another_release_keeps_no_other_from_starting(tmp_path: Path) -> None:
    """It is logged and left alone."""
    async with desk(tmp_path) as front:
        front.send(Desired(1, (b'{"kind": "BasertWorker", "spec": {"new": 1}}',)))
        front.forget_revision()
        await settled()
        front.want()
        front.want_pool(pool_document())
        await front.phase("READY")


async def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    """An agent that is not taken keeps its workers and their processes."""
    async with desk(tmp_path) as front:
        front.want_pool(pool_document())
        before = await front.phase("READY")
        front.send(Rejected("another agent is connected"))
        front.cut()
        await settled()
        front.dial()
        await front.offer()
        assert front.statuses["qwen-0"].pid == before.pid


async def test_a_worker_that_is_wanted_while_the_agent_drains_does_not_start(tmp_path: Path) -> None:
    """News that cross the drain are kept for the next start; nothing is started to be killed at once."""
    agent = Agent(NODE, StateDirectory(tmp_path), version="test", log=make_logger(io.BytesIO()))
    front = Desk(agent)
    front.dial()
    try:
        assert await agent.drain(10)
        front.want_pool(pool_document())
        await front.until(lambda: "qwen-0" in front.statuses)
        assert await agent.drain(10)
        assert (front.statuses["qwen-0"].phase, front.statuses["qwen-0"].generation) == ("STOPPED", 0)
    finally:
        await agent.close()


async def test_a_refusal_is_logged_once_while_it_lasts(tmp_path: Path) -> None:
    """An agent dials again and again; after it was taken, the same refusal is news."""
    log = io.BytesIO()
    agent = Agent(NODE, StateDirectory(tmp_path), version="test", log=make_logger(log))
    try:
        for _ in range(3):
            agent.message_received(Rejected("another agent is connected"))
        assert log.getvalue().count(b"agent refused") == 1
        agent.message_received(Desired(1, ()))
        agent.message_received(Rejected("another agent is connected"))
        assert log.getvalue().count(b"agent refused") == 2
    finally:
        await agent.close()
