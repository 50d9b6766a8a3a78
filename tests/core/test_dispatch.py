"""What becomes of requests and slots, case by case; orders of events are walked in `test_dispatch_model`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random

import pytest

from basert_fleet.core.dispatch import (
    ACCEPT_SECONDS,
    Assign,
    CancelLease,
    Dispatch,
    Dropped,
    Effect,
    LeaseLost,
    Limits,
    OfferKind,
    Priority,
    RecallLease,
    Refusal,
    Refuse,
    Request,
    Retake,
)
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.heap import SLACK, KeyedHeap

FAR = 10_000.0


def make_dispatch(max_requests: int = 100, max_bytes: int = 1000, max_wait_seconds: float = 300.0) -> Dispatch:
    """Return a pool's dispatcher."""
    return Dispatch(Limits(max_requests, max_bytes, max_wait_seconds))


def make_request(
    name: str,
    *,
    tenant: str = "t",
    priority: Priority = Priority.NORMAL,
    size_bytes: int = 1,
    max_wait_seconds: float | None = None,
    deadline: float = FAR,
) -> Request:
    """Return a request that is ordinary but for what the test says."""
    return Request(name, tenant, 1.0, priority, size_bytes, max_wait_seconds, deadline)


def epoch(counter: int, generation: int = 1, incarnation: str = "agent") -> Epoch:
    """Return an epoch; the counter is what tests tell apart."""
    return Epoch(incarnation, generation, counter)


def assigned(effects: Iterable[Effect]) -> list[tuple[str, str]]:
    """Return (request, worker) of each assignment."""
    return [(effect.request_id, effect.worker) for effect in effects if isinstance(effect, Assign)]


def run_to_end(dispatch: Dispatch, request_id: str, worker: str, at: Epoch, *, start: float, end: float) -> None:
    """Let an assigned request run; it is then to be decided about."""
    dispatch.accepted(worker, at, start)
    dispatch.slot_ended(worker, at, end)


def test_a_request_takes_an_idle_slot_at_once() -> None:
    """A slot that waits for work gets the next request, as the lease of its offer."""
    dispatch = make_dispatch()
    assert dispatch.offer("w", epoch(1), 0.0) == ()
    assert dispatch.enqueue(make_request("a"), 1.0) == (Assign("a", "w", epoch(1)),)


def test_a_pool_at_zero_queues_and_serves_its_first_worker() -> None:
    """Requests that came while there was no worker run as soon as one is offered, the first one first (C28)."""
    dispatch = make_dispatch()
    for name in "abc":
        assert dispatch.enqueue(make_request(name), 0.0) == ()
    assert assigned(dispatch.offer("w", epoch(1), 60.0)) == [("a", "w")]


def test_no_time_frees_a_running_lease() -> None:
    """However long an accepted lease runs, its slot is taken (C29)."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a", deadline=10.0), 0.0)
    dispatch.accepted("w", epoch(1), 1.0)
    assert dispatch.next_wake() is None
    assert dispatch.tick(FAR) == ()
    assert dispatch.snapshot(FAR).in_flight == 1


def test_an_ended_slot_is_used_again_only_after_a_new_offer() -> None:
    """The end of a lease is no offer: the slot is still to be proven idle."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.enqueue(make_request("b"), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.1, end=5.0)
    assert dispatch.offer("w", epoch(1), 5.0) == ()  # a late copy of the old offer
    assert assigned(dispatch.offer("w", epoch(2), 5.0)) == [("b", "w")]


def test_of_equal_slots_the_one_idle_longest_is_taken() -> None:
    """Slots whose processes served as much are used in the order of their offers."""
    dispatch = make_dispatch()
    for counter, worker in enumerate(["b", "a", "c"], start=1):
        dispatch.offer(worker, epoch(counter), 0.0)
    dispatch.offer("b", epoch(4), 0.0)  # renewed
    got = [assigned(dispatch.enqueue(make_request(name), 0.0))[0][1] for name in "123"]
    assert got == ["a", "c", "b"]


