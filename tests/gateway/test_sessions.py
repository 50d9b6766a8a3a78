"""Agents out of reach, back, replaced and cloned; and what a gateway that has just started makes of what they bring."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from basert_fleet.core.delivery import Part
from basert_fleet.core.dispatch import Priority
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.plan import NodeView, plan
from basert_fleet.gateway.ask import Ask, Terms
from basert_fleet.gateway.fleet import AgentNews, Fleet
from basert_fleet.gateway.planning import HELD
from basert_fleet.gateway.roster import Beginnings
from basert_fleet.telemetry.logs import FleetLog
from basert_fleet.wire.messages import Hello, Offer, Rejected
from support.scripted_agent import ANSWER, ScriptedAgent, pool
from support.turns import settled
from support.virtual_loop import run_virtual


class Watched:
    """A fleet, what became of its agents, what it kept and what it logged."""

    def __init__(self, *pools, plan=(), arrival_seconds: float = 0.0) -> None:
        self.kept: list[list[tuple[str, str, str]]] = []
        self._log = io.BytesIO()
        beginnings = Beginnings(
            plan=tuple(plan), arrival_seconds=arrival_seconds, keep=lambda it: self.kept.append(told(it))
        )
        self.fleet = Fleet(FleetLog(self._log), beginnings=beginnings)
        self.news: list[tuple[str, AgentNews]] = []
        self.fleet.on_agent.append(lambda node, news: self.news.append((node, news)))
        if pools:
            self.fleet.apply(pools)

    @property
    def log(self) -> str:
        return self._log.getvalue().decode()

    @property
    def connected(self) -> dict[str, bool]:
        return {node["name"]: node["connected"] for node in self.fleet.observed()["nodes"]}

    def ask(self, request_id: str):
        terms = Terms(tenant="t", weight=1.0, priority=Priority.NORMAL, verify=None, max_wait_seconds=None)
        ask = Ask(
            request_id=request_id, path="/v1/chat/completions", content_type="application/json", body=b"{}",
            model="qwen", streams=False, terms=terms,
        )  # fmt: skip
        return self.fleet.submit(ask, lambda: None)


def told(documents) -> list[tuple[str, str, str]]:
    """Return name, node and state of each worker."""
    workers = [json.loads(document) for document in documents]
    return [(w["metadata"]["name"], w["spec"]["node"], w["spec"]["state"]) for w in workers]


def workers_on(node: str, *pools) -> list:
    """Return the workers that these pools have on their only node."""
    return list(plan(pools, [NodeView(node, None, connected=True)], []).workers)


def documents_of(workers) -> list[bytes]:
    """Return workers as agents bring them."""
    return [worker.model_dump_json(by_alias=True).encode() for worker in workers]


def accepting(agent: ScriptedAgent, lease) -> None:
    """Take every lease and leave it running."""
    agent.accept(lease)


# --- In and out of reach


async def test_an_agent_out_of_reach_gets_nothing_new_and_keeps_what_it_has():
    """Its running lease goes on and ends as if nothing had been; its idle slot is used again once it is back."""
    watched = Watched(pool(replicas=2))
    agent = ScriptedAgent(accepting, workers=("qwen-0", "qwen-1")).join(watched.fleet)
    running = watched.ask("running")
    await agent.until(lambda: agent.leases)
    agent.session.link_suspended()
    watched.ask("waiting")
    await settled()
    assert len(agent.leases) == 1
    assert watched.connected == {"mac-1": False}
    assert watched.fleet.observed()["pools"][0]["inFlight"] == 1
    agent.session.link_resumed()
    await settled()
    assert [lease.request_id for lease in agent.leases] == ["running", "waiting"]
    assert watched.connected == {"mac-1": True}
    agent.head(agent.leases[0], 200, "application/json")
    agent.body(agent.leases[0], ANSWER, Part.WHOLE)
    agent.end(agent.leases[0])
    await settled()
    assert running.attempts.count == 1
    assert running.outbox.closed
    assert [news for _, news in watched.news] == [AgentNews.CONNECTED, AgentNews.OUT_OF_REACH, AgentNews.BACK]


async def test_a_cut_connection_replans_nothing():
    """What the agent said of its workers still holds: no worker is moved, stopped or told anything."""
    watched = Watched(pool(replicas=1))
    agent = ScriptedAgent().join(watched.fleet)
    other = ScriptedAgent(workers=(), node="mac-2", incarnation="bbbb").join(watched.fleet)
    await settled()
    before = len(agent.desired), told(other.desired[-1].workers)
    agent.session.link_suspended()
    await settled()
    agent.session.link_resumed()
    await settled()
    assert (len(agent.desired), told(other.desired[-1].workers)) == before
    assert watched.fleet.observed()["workers"][0]["phase"] == "READY"


async def test_what_changes_meanwhile_is_told_once_the_agent_is_back():
    """A new desired state waits for the agent, whether its link is resumed or not."""
    watched = Watched(pool(replicas=1))
    agent = ScriptedAgent().join(watched.fleet)
    await settled()
    agent.session.link_suspended()
    watched.fleet.apply([])
    await settled()
    assert len(agent.desired) == 1
    agent.session.link_resumed()
    await settled()
    assert told(agent.desired[-1].workers) == [("qwen-0", "mac-1", "Stopped")]


# --- Who may take a node's name


async def test_a_clone_is_refused_with_a_reason():
    """While an agent is in reach, another one of its name is told why, and changes nothing."""
    watched = Watched(pool())
    first = ScriptedAgent().join(watched.fleet)
    clone = ScriptedAgent(incarnation="bbbb").join(watched.fleet)
    await settled()
    assert "another agent is connected as mac-1" in clone.rejections[0]
    assert clone.lost
    assert not first.lost
    assert watched.news == [("mac-1", AgentNews.CONNECTED), ("mac-1", AgentNews.REFUSED)]
    assert watched.connected == {"mac-1": True}


async def test_a_clone_that_dials_again_and_again_is_logged_once():
    """Once the node's own agent has come anew, another clone is news again."""
    watched = Watched(pool())
    first = ScriptedAgent().join(watched.fleet)
    for _ in range(3):
        ScriptedAgent(incarnation="bbbb").join(watched.fleet)
        await settled()
    assert watched.log.count("second session of a node refused") == 1
    first.link.close()
    await settled()
    for incarnation in ("cccc", "bbbb"):
        ScriptedAgent(incarnation=incarnation).join(watched.fleet)
        await settled()
    assert watched.log.count("second session of a node refused") == 2


