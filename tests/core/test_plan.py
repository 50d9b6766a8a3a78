"""The planner: placement, scale-in, rollout; and, by random walks, that passes repeat, converge and stay in bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from basert_fleet.core.api import API_VERSION, BasertPool, BasertWorker, WorkerState, template_hash
from basert_fleet.core.plan import NodeView, Plan, WorkerView, plan, worker_name

GI = 1024**3


def a_pool(name: str = "qwen", *, path: str = "/m.base", **spec: Any) -> BasertPool:
    """One pool, with a model of the same name."""
    document = {"model": {"name": name, "path": path}, **spec}
    return BasertPool.model_validate(
        {"apiVersion": API_VERSION, "kind": "BasertPool", "metadata": {"name": name}, "spec": document}
    )


def mac(name: str = "mac-1", memory: int | None = None, *, connected: bool = True) -> NodeView:
    """One node that is there."""
    return NodeView(name, memory, connected)


def serving(worker: BasertWorker) -> WorkerView:
    """A worker that does what it should."""
    return WorkerView(worker, template=worker.spec.template, ready=True)


def settled(pools: list[BasertPool], nodes: list[NodeView]) -> list[WorkerView]:
    """The fleet after its agents did all that a first plan asked for."""
    return [serving(worker) for worker in plan(pools, nodes, []).workers]


def running(planned: Plan) -> list[str]:
    """The names of those that should run."""
    return [w.metadata.name for w in planned.workers if w.spec.state is WorkerState.RUNNING]


def stopped(planned: Plan) -> list[str]:
    """The names of those that should stop."""
    return [w.metadata.name for w in planned.workers if w.spec.state is WorkerState.STOPPED]


def test_a_worker_that_needs_no_change_is_the_very_object_of_the_last_pass() -> None:
    """So that whoever keeps something with each worker sees at once which ones are new; an equal one is replaced."""
    pool, node = a_pool(replicas=2), mac()
    views = settled([pool], [node])
    again = plan([pool], [node], views).workers
    assert all(worker is view.worker for worker, view in zip(again, views, strict=True))
    changed = a_pool(replicas=2, isolation={"settleSeconds": 3})
    news = plan([changed], [node], views).workers
    assert all(worker.spec.isolation is changed.spec.isolation for worker in news)


def test_workers_are_named_by_pool_and_index() -> None:
    """A pool's workers are called <pool>-0, <pool>-1, …, carry its settings, and run."""
    pool = a_pool(replicas=2)
    workers = plan([pool], [mac()], []).workers
    assert [w.metadata.name for w in workers] == ["qwen-0", "qwen-1"]
    assert {w.spec.node for w in workers} == {"mac-1"}
    assert all(w.spec.model == pool.spec.model and w.spec.template == template_hash(pool.spec) for w in workers)


def test_eleven_workers_are_listed_by_number() -> None:
    """The desired set is ordered by index, not by the letters of the name."""
    assert running(plan([a_pool(replicas=11)], [mac()], [])) == [worker_name("qwen", i) for i in range(11)]


def test_memory_limits_the_placement() -> None:
    """Only as many workers are placed as a node's memory holds; the message tells the numbers."""
    planned = plan([a_pool(replicas=3, resources={"memory": "24Gi"})], [mac(memory=56 * GI)], [])
    assert running(planned) == ["qwen-0", "qwen-1"]
    assert planned.unplaceable == {
        "qwen": "1 of 3 workers cannot be placed: 0 of 1 nodes can take one more: "
        "mac-1 has 8Gi of 56Gi left, 24Gi needed"
    }


def test_replicas_spread_over_nodes() -> None:
    """A pool's workers go to the node with the fewest of them, then to the one with the most memory left."""
    nodes = [mac("mac-1", 48 * GI), mac("mac-2", 64 * GI)]
    workers = plan([a_pool(replicas=3, resources={"memory": "20Gi"})], nodes, []).workers
    assert [w.spec.node for w in workers] == ["mac-2", "mac-1", "mac-2"]