def test_a_first_attempt_goes_to_the_process_that_served_most() -> None:
    """Under a fault that grows with use, workers come to it one after another and not all at once."""
    dispatch = make_dispatch()
    for worker, served in {"new": 0, "old": 4, "young": 1}.items():
        dispatch.offer(worker, epoch(1), 0.0, served=served)
    got = [assigned(dispatch.enqueue(make_request(name), 0.0))[0][1] for name in "123"]
    assert got == ["old", "young", "new"]


def test_a_retry_goes_to_the_freshest_process() -> None:
    """What failed on a used process has its best chance on a fresh one."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0, served=9)
    dispatch.enqueue(make_request("a"), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.0, end=1.0)
    for worker, served in {"old": 4, "new": 0, "young": 1}.items():
        dispatch.offer(worker, epoch(1), 1.0, served=served)
    assert assigned(dispatch.retry("a", frozenset({("w", epoch(1).process)}), 1.0)) == [("a", "new")]


def test_a_request_that_needs_a_fresh_process_waits_for_it_and_gets_it_first() -> None:
    """Used processes are passed over; the first fresh one goes to it, whoever else waits."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0, served=3)
    dispatch.enqueue(make_request("a", priority=Priority.LOW), 0.0)
    for name in "bc":
        dispatch.enqueue(make_request(name, priority=Priority.HIGH), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.0, end=1.0)
    assert dispatch.retry("a", frozenset({("w", epoch(1).process)}), 1.0, fresh=True) == ()
    assert assigned(dispatch.offer("x", epoch(1), 2.0, served=1)) == [("b", "x")]
    assert assigned(dispatch.offer("w", epoch(2, generation=2), 3.0, served=0)) == [("a", "w")]


def test_a_suspended_agents_slots_get_nothing_new() -> None:
    """Their offers stand and are used again afterwards; what runs there goes on."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.offer("x", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.accepted("w", epoch(1), 0.1)
    dispatch.agent_suspended(["w", "x"], 1.0)
    assert dispatch.enqueue(make_request("b"), 2.0) == ()
    assert dispatch.snapshot(2.0).in_flight == 1
    assert assigned(dispatch.agent_resumed(["w", "x"], 3.0)) == [("b", "x")]


def test_a_suspended_agent_that_is_lost_is_forgotten() -> None:
    """A parked offer dies with its agent."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.agent_suspended(["w"], 1.0)
    dispatch.agent_lost(["w"], 2.0)
    assert dispatch.agent_resumed(["w"], 3.0) == ()
    assert dispatch.enqueue(make_request("a"), 3.0) == ()


def test_a_message_of_one_worker_never_meets_the_lease_of_another() -> None:
    """Two fresh workers of one agent have equal epochs; a late refusal of the one leaves the other's lease alone."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.tick(ACCEPT_SECONDS)  # taken back from w
    assert assigned(dispatch.offer("x", epoch(1), 3.0)) == [("a", "x")]
    dispatch.refused("w", epoch(1), 3.1)
    assert dispatch.snapshot(3.1).in_flight == 1
    assert dispatch.snapshot(3.1).queued_requests == 0


def test_a_lease_that_nobody_accepts_is_taken_back() -> None:
    """After ACCEPT_SECONDS the request is first again, its lease cancelled, its slot out of use till a newer offer."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.enqueue(make_request("b"), 0.0)
    assert dispatch.next_wake() == ACCEPT_SECONDS
    assert dispatch.tick(ACCEPT_SECONDS) == (CancelLease("w", epoch(1)), Retake("a", "w", epoch(1)))
    assert dispatch.accepted("w", epoch(1), 3.0) == ()  # too late
    assert dispatch.slot_ended("w", epoch(1), 3.0) == ()
    assert dispatch.snapshot(3.0).idle == 0
    assert assigned(dispatch.offer("w", epoch(2), 4.0)) == [("a", "w")]