async def test_a_restarted_agent_takes_the_place_of_one_that_is_out_of_reach():
    """The old one is lost first, so what ran there runs on the new one; its late messages reach nobody."""
    watched = Watched(pool())
    crashed = ScriptedAgent(accepting).join(watched.fleet)
    watched.ask("r-1")
    await crashed.until(lambda: crashed.leases)
    crashed.session.link_suspended()
    restarted = ScriptedAgent(accepting, incarnation="bbbb").join(watched.fleet)
    await restarted.until(lambda: restarted.leases)
    assert restarted.leases[0].request_id == "r-1"
    assert crashed.lost
    crashed.session.message_received(Offer("qwen-0", "qwen", Epoch("aaaa", 1, 9)))
    crashed.session.link_lost()
    await settled()
    assert [news for _, news in watched.news[-2:]] == [AgentNews.GONE, AgentNews.CONNECTED]
    assert watched.connected == {"mac-1": True}
    assert watched.fleet.observed()["pools"][0]["leaseViolations"] == 0


async def test_an_agent_that_gave_its_link_up_replaces_itself():
    """The same incarnation is the same agent: the gateway had not noticed yet that the old link is dead."""
    watched = Watched(pool())
    old = ScriptedAgent().join(watched.fleet)
    await settled()
    new = ScriptedAgent().join(watched.fleet)
    await settled()
    assert (old.lost, new.lost) == (True, False)
    assert watched.fleet.observed()["pools"][0]["idle"] == 1


