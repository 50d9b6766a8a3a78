"""Agents that come, report and go: what they are told, and what is seen of them."""

from __future__ import annotations

import asyncio
import io
import json

from basert_fleet.core.dispatch import Priority
from basert_fleet.gateway.ask import Ask, Terms
from basert_fleet.gateway.fleet import Fleet
from basert_fleet.telemetry.logs import FleetLog
from basert_fleet.wire.memory import connect
from support.scripted_agent import ScriptedAgent, pool
from support.turns import settled
from support.virtual_loop import run_virtual


def fleet_of(*pools, **options) -> Fleet:
    """Return a fleet that logs to nowhere."""
    fleet = Fleet(FleetLog(io.BytesIO()), **options)
    fleet.apply(pools)
    return fleet


def documents(agent: ScriptedAgent) -> list[tuple[str, str]]:
    """Return name and state of each worker that the agent was last told of."""
    workers = [json.loads(document) for document in agent.desired[-1].workers]
    return [(worker["metadata"]["name"], worker["spec"]["state"]) for worker in workers]


def ask(request_id: str) -> Ask:
    """Return a request for the pool `qwen`."""
    terms = Terms(tenant="t", weight=1.0, priority=Priority.NORMAL, verify=None, max_wait_seconds=None)
    return Ask(
        request_id=request_id, path="/v1/chat/completions", content_type="application/json", body=b"{}", model="qwen",
        streams=False, terms=terms,
    )  # fmt: skip


async def test_an_agent_is_told_what_its_workers_should_be():
    """A node that dials in gets its workers; news come with a higher revision, and only when there are any."""
    fleet = fleet_of(pool(replicas=2))
    agent = ScriptedAgent().join(fleet, offer=False)
    await settled()
    assert documents(agent) == [("qwen-0", "Running"), ("qwen-1", "Running")]
    fleet.apply([pool(replicas=2)])
    await settled()
    assert len(agent.desired) == 1
    fleet.apply([pool(replicas=1)])
    await settled()
    assert documents(agent) == [("qwen-0", "Running"), ("qwen-1", "Stopped")]
    assert agent.desired[1].revision > agent.desired[0].revision


async def test_a_stopped_worker_leaves_the_desired_set():
    """Only once its agent says that it has stopped; until then it is wanted stopped."""
    fleet = fleet_of(pool(replicas=1))
    agent = ScriptedAgent().join(fleet, offer=False)
    await settled()
    fleet.apply([])
    await settled()
    assert documents(agent) == [("qwen-0", "Stopped")]
    agent.report("qwen-0", "STOPPED")
    await settled()
    assert documents(agent) == []


async def test_a_node_that_is_away_keeps_its_workers():
    """Absence is never an instruction: its workers stay desired there, and it is told again when it is back."""
    fleet = fleet_of(pool(replicas=1))
    agent = ScriptedAgent().join(fleet)
    await settled()
    agent.link.close()
    ScriptedAgent(workers=(), node="mac-2", incarnation="bbbb").join(fleet)
    await settled()
    (worker,) = fleet.observed()["workers"]
    assert (worker["node"], worker["phase"], worker["lease"]) == ("mac-1", None, None)
    again = ScriptedAgent().join(fleet)
    await settled()
    assert documents(again) == [("qwen-0", "Running")]


async def test_a_second_session_of_a_node_is_refused():
    """A cloned Mac waits until the first session is dead; the first one serves on."""
    fleet = fleet_of(pool())
    first = ScriptedAgent().join(fleet)
    clone = ScriptedAgent(incarnation="bbbb").join(fleet)
    await settled()
    assert clone.lost
    assert not first.lost
    first.link.close()
    await settled()
    late = ScriptedAgent(incarnation="cccc").join(fleet)
    await settled()
    assert not late.lost
    assert fleet.observed()["pools"][0]["idle"] == 1


async def test_nothing_is_read_before_hello():
    """A link that does not begin with Hello is closed."""
    fleet = fleet_of(pool())
    rude = ScriptedAgent()
    session = fleet.new_session()
    rude.link, to_rude = connect(rude, session)
    session.bind(to_rude)
    rude.offer("qwen-0")
    await settled()
    assert rude.lost
    assert fleet.observed()["pools"][0]["idle"] == 0