def test_a_given_up_lease_that_nobody_accepts_ends_without_a_word() -> None:
    """Its cancel was sent when the client left; only the slot has to be offered anew."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    assert dispatch.cancel("a", 0.5) == (CancelLease("w", epoch(1)),)
    assert dispatch.tick(ACCEPT_SECONDS) == (Dropped("w", epoch(1)),)
    snapshot = dispatch.snapshot(ACCEPT_SECONDS)
    assert (snapshot.demand, snapshot.idle) == (0, 0)


def test_a_refused_lease_goes_back_to_its_place() -> None:
    """A lease that crossed a withdrawal is no attempt: its request is first again."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.enqueue(make_request("b"), 0.0)
    assert dispatch.withdraw("w", epoch(1), 0.1) == ()
    assert dispatch.refused("w", epoch(1), 0.2) == ()
    assert assigned(dispatch.offer("w", epoch(2), 1.0)) == [("a", "w")]


def test_a_withdrawn_offer_gets_no_request() -> None:
    """Once an offer is taken back, requests wait."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.withdraw("w", epoch(1), 0.0)
    assert dispatch.enqueue(make_request("a"), 1.0) == ()


def test_a_retry_keeps_its_place_and_avoids_the_process() -> None:
    """It is skipped while only the excluded process is idle, and first for any other, its next generation included."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    for name in "abc":
        dispatch.enqueue(make_request(name), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.1, end=5.0)
    assert dispatch.retry("a", frozenset({("w", epoch(1).process)}), 5.0) == ()
    assert assigned(dispatch.offer("w", epoch(2), 6.0)) == [("b", "w")]
    assert assigned(dispatch.offer("w", epoch(3, generation=2), 9.0)) == [("a", "w")]