def test_unknown_memory_is_not_limited_but_told() -> None:
    """A node that cannot tell its memory takes any number of workers, and the plan says what was not checked (C19)."""
    planned = plan([a_pool(replicas=2, resources={"memory": "24Gi"})], [mac(memory=None)], [])
    assert len(running(planned)) == 2
    assert planned.unchecked == {"qwen": "mac-1: memory unknown, 24Gi per worker not checked"}


def test_nothing_unchecked_without_a_need() -> None:
    """A pool that asks for no memory has no check that could be missed."""
    assert plan([a_pool()], [mac(memory=None)], []).unchecked == {}


@pytest.mark.parametrize(
    ("nodes", "why"),
    [([], "there is no node"), ([mac(connected=False)], "mac-1 is not connected")],
    ids=["none", "away"],
)
def test_without_a_node_nothing_is_placed(nodes: list[NodeView], why: str) -> None:
    """A pool without a reachable node is unplaceable, and told why."""
    planned = plan([a_pool()], nodes, [])
    assert planned.workers == ()
    assert why in planned.unplaceable["qwen"]


def test_workers_of_a_silent_node_stay_desired() -> None:
    """A node that went away is no instruction: its workers stay as they are."""
    views = settled([a_pool(replicas=2)], [mac()])
    planned = plan([a_pool(replicas=2)], [mac(connected=False)], views)
    assert planned.workers == tuple(view.worker for view in views)


def test_scale_in_takes_the_not_ready_first() -> None:
    """Of too many workers one that does not serve goes first, then the highest index."""
    views = settled([a_pool(replicas=4)], [mac()])
    views[1] = replace(views[1], ready=False)
    planned = plan([a_pool(replicas=2)], [mac()], views)
    assert stopped(planned) == ["qwen-1", "qwen-3"]


def test_a_stopped_worker_stays_listed_until_it_is_known_to_have_stopped() -> None:
    """A worker that is to go keeps its name and its memory until its agent said that it is gone."""
    nodes = [mac(memory=48 * GI)]
    memory = {"memory": "24Gi"}
    views = settled([a_pool(replicas=2, resources=memory)], nodes)
    draining = plan([a_pool(replicas=1, resources=memory)], nodes, views)
    assert stopped(draining) == ["qwen-1"]

    views = [WorkerView(worker) for worker in draining.workers]
    again = plan([a_pool(replicas=2, resources=memory)], nodes, views)
    assert running(again) == ["qwen-0"]
    assert stopped(again) == ["qwen-1"]

    gone = [view if view.wanted else replace(view, stopped=True) for view in views]
    assert plan([a_pool(replicas=2, resources=memory)], nodes, gone).workers[1].spec.state is WorkerState.RUNNING


def test_a_worker_that_should_run_is_never_dropped() -> None:
    """Only a worker that was to stop leaves the set, whatever its agent says of one that should run."""
    views = [replace(view, ready=False, stopped=True) for view in settled([a_pool(replicas=2)], [mac()])]
    assert running(plan([a_pool(replicas=2)], [mac()], views)) == ["qwen-0", "qwen-1"]


def test_a_pool_at_zero_or_gone_stops_all_its_workers() -> None:
    """At zero replicas, or without its document, a pool keeps no worker."""
    views = settled([a_pool(replicas=2)], [mac()])
    assert stopped(plan([a_pool(replicas=0)], [mac()], views)) == ["qwen-0", "qwen-1"]
    assert stopped(plan([], [mac()], views)) == ["qwen-0", "qwen-1"]


def test_a_rollout_keeps_within_max_unavailable() -> None:
    """A new template replaces only as many serving workers at once as allowed."""
    views = settled([a_pool(replicas=4)], [mac()])
    changed = a_pool(replicas=4, path="/n.base", update={"maxUnavailable": 2})
    planned = plan([changed], [mac()], views)
    assert [w.spec.model.path for w in planned.workers] == ["/n.base", "/n.base", "/m.base", "/m.base"]