async def test_an_offer_of_another_incarnation_is_a_violation():
    """Two nodes that offer one leased worker: the second one's offer is refused, and counted at its node."""
    fleet = fleet_of(pool())
    agent = ScriptedAgent(lambda agent, lease: agent.accept(lease)).join(fleet)
    fleet.submit(ask("r-1"), lambda: None)
    await agent.until(lambda: agent.leases)
    clone = ScriptedAgent(node="mac-2", incarnation="bbbb").join(fleet)
    fleet.submit(ask("r-2"), lambda: None)
    await settled()
    assert clone.leases == []
    assert fleet.traffic.leases == {"qwen-0": agent.leases[0].epoch}
    violations = {
        node: fleet.metrics.registry.get_sample_value(
            "basert_fleet_lease_violations_total", {"pool": "qwen", "node": node}
        )
        for node in ("mac-1", "mac-2")
    }
    assert violations == {"mac-1": 0, "mac-2": 1}


async def test_phase_changes_are_told():
    """A subscriber hears of each change of a worker's phase once."""
    fleet = fleet_of(pool())
    heard = []
    fleet.on_phase.append(lambda status: heard.append((status.worker, status.phase)))
    agent = ScriptedAgent().join(fleet)
    agent.report("qwen-0", "READY", message="again")
    agent.report("qwen-0", "STOPPING")
    await settled()
    assert heard == [("qwen-0", "READY"), ("qwen-0", "STOPPING")]


async def test_the_observed_page_tells_pools_workers_and_nodes():
    """Also what cannot be placed, in a scheduler's words."""
    fleet = fleet_of(pool(replicas=2, resources={"memory": "24Gi"}), pool("none", replicas=0))
    agent = ScriptedAgent()
    agent.join(fleet)
    agent.report("qwen-0", "READY", calibrated=True, pid=42, message="serving")
    await settled()
    page = json.loads(json.dumps(fleet.observed()))
    qwen, none = page["pools"]
    assert (qwen["desired"], qwen["ready"], qwen["idle"], qwen["inFlight"], qwen["demand"]) == (2, 1, 1, 0, 0)
    assert [condition["type"] for condition in qwen["conditions"]] == ["MemoryChecked"]
    assert (none["desired"], none["conditions"]) == (0, [])
    worker = page["workers"][0]
    assert (worker["phase"], worker["calibrated"], worker["pid"]) == ("READY", True, 42)
    assert page["nodes"] == [{"name": "mac-1", "connected": True, "version": "0", "memoryBytes": None}]


def test_agents_counts_become_counters_by_difference():
    """A reconnected agent goes on where it was; a new incarnation starts from 0; nothing is counted twice."""

    async def main() -> None:
        fleet = fleet_of(pool())
        sample = fleet.metrics.registry.get_sample_value

        def counts() -> tuple[float | None, ...]:
            canaries = [
                sample("basert_fleet_canaries_total", {"pool": "qwen", "result": r}) for r in ("passed", "failed")
            ]
            return *canaries, sample("basert_fleet_recycles_total", {"pool": "qwen", "reason": "position_drift"})

        assert counts() == (0, 0, 0)
        agent = ScriptedAgent().join(fleet)
        agent.report("qwen-0", "READY", canaries_passed=3, canaries_failed=1, recycles={"position_drift": 2})
        agent.report("qwen-0", "READY", canaries_passed=4, canaries_failed=1, recycles={"position_drift": 2})
        await settled()
        assert counts() == (4, 1, 2)
        agent.link.close()
        await settled()
        back = ScriptedAgent()
        back.join(fleet, report=False, offer=False)
        back.report("qwen-0", "READY", canaries_passed=5, canaries_failed=1, recycles={"position_drift": 2})
        await settled()
        assert counts() == (5, 1, 2)
        back.link.close()
        await settled()
        new = ScriptedAgent(incarnation="bbbb")
        new.join(fleet, offer=False)
        new.report("qwen-0", "READY", canaries_passed=1)
        await settled()
        assert counts() == (6, 1, 2)

    run_virtual(main())


def test_a_stuck_worker_is_seen_by_its_last_ready_time():
    """The timestamp stands still from when the worker was last ready, and moves with the clock while it is."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        fleet = fleet_of(pool(), wall=lambda: 1000.0 + loop.time())
        labels = {"pool": "qwen", "node": "mac-1", "worker": "qwen-0"}

        def last_ready() -> float | None:
            return fleet.metrics.registry.get_sample_value("basert_fleet_worker_last_ready_timestamp_seconds", labels)

        async def pass_seconds(seconds: float) -> None:
            passed = asyncio.Event()
            loop.call_later(seconds, passed.set)
            await passed.wait()

        agent = ScriptedAgent().join(fleet, offer=False)
        await settled()
        await pass_seconds(10)
        assert last_ready() == 1010.0
        agent.report("qwen-0", "BACKOFF")
        await settled()
        await pass_seconds(10)
        assert last_ready() == 1010.0
        assert fleet.metrics.registry.get_sample_value("basert_fleet_desired_applied_timestamp_seconds") == 1000.0

    run_virtual(main())