def test_exclusions_of_several_retries_add_up() -> None:
    """A request that failed on two workers avoids both."""
    dispatch = make_dispatch()
    dispatch.offer("v", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    run_to_end(dispatch, "a", "v", epoch(1), start=0.1, end=5.0)
    dispatch.retry("a", frozenset({("v", epoch(1).process)}), 5.0)
    dispatch.offer("w", epoch(1), 6.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=6.0, end=7.0)
    dispatch.retry("a", frozenset({("w", epoch(1).process)}), 7.0)
    assert dispatch.offer("v", epoch(2), 8.0) == ()
    assert dispatch.offer("w", epoch(2), 8.0) == ()
    assert assigned(dispatch.offer("x", epoch(1), 9.0)) == [("a", "x")]


def test_a_retry_is_never_refused_for_a_full_queue_or_the_waiting_limit() -> None:
    """It ran before: only its total time ends its waiting."""
    dispatch = make_dispatch(max_requests=1, max_wait_seconds=20.0)
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a", deadline=500.0), 0.0)
    dispatch.enqueue(make_request("b"), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.1, end=5.0)
    assert dispatch.retry("a", frozenset({("w", epoch(1).process)}), 5.0) == ()
    assert dispatch.tick(499.0) == (Refuse("b", Refusal.QUEUE_TIMEOUT, 18),)
    assert dispatch.tick(500.0) == (Refuse("a", Refusal.REQUEST_TIMEOUT, None),)


def test_only_a_request_whose_lease_is_over_can_be_retried() -> None:
    """To retry what still waits or runs would run it twice: a caller's bug."""
    dispatch = make_dispatch()
    dispatch.enqueue(make_request("a"), 0.0)
    with pytest.raises(ValueError, match="before its lease is over"):
        dispatch.retry("a", frozenset(), 0.0)
    dispatch.offer("w", epoch(1), 0.0)
    with pytest.raises(ValueError, match="before its lease is over"):
        dispatch.retry("a", frozenset(), 0.0)


def test_a_request_is_known_once() -> None:
    """An id that is waiting, leased or to be decided about is refused as a caller's bug."""
    dispatch = make_dispatch()
    for step in (
        lambda: dispatch.enqueue(make_request("a"), 0.0),
        lambda: dispatch.offer("w", epoch(1), 0.0),
        lambda: dispatch.slot_ended("w", epoch(1), 1.0),
    ):
        step()
        with pytest.raises(ValueError, match="already here"):
            dispatch.enqueue(make_request("a"), 1.0)
    dispatch.finished("a", 1.0)
    assert dispatch.enqueue(make_request("a"), 1.0) == ()


def test_a_client_that_leaves_while_waiting_frees_its_place() -> None:
    """Its room in the queue is free at once, and nothing is aborted (C03)."""
    dispatch = make_dispatch(max_requests=1)
    dispatch.enqueue(make_request("a"), 0.0)
    assert dispatch.cancel("a", 1.0) == ()
    assert dispatch.enqueue(make_request("b"), 1.0) == ()
    assert dispatch.snapshot(1.0).queued_requests == 1


def test_a_client_that_leaves_while_running_frees_no_slot() -> None:
    """The lease is cancelled, and the slot stays taken until its agent has proven it idle (C03, C39)."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.accepted("w", epoch(1), 0.1)
    assert dispatch.cancel("a", 1.0) == (CancelLease("w", epoch(1)),)
    assert dispatch.snapshot(1.0).in_flight == 1
    dispatch.slot_ended("w", epoch(1), 9.0)
    assert dispatch.snapshot(9.0).demand == 0


def test_a_retry_after_the_client_left_does_nothing() -> None:
    """A decision that crosses the client's leaving brings nothing back."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.1, end=5.0)
    dispatch.cancel("a", 5.0)
    assert dispatch.retry("a", frozenset(), 5.0) == ()
    assert dispatch.snapshot(5.0).demand == 0


@pytest.mark.parametrize(("max_requests", "max_bytes"), [(2, 1000), (100, 20)])
def test_a_full_queue_refuses(max_requests: int, max_bytes: int) -> None:
    """By count and by bytes, with the time in which the queue should be worked off."""
    dispatch = make_dispatch(max_requests, max_bytes)
    for name in "ab":
        assert dispatch.enqueue(make_request(name, size_bytes=10), 0.0) == ()
    assert dispatch.enqueue(make_request("c", size_bytes=10), 0.0) == (Refuse("c", Refusal.QUEUE_FULL, 30),)


def test_a_full_queue_has_room_again_when_waiting_is_over() -> None:
    """Those whose time is over make room for one that comes at that moment."""
    dispatch = make_dispatch(max_requests=1)
    dispatch.enqueue(make_request("a"), 0.0)
    assert dispatch.enqueue(make_request("b"), 300.0) == (Refuse("a", Refusal.QUEUE_TIMEOUT, 10),)
    assert dispatch.snapshot(300.0).queued_requests == 1


def test_a_queue_of_no_length_still_serves_idle_slots() -> None:
    """A request that need not wait is not refused for a full queue."""
    dispatch = make_dispatch(max_requests=0)
    dispatch.offer("w", epoch(1), 0.0)
    assert assigned(dispatch.enqueue(make_request("a"), 0.0)) == [("a", "w")]
    assert dispatch.enqueue(make_request("b"), 0.0) == (Refuse("b", Refusal.QUEUE_FULL, 10),)


def test_retry_after_follows_service_time_and_slots() -> None:
    """More slots and shorter leases shorten it, within one second and two minutes."""
    dispatch = make_dispatch(max_requests=0)
    for index in range(40):
        worker, at = f"w-{index}", epoch(1)
        dispatch.offer(worker, at, 0.0)
        dispatch.enqueue(make_request(worker), 0.0)
        run_to_end(dispatch, worker, worker, at, start=0.0, end=0.0)
        dispatch.finished(worker, 0.0)
    assert dispatch.enqueue(make_request("short"), 0.0) == (Refuse("short", Refusal.QUEUE_FULL, 1),)
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.0, end=5000.0)
    assert dispatch.enqueue(make_request("long"), 5000.0) == (Refuse("long", Refusal.QUEUE_FULL, 120),)