def test_a_worker_that_does_not_serve_is_replaced_at_once() -> None:
    """A broken worker gets the new template first and uses up the budget, so that no serving one is taken down too."""
    views = settled([a_pool(replicas=3)], [mac()])
    views[2] = replace(views[2], ready=False)
    planned = plan([a_pool(replicas=3, path="/n.base")], [mac()], views)
    assert [w.spec.model.path for w in planned.workers] == ["/m.base", "/m.base", "/n.base"]


def test_a_broken_template_stops_the_rollout() -> None:
    """While an updated worker does not get ready, the serving ones keep the template that works."""
    views = settled([a_pool(replicas=3)], [mac()])
    changed = a_pool(replicas=3, path="/broken")
    first = plan([changed], [mac()], views)
    views = [WorkerView(first.workers[0], template=first.workers[0].spec.template), *views[1:]]
    assert plan([changed], [mac()], views).workers == first.workers


def test_a_change_that_needs_no_process_is_applied_at_once() -> None:
    """Isolation and the model's names reach every worker, also one that still waits for its new process."""
    views = settled([a_pool(replicas=2)], [mac()])
    changed = a_pool(replicas=2, path="/n.base", isolation={"settleSeconds": 20})
    workers = plan([changed], [mac()], views).workers
    assert [w.spec.model.path for w in workers] == ["/n.base", "/m.base"]
    assert all(w.spec.isolation == changed.spec.isolation for w in workers)
    assert workers[1].spec.template == views[1].worker.spec.template


def test_more_memory_moves_a_worker_that_does_not_fit_any_more() -> None:
    """A worker whose new needs its node cannot meet is stopped there and replaced on a node that can."""
    nodes = [mac("mac-1", 24 * GI)]
    views = settled([a_pool(resources={"memory": "20Gi"})], nodes)
    nodes.append(mac("mac-2", 64 * GI))
    planned = plan([a_pool(resources={"memory": "40Gi"})], nodes, views)
    assert [(w.metadata.name, w.spec.state.value, w.spec.node) for w in planned.workers] == [
        ("qwen-0", "Stopped", "mac-1"),
        ("qwen-1", "Running", "mac-2"),
    ]


def test_a_change_that_fits_nowhere_takes_nothing_down() -> None:
    """A worker keeps serving with its old settings while no node has room for the new ones, and the plan says so."""
    nodes = [mac(memory=24 * GI)]
    views = settled([a_pool(resources={"memory": "20Gi"})], nodes)
    planned = plan([a_pool(resources={"memory": "40Gi"})], nodes, views)
    assert planned.workers == tuple(view.worker for view in views)
    assert planned.unplaceable["qwen"].startswith("the change waits for memory: ")


def test_room_that_one_pool_gives_up_is_used_in_the_same_pass() -> None:
    """A pool that needs less makes room for one that was planned before it."""
    nodes = [mac(memory=32 * GI)]
    views = settled([a_pool("b", resources={"memory": "24Gi"})], nodes)
    pools = [a_pool("a", resources={"memory": "16Gi"}), a_pool("b", resources={"memory": "16Gi"})]
    planned = plan(pools, nodes, views)
    assert running(planned) == ["a-0", "b-0"]
    assert planned.unplaceable == {}


# --- Random walks -----------------------------------------------------------------------------------------------------

POOL_NAMES = ("a", "a-1", "b")
MEMORY = st.sampled_from([None, "8Gi", "16Gi", "40Gi"])


@st.composite
def some_pools(draw: st.DrawFn) -> list[BasertPool]:
    """Any set of pools, with names that invite a clash: `a` worker 1 and pool `a-1`."""
    names = draw(st.lists(st.sampled_from(POOL_NAMES), unique=True))
    return [
        a_pool(
            name,
            path=draw(st.sampled_from(["/one", "/two"])),
            replicas=draw(st.integers(0, 5)),
            resources={"memory": draw(MEMORY)},
            update={"maxUnavailable": draw(st.integers(1, 3))},
        )
        for name in names
    ]