# --- What agents bring


async def test_workers_that_run_are_taken_over():
    """A gateway that knows nothing leaves each worker where it is, and adds only what is missing."""
    brought = workers_on("mac-1", pool(replicas=2))
    watched = Watched(pool(replicas=3))
    agent = ScriptedAgent(workers=("qwen-0", "qwen-1"), brings=documents_of(brought)).join(watched.fleet)
    await settled()
    assert told(agent.desired[0].workers) == [(f"qwen-{number}", "mac-1", "Running") for number in range(3)]
    assert agent.desired[0].workers[:2] == tuple(documents_of(brought))


async def test_workers_of_a_pool_that_is_gone_are_stopped():
    """What nobody wants any more is told so, and forgotten once it has stopped."""
    watched = Watched(pool(replicas=0))
    agent = ScriptedAgent(workers=("old-0",), pool="old", brings=documents_of(workers_on("mac-1", pool("old"))))
    agent.join(watched.fleet)
    await settled()
    assert told(agent.desired[-1].workers) == [("old-0", "mac-1", "Stopped")]
    agent.report("old-0", "STOPPED")
    await settled()
    assert told(agent.desired[-1].workers) == []


async def test_a_worker_whose_name_is_another_nodes_is_stopped():
    """Two workers of one name cannot both serve: the later one is stopped, and what it offers is not used."""
    watched = Watched(pool())
    ScriptedAgent(offer := accepting).join(watched.fleet, offer=False)
    await settled()
    second = ScriptedAgent(
        offer, node="mac-2", incarnation="bbbb", brings=documents_of(workers_on("mac-2", pool()))
    ).join(watched.fleet)
    watched.ask("r-1")
    await settled()
    assert second.leases == []
    assert told(second.desired[-1].workers) == [("qwen-0", "mac-2", "Stopped")]
    assert watched.fleet.observed()["workers"][0]["node"] == "mac-1"
    second.report("qwen-0", "STOPPED")
    await settled()
    watched.fleet.apply([pool(replicas=2)])
    await settled()
    assert told(second.desired[-1].workers) == [("qwen-1", "mac-2", "Running")]


async def test_a_renamed_node_keeps_its_workers():
    """What a worker's document calls its node does not matter: it is where its agent says it is."""
    watched = Watched(pool())
    agent = ScriptedAgent(node="mac-9", brings=documents_of(workers_on("mac-1", pool()))).join(watched.fleet)
    await settled()
    assert told(agent.desired[-1].workers) == [("qwen-0", "mac-9", "Running")]


@pytest.mark.parametrize("strange", [b"no JSON", b'{"kind": "BasertWorker"}', "name"])
async def test_what_cannot_be_read_is_left_alone(strange):
    """A document of another release, or with a name that no plan gives, is logged, and the others are taken."""
    (worker,) = workers_on("mac-1", pool())
    if strange == "name":
        strange = documents_of([worker])[0].replace(b'"name":"qwen-0"', b'"name":"qwen-00"')
    watched = Watched(pool())
    agent = ScriptedAgent(brings=[strange, *documents_of([worker])]).join(watched.fleet)
    await settled()
    assert "worker not taken over" in watched.log
    assert told(agent.desired[-1].workers) == [("qwen-0", "mac-1", "Running")]


async def test_nothing_is_planned_before_anybody_said_what_is_wanted():
    """An agent that comes earlier than the fleet file's content loses no worker by it."""
    watched = Watched()
    agent = ScriptedAgent(brings=documents_of(workers_on("mac-1", pool()))).join(watched.fleet)
    await settled()
    assert agent.desired == []
    watched.fleet.apply([pool()])
    await settled()
    assert told(agent.desired[-1].workers) == [("qwen-0", "mac-1", "Running")]


# --- Beginning with the last plan