@pytest.mark.parametrize(("asked", "waits"), [(None, 300.0), (50.0, 50.0), (900.0, 300.0)])
def test_waiting_is_limited_by_pool_and_client(asked: float | None, waits: float) -> None:
    """A client may shorten the pool's limit and not lengthen it."""
    dispatch = make_dispatch()
    dispatch.enqueue(make_request("a", max_wait_seconds=asked), 0.0)
    assert dispatch.next_wake() == waits
    assert dispatch.tick(waits - 0.1) == ()
    assert dispatch.tick(waits) == (Refuse("a", Refusal.QUEUE_TIMEOUT, 10),)


def test_the_total_time_ends_waiting_too() -> None:
    """A request whose total time is over before its waiting time times out as a request."""
    dispatch = make_dispatch()
    dispatch.enqueue(make_request("a", deadline=10.0), 0.0)
    dispatch.enqueue(make_request("b", deadline=10.0), 0.0)
    assert dispatch.tick(10.0) == tuple(Refuse(name, Refusal.REQUEST_TIMEOUT, None) for name in "ab")


def test_new_limits_hold_for_those_who_come_later() -> None:
    """A shorter queue turns nobody away who waits already."""
    dispatch = make_dispatch()
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.limits = Limits(1, 1000, 10.0)
    assert dispatch.tick(299.0) == ()
    assert dispatch.enqueue(make_request("b"), 299.0) == (Refuse("b", Refusal.QUEUE_FULL, 20),)


def test_a_pool_that_can_have_no_slot_refuses_all() -> None:
    """Those who wait, those who come and those who would run again, until it can."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    for name in "ab":
        dispatch.enqueue(make_request(name), 0.0)
    run_to_end(dispatch, "a", "w", epoch(1), start=0.1, end=5.0)
    assert dispatch.capacity(possible=False, now=5.0) == (Refuse("b", Refusal.NO_CAPACITY, None),)
    assert dispatch.retry("a", frozenset(), 5.0) == (Refuse("a", Refusal.NO_CAPACITY, None),)
    assert dispatch.enqueue(make_request("c"), 5.0) == (Refuse("c", Refusal.NO_CAPACITY, None),)
    assert dispatch.capacity(possible=True, now=6.0) == ()
    assert dispatch.enqueue(make_request("d"), 6.0) == ()


def test_a_newer_offer_ends_an_older_lease() -> None:
    """The agent has forgotten that lease: its request is to be decided about."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.enqueue(make_request("b"), 0.0)
    assert dispatch.offer("w", epoch(2), 1.0) == (LeaseLost("a", "w", epoch(1)), Assign("b", "w", epoch(2)))
    assert dispatch.snapshot(1.0).deciding == 1


def test_offers_without_order_are_refused_while_leased() -> None:
    """Another incarnation that offers a leased worker is refused and counted until the old agent is known lost."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.enqueue(make_request("b"), 0.0)
    clone = epoch(1, incarnation="clone")
    assert dispatch.offer("w", clone, 1.0) == ()
    assert dispatch.snapshot(1.0).lease_violations == 1
    assert dispatch.agent_lost(["w", "never-heard-of"], 1.5) == (LeaseLost("a", "w", epoch(1)),)
    assert dispatch.offer("w", clone, 1.6) == (Assign("b", "w", clone),)
    assert dispatch.snapshot(1.6).lease_violations == 1


def test_another_incarnation_may_offer_an_unleased_worker() -> None:
    """A worker that moved to another agent is used there."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(7), 0.0)
    dispatch.offer("w", epoch(1, incarnation="other"), 1.0)
    assert dispatch.enqueue(make_request("a"), 2.0) == (Assign("a", "w", epoch(1, incarnation="other")),)