def some_nodes() -> st.SearchStrategy[list[NodeView]]:
    """Three nodes, small, large or unable to tell, some of them away."""
    memory = st.sampled_from([None, 16 * GI, 50 * GI])
    return st.tuples(*(st.builds(NodeView, st.just(f"mac-{i}"), memory, st.booleans()) for i in range(3))).map(list)


@dataclass
class Process:
    """What a simulated agent has of one worker."""

    template: str = ""
    ready: bool = False
    stopped: bool = False


@dataclass
class Fleet:
    """Agents that do one thing at a time, in any order, as the last plan asks."""

    nodes: list[NodeView] = field(default_factory=lambda: [mac("mac-0", 50 * GI)])
    pools: list[BasertPool] = field(default_factory=list)
    workers: dict[str, BasertWorker] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    def views(self) -> list[WorkerView]:
        return [self.view(worker) for worker in self.workers.values()]

    def view(self, worker: BasertWorker) -> WorkerView:
        seen = self.processes.get(worker.metadata.name, Process())
        return WorkerView(worker, seen.template, seen.ready, seen.stopped)

    def pass_once(self) -> Plan:
        """Plan, and forget what an agent said before it was told otherwise: an old "stopped" is none for a new run."""
        planned = plan(self.pools, self.nodes, self.views())
        self.workers = {worker.metadata.name: worker for worker in planned.workers}
        self.processes = {
            name: replace(process, stopped=process.stopped and not self.view(self.workers[name]).wanted)
            for name, process in self.processes.items()
            if name in self.workers
        }
        return planned

    def act(self, name: str) -> bool:
        """Take one worker one step nearer to what is desired; False if it is there."""
        worker, process = self.workers[name], self.processes.setdefault(name, Process())
        if worker.spec.state is WorkerState.STOPPED:
            now = Process(stopped=True)
        elif process.template != worker.spec.template:
            now = Process(template=worker.spec.template)
        else:
            now = Process(template=process.template, ready=True)
        self.processes[name] = now
        return now != process