async def test_the_last_plan_waits_for_nodes_that_are_not_back_yet():
    """Their workers stay where they are, whoever is there first; the nodes are shown as away."""
    last = workers_on("mac-1", pool(replicas=2))
    watched = Watched(pool(replicas=2), plan=last)
    first = ScriptedAgent(workers=(), node="mac-2", incarnation="bbbb").join(watched.fleet)
    await settled()
    assert told(first.desired[-1].workers) == []
    assert watched.connected == {"mac-1": False, "mac-2": True}
    labels = {"node": "mac-1", "enrolled": "false"}
    samples = [
        sample
        for family in watched.fleet.metrics.registry.collect()
        if family.name == "basert_fleet_node_connected"
        for sample in family.samples
        if sample.labels["node"] == labels["node"]
    ]
    assert [sample.value for sample in samples] == [0.0]


async def test_a_plan_is_kept_when_it_changes():
    """Whoever starts next finds the newest; what changes nothing writes nothing."""
    watched = Watched(pool())
    assert watched.kept == []
    agent = ScriptedAgent().join(watched.fleet)
    await settled()
    agent.report("qwen-0", "DRAINING")
    await settled()
    assert watched.kept == [[("qwen-0", "mac-1", "Running")]]
    watched.fleet.apply([])
    assert watched.kept[1:] == [[("qwen-0", "mac-1", "Stopped")]]


def test_nothing_is_placed_until_agents_had_time_to_come():
    """So the first one to dial does not get all workers; requests wait meanwhile, and the reason is shown."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        watched = Watched(pool(replicas=2), arrival_seconds=10.0)
        first = ScriptedAgent(workers=(), node="mac-1").join(watched.fleet)
        await settled()
        waiting = watched.ask("r-1")
        assert told(first.desired[-1].workers) == []
        assert watched.fleet.observed()["pools"][0]["conditions"][0]["message"] == HELD
        second = ScriptedAgent(workers=(), node="mac-2", incarnation="bbbb").join(watched.fleet)
        await second.until(lambda: second.desired and second.desired[-1].workers)
        assert loop.time() == 10.0
        assert told(first.desired[-1].workers) == [("qwen-0", "mac-1", "Running")]
        assert told(second.desired[-1].workers) == [("qwen-1", "mac-2", "Running")]
        assert watched.fleet.observed()["pools"][0]["conditions"] == []
        assert not waiting.outbox.closed
        watched.fleet.traffic.client_gone(waiting)
        watched.fleet.close()

    run_virtual(main())


async def test_a_name_that_is_another_nodes_is_not_offered_away() -> None:
    """Whoever offers a worker that the plan has elsewhere gets no lease, and takes the slot from nobody."""
    watched = Watched(pool())
    owner = ScriptedAgent().join(watched.fleet)
    await owner.until(lambda: watched.fleet.observed()["pools"][0]["idle"] == 1)
    rogue = ScriptedAgent(node="mac-2", incarnation="bbbb").join(watched.fleet)
    rogue.link.close()
    await settled()
    assert watched.fleet.observed()["pools"][0]["idle"] == 1
    watched.ask("r-1")
    await owner.until(lambda: owner.leases)
    assert rogue.leases == []


@pytest.mark.parametrize(
    ("node", "memory_bytes"), [("", None), ("a\nb", None), ("Mac", None), ("a" * 64, None), ("mac", -5), ("mac", 2**63)]
)
async def test_an_introduction_that_makes_no_sense_is_refused(node: str, memory_bytes: int | None) -> None:
    """A node's name is a label, and shown to people; a size is one."""
    watched = Watched(pool())
    heard: list[object] = []
    session = watched.fleet.new_session()
    session.bind(Heard(heard))
    session.message_received(Hello(node, "aaaa", "0", memory_bytes))
    assert [type(message) for message in heard] == [Rejected]
    assert watched.fleet.observed()["nodes"] == []


class Heard:
    """A link that keeps what is sent on it."""

    def __init__(self, sent: list[object]) -> None:
        self._sent = sent

    def send(self, message: object) -> None:
        self._sent.append(message)

    def close(self) -> None:
        """Nothing is behind it."""