def test_a_storm_of_aborts_leaves_nothing_behind() -> None:
    """Under overload with many aborts a worker never has two leases, and then all gauges are 0 (C31, C36)."""
    random, dispatch = Random(36), make_dispatch(max_requests=50)
    held: dict[str, Assign] = {}
    counters = dict.fromkeys((f"w-{index}" for index in range(5)), 0)
    open_requests: set[str] = set()

    def perform(effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Assign):
                assert effect.worker not in held
                held[effect.worker] = effect
                perform(dispatch.accepted(effect.worker, effect.epoch, now))
            elif isinstance(effect, Refuse):
                open_requests.remove(effect.request_id)

    for number in range(3000):
        now = number / 100
        open_requests.add(f"r-{number}")
        tenant, priority = f"t-{random.randrange(7)}", random.choice(list(Priority))
        perform(dispatch.enqueue(make_request(f"r-{number}", tenant=tenant, priority=priority), now))
        if random.random() < 0.7:
            gone = random.choice(sorted(open_requests) or ["nobody"])
            open_requests.discard(gone)
            perform(dispatch.cancel(gone, now))
        worker = random.choice(list(counters))
        if lease := held.pop(worker, None):
            perform(dispatch.slot_ended(worker, lease.epoch, now))
            perform(dispatch.finished(lease.request_id, now))
            open_requests.discard(lease.request_id)
        counters[worker] += 1
        perform(dispatch.offer(worker, epoch(counters[worker]), now))
        assert dispatch.snapshot(now).demand == len(open_requests | {lease.request_id for lease in held.values()})

    for request_id in sorted(open_requests):
        dispatch.cancel(request_id, now)
    for worker, lease in held.items():
        dispatch.slot_ended(worker, lease.epoch, now)
    snapshot = dispatch.snapshot(now)
    assert (snapshot.demand, snapshot.queued, snapshot.queued_bytes, snapshot.oldest_seconds) == (0, {}, 0, 0.0)
    assert snapshot.lease_violations == snapshot.stale == 0


def test_ten_thousand_waiting_requests_are_served_in_order() -> None:
    """A long queue loses and swaps nobody; in time linear in its length, or this would take minutes."""
    dispatch = make_dispatch(max_requests=10_000, max_bytes=10_000)
    for number in range(10_000):
        dispatch.enqueue(make_request(str(number)), 0.0)
    for number in range(10_000):
        at = epoch(number + 1)
        assert dispatch.offer("w", at, 0.0) == (Assign(str(number), "w", at),)
        dispatch.slot_ended("w", at, 0.0)
        dispatch.finished(str(number), 0.0)


def test_a_keyed_heap_holds_few_dead_entries() -> None:
    """What is taken out before its turn does not stay in memory until its turn."""
    heap = KeyedHeap()
    heap.put("first", 0.0)
    for number in range(10_000):
        heap.put("moving", 1.0 + number)
    assert len(heap) == 2
    assert len(heap._heap) <= 2 * len(heap) + SLACK
    assert list(heap.take_until(1e6)) == ["first", "moving"]
    assert heap.first_rank() == math.inf


def with_a_slot_ahead(*waiting: str) -> Dispatch:
    """Return a dispatch whose one slot runs "a", is offered ahead as the second offer, and has these behind it."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    for name in ("a", *waiting):
        dispatch.enqueue(make_request(name), 0.0)
    dispatch.accepted("w", epoch(1), 0.1)
    return dispatch


def test_an_offer_ahead_lets_the_next_lease_travel() -> None:
    """It is leased while the slot's last lease is still there, and becomes the slot's lease by that one's end."""
    dispatch = with_a_slot_ahead("b", "c")
    assert dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD) == (Assign("b", "w", epoch(2)),)
    both = dispatch.snapshot(5.0)
    assert (both.in_flight, both.ahead, both.queued_requests, both.demand) == (1, 1, 1, 3)
    assert dispatch.slot_ended("w", epoch(1), 5.1) == ()
    dispatch.accepted("w", epoch(2), 5.1)
    after = dispatch.snapshot(5.1)
    assert (after.in_flight, after.ahead, after.deciding) == (1, 0, 1)
    assert dispatch.next_wake() == dispatch._waiting.next_expiry()


def test_an_offer_ahead_that_nobody_took_is_an_idle_slot_in_the_end() -> None:
    """Nothing has to be offered again; until then the slot does not count as idle."""
    dispatch = with_a_slot_ahead()
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    assert dispatch.snapshot(5.0).idle == 0
    dispatch.slot_ended("w", epoch(1), 5.1)
    assert dispatch.snapshot(5.1).idle == 1
    assert assigned(dispatch.enqueue(make_request("b"), 6.0)) == [("b", "w")]