class PlansStayInBounds(RuleBasedStateMachine):
    """Whatever changes in whatever order, a pass repeats itself, and takes down no more than it may."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()

    @rule(pools=some_pools())
    def pools_change(self, pools: list[BasertPool]) -> None:
        self.fleet.pools = pools

    @rule(nodes=some_nodes())
    def nodes_change(self, nodes: list[NodeView]) -> None:
        self.fleet.nodes = nodes

    @precondition(lambda self: self.fleet.workers)
    @rule(data=st.data())
    def an_agent_acts(self, data: st.DataObject) -> None:
        self.fleet.act(data.draw(st.sampled_from(sorted(self.fleet.workers))))

    @precondition(lambda self: self.fleet.workers)
    @rule()
    def all_agents_catch_up(self) -> None:
        while sum(self.fleet.act(name) for name in self.fleet.workers):
            pass

    @precondition(lambda self: self.fleet.workers)
    @rule(path=st.sampled_from(["/one", "/two"]))
    def a_rollout_begins(self, path: str) -> None:
        self.fleet.pools = [
            a_pool(pool.metadata.name, path=path, **pool.spec.model_dump(exclude={"model"}))
            for pool in self.fleet.pools
        ]

    @precondition(lambda self: self.fleet.workers)
    @rule(data=st.data())
    def a_worker_fails(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.workers)))
        process = self.fleet.processes.setdefault(name, Process())
        self.fleet.processes[name] = replace(process, ready=False)

    @rule()
    def a_pass_is_made(self) -> None:
        before = self.fleet.views()
        planned = self.fleet.pass_once()
        self.no_name_comes_twice(planned)
        self.nothing_vanishes_that_was_not_seen_to_stop(before, planned)
        self.rollouts_keep_their_budget(before, planned)
        self.nodes_are_not_overfilled(before, planned)
        self.pools_run_no_more_than_asked(planned)
        assert self.fleet.pass_once() == planned

    def no_name_comes_twice(self, planned: Plan) -> None:
        names = Counter(worker.metadata.name for worker in planned.workers)
        assert max(names.values(), default=1) == 1, names

    def nothing_vanishes_that_was_not_seen_to_stop(self, before: list[WorkerView], planned: Plan) -> None:
        after = {worker.metadata.name for worker in planned.workers}
        for view in before:
            assert view.worker.metadata.name in after or (view.stopped and not view.wanted)

    def rollouts_keep_their_budget(self, before: list[WorkerView], planned: Plan) -> None:
        now = {worker.metadata.name: worker for worker in planned.workers}
        for pool in self.fleet.pools:
            mine = [view for view in before if view.worker.spec.pool == pool.metadata.name and view.wanted]
            served = sum(view.serves for view in mine)
            serves = sum(view.serves and self.untouched(view, now[view.worker.metadata.name]) for view in mine)
            scaled_in = max(len(mine) - pool.spec.replicas, 0)
            assert served - serves <= scaled_in + pool.spec.update.max_unavailable

    def untouched(self, view: WorkerView, now: BasertWorker) -> bool:
        return now.spec.state is WorkerState.RUNNING and now.spec.template == view.worker.spec.template

    def nodes_are_not_overfilled(self, before: list[WorkerView], planned: Plan) -> None:
        """No pass adds to a node beyond its memory; one that is too full already only ever gets emptier."""
        was, now = used_by_node([view.worker for view in before]), used_by_node(planned.workers)
        for node in self.fleet.nodes:
            assert node.memory_bytes is None or now[node.name] <= max(node.memory_bytes, was[node.name])

    def pools_run_no_more_than_asked(self, planned: Plan) -> None:
        running_by_pool = Counter(w.spec.pool for w in planned.workers if w.spec.state is WorkerState.RUNNING)
        replicas = {pool.metadata.name: pool.spec.replicas for pool in self.fleet.pools}
        assert all(count <= replicas.get(pool, 0) for pool, count in running_by_pool.items())


def used_by_node(workers: tuple[BasertWorker, ...] | list[BasertWorker]) -> Counter[str]:
    """Memory that workers take, by node."""
    used: Counter[str] = Counter()
    for worker in workers:
        used[worker.spec.node] += worker.spec.resources.memory or 0
    return used


PlansStayInBounds.TestCase.settings = settings(stateful_step_count=30)
TestPlansStayInBounds = PlansStayInBounds.TestCase


@given(first=some_pools(), then=some_pools(), order=st.randoms(use_true_random=False))
def test_plans_converge(first: list[BasertPool], then: list[BasertPool], order: Any) -> None:
    """Agents that do as they are told, in any order, reach a fleet that the planner leaves as it is."""
    fleet = Fleet()
    for pools in (first, then):
        fleet.pools = pools
        steps = 0
        while acted := run_a_round(fleet, order):
            steps += acted
            assert steps < 200, "the fleet does not come to rest"
    planned = fleet.pass_once()
    by_pool = Counter(view.worker.spec.pool for view in fleet.views() if view.serves)
    for pool in then:
        if pool.metadata.name not in planned.unplaceable:
            assert by_pool.pop(pool.metadata.name, 0) == pool.spec.replicas
            templates = {w.spec.template for w in planned.workers if w.spec.pool == pool.metadata.name}
            assert templates <= {template_hash(pool.spec)}


def run_a_round(fleet: Fleet, order: Any) -> int:
    """Plan once, then let every agent act once, in some order; return how much happened."""
    before = dict(fleet.workers)
    fleet.pass_once()
    names = sorted(fleet.workers)
    order.shuffle(names)
    return sum(fleet.act(name) for name in names) + (fleet.workers != before)