def test_a_request_prefers_an_idle_slot_to_one_ahead() -> None:
    """What is proven clean needs no luck."""
    dispatch = with_a_slot_ahead()
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.offer("idle", epoch(1), 5.0)
    got = [assigned(dispatch.enqueue(make_request(name), 5.0)) for name in "bc"]
    assert got == [[("b", "idle")], [("c", "w")]]


def test_an_offer_ahead_counts_as_room() -> None:
    """A request that it can take at once is not refused for a full queue."""
    dispatch = Dispatch(Limits(max_requests=0, max_bytes=0, max_wait_seconds=1.0))
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.accepted("w", epoch(1), 0.1)
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    assert dispatch.enqueue(make_request("b"), 5.0) == (Assign("b", "w", epoch(2)),)


def test_a_withdrawn_offer_ahead_leaves_its_slot_out_of_use() -> None:
    """The slot was found unclean."""
    dispatch = with_a_slot_ahead()
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.withdraw("w", epoch(2), 5.1)
    dispatch.slot_ended("w", epoch(1), 5.2)
    assert dispatch.snapshot(5.2).idle == 0
    assert dispatch.enqueue(make_request("b"), 5.3) == ()


def test_a_refused_lease_ahead_goes_back_to_its_place() -> None:
    """It was no attempt, and those behind it do not overtake it."""
    dispatch = with_a_slot_ahead("b", "c")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.slot_ended("w", epoch(1), 5.1)
    dispatch.refused("w", epoch(2), 5.2)
    assert assigned(dispatch.offer("w", epoch(3), 6.0)) == [("b", "w")]


def test_a_lease_ahead_is_recalled_once_for_an_idle_slot() -> None:
    """Another slot is proven clean: its request need not wait for the verdict on this one."""
    dispatch = with_a_slot_ahead("b")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    assert dispatch.offer("idle", epoch(1), 5.1) == (RecallLease("w", epoch(2)),)
    assert dispatch.tick(5.2) == ()
    assert dispatch.refused("w", epoch(2), 5.3) == (Assign("b", "idle", epoch(1)),)


def test_an_idle_slot_recalls_only_what_it_can_run() -> None:
    """One recall for each idle slot, and none of a request that nobody wants or that this slot may not run."""
    dispatch = make_dispatch()
    for worker in "wxy":
        dispatch.offer(worker, epoch(1), 0.0)
        dispatch.enqueue(make_request(f"current of {worker}"), 0.0)
        dispatch.accepted(worker, epoch(1), 0.1)
    for worker in "wxy":
        dispatch.offer(worker, epoch(2), 5.0, kind=OfferKind.AHEAD)
    ahead = [assigned(dispatch.enqueue(make_request(name), 5.0))[0] for name in "def"]
    dispatch.finished("d", 5.0)
    (recall,) = dispatch.offer("idle", epoch(1), 5.1)
    assert recall == RecallLease(dict(ahead)["e"], epoch(2))


def test_a_lease_ahead_that_is_not_accepted_in_time_runs_elsewhere() -> None:
    """A slot whose verification drags on does not keep the next request; its current lease stays."""
    dispatch = with_a_slot_ahead("b")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    late = 5.0 + ACCEPT_SECONDS
    assert dispatch.tick(late) == (CancelLease("w", epoch(2)), Retake("b", "w", epoch(2)))
    assert (dispatch.snapshot(late).in_flight, dispatch.snapshot(late).queued_requests) == (1, 1)


def test_a_lost_agent_loses_both_leases() -> None:
    """The one that ran and the one behind it, in that order."""
    dispatch = with_a_slot_ahead("b")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    assert dispatch.agent_lost(["w"], 6.0) == (LeaseLost("a", "w", epoch(1)), LeaseLost("b", "w", epoch(2)))


def test_a_second_offer_ahead_is_stale_while_the_first_one_is_leased() -> None:
    """A slot has one lease ahead at most, whatever its agent says."""
    dispatch = with_a_slot_ahead("b")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    stale = dispatch.snapshot(5.0).stale
    assert dispatch.offer("w", epoch(3), 5.0, kind=OfferKind.AHEAD) == ()
    assert dispatch.snapshot(5.0).stale == stale + 1


def test_an_offer_ahead_out_of_reach_rests() -> None:
    """It comes back as what it then is: still ahead, for nothing could be heard meanwhile."""
    dispatch = with_a_slot_ahead()
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.agent_suspended(["w"], 5.1)
    assert dispatch.enqueue(make_request("b"), 5.2) == ()
    assert dispatch.agent_resumed(["w"], 5.3) == (Assign("b", "w", epoch(2)),)
    assert dispatch.snapshot(5.3).ahead == 1


def test_an_offer_ahead_of_a_lease_that_was_taken_back_is_one_like_any_other() -> None:
    """The gateway knows of no lease it could stand behind; the agent accepts nothing before its slot is clean."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    dispatch.enqueue(make_request("a"), 0.0)
    dispatch.tick(ACCEPT_SECONDS)
    assert assigned(dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)) == [("a", "w")]
    assert dispatch.snapshot(5.0).in_flight == 1


def test_a_recall_that_came_too_late_keeps_no_other_from_being_recalled() -> None:
    """The lease was accepted meanwhile and ran; the idle slot is there for the next one that stands behind another."""
    dispatch = with_a_slot_ahead("b")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.offer("idle", epoch(1), 5.1)
    dispatch.slot_ended("w", epoch(1), 5.2)
    dispatch.accepted("w", epoch(2), 5.2)
    dispatch.withdraw("idle", epoch(1), 5.3)
    dispatch.offer("w", epoch(3), 6.0, kind=OfferKind.AHEAD)
    dispatch.enqueue(make_request("c"), 6.0)
    assert dispatch.offer("idle", epoch(2), 6.1) == (RecallLease("w", epoch(3)),)


def test_a_request_that_needs_a_fresh_process_overtakes_its_own_tenants_others() -> None:
    """It has failed on others already, and a fresh process does not stay fresh; also among requests of one tenant."""
    dispatch = make_dispatch()
    dispatch.offer("w", epoch(1), 0.0)
    for name in ("first", "second"):
        dispatch.enqueue(make_request(name), 0.0)
    run_to_end(dispatch, "first", "w", epoch(1), start=0.0, end=1.0)
    dispatch.offer("w", epoch(2), 1.0, served=1)
    run_to_end(dispatch, "second", "w", epoch(2), start=1.0, end=2.0)
    dispatch.retry("second", frozenset({("w", epoch(2).process)}), 2.0, fresh=True)
    dispatch.retry("first", frozenset(), 2.0)
    assert assigned(dispatch.offer("w", epoch(3, generation=2), 3.0, served=0)) == [("second", "w")]


def test_two_blamed_leases_in_a_row_leave_one_account() -> None:
    """What a worker owes for one lease ends with its next, so that nothing is charged for ever."""
    dispatch = with_a_slot_ahead("b")
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.slot_ended("w", epoch(1), 5.1, blamed=True)
    dispatch.accepted("w", epoch(2), 5.1)
    dispatch.slot_ended("w", epoch(2), 6.0, blamed=True)
    for name in "ab":
        dispatch.finished(name, 6.0)
    dispatch.offer("w", epoch(3), 7.0)
    assert not any(len(ledger._present) for ledger in dispatch._ledgers.values())


def test_a_slot_counts_once_whatever_is_offered_of_it() -> None:
    """Retry-After is worked out by slots; one that is leased, with its offer ahead out of reach, is one."""
    dispatch = with_a_slot_ahead()
    dispatch.offer("w", epoch(2), 5.0, kind=OfferKind.AHEAD)
    dispatch.agent_suspended(["w"], 5.1)
    assert len(dispatch._slots) == 1
