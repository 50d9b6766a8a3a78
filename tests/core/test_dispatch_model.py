"""The dispatcher against a small model: its promises hold in whatever order things happen (C01, C03, C29, C31, C36)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
from basert_fleet.core.epoch import Epoch, Process

WORKERS = ("a-0", "a-1", "b-0")
MANY_REQUESTS = 3
"""Before so many the pool stays possible: a walk that begins by refusing everything finds nothing."""
LIMITS = Limits(max_requests=4, max_bytes=40, max_wait_seconds=30.0)


class Where(Enum):
    WAITING = "waiting"
    LEASED = "leased"
    DECIDING = "deciding"
    OVER = "over"


@dataclass
class Known:
    """What the model knows of one request."""

    request: Request
    number: int
    arrived: float
    where: Where = Where.WAITING
    exclude: frozenset[tuple[str, Process]] = frozenset()
    fresh: bool = False
    retried: bool = False
    ends: int = 0

    @property
    def expires(self) -> float:
        return self.request.deadline if self.retried else min(self.arrived + 30.0, self.request.deadline)


@dataclass
class Slot:
    """What the model knows of one worker.

    `request` is the one whose lease it holds, given up or not, and `ahead` the one that waits behind it. Offered while
    it is leased, it is offered ahead.
    """

    incarnation: int = 1
    generation: int = 1
    counter: int = 0
    served: int = 0
    parked: bool = False
    offered: bool = False
    request: str | None = None
    leased: Epoch | None = None
    assigned_at: float = 0.0
    accepted: bool = False
    ahead: str | None = None
    ahead_at: float = 0.0
    recalled: bool = False
    past: list[Epoch] = field(default_factory=list)

    @property
    def epoch(self) -> Epoch:
        return Epoch(f"agent-{self.incarnation}", self.generation, self.counter)

    def lose(self, epoch: Epoch) -> tuple[str, float, bool]:
        """Forget the lease of this epoch; return whose it was, since when, and whether it was accepted."""
        if self.ahead is not None and epoch == self.epoch:
            (lost, self.ahead), self.recalled = (self.ahead, None), False
            return lost, self.ahead_at, False
        assert self.request is not None
        assert epoch == self.leased
        lost = self.request, self.assigned_at, self.accepted
        self.request, self.leased, self.accepted = self.ahead, self.epoch if self.ahead else None, False
        self.assigned_at, self.ahead, self.recalled = self.ahead_at, None, False
        return lost


class DispatchKeepsItsPromises(RuleBasedStateMachine):
    """Never two leases on a slot; each request ends once; nothing leaks; a slot in doubt is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.dispatch = Dispatch(LIMITS)
        self.now = 0.0
        self.possible = True
        self.known: dict[str, Known] = {}
        self.slots = {worker: Slot() for worker in WORKERS}  # their epochs may well be equal

    # What the dispatcher says, checked against what is known.

    def perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Assign():
                    self.assigned(effect)
                case Refuse():
                    self.was_refused(effect)
                case CancelLease(worker, epoch):
                    slot = self.slots[worker]
                    assert epoch in {slot.leased, slot.epoch if slot.ahead is not None else slot.leased}
                case RecallLease(worker, epoch):
                    slot = self.slots[worker]
                    assert slot.ahead is not None
                    assert slot.epoch == epoch
                    assert not slot.recalled
                    assert any(self.is_idle(other) for other in self.slots.values())
                    slot.recalled = True
                case Retake(request_id, worker, epoch):
                    known = self.known[request_id]
                    lost, since, accepted = self.slots[worker].lose(epoch)
                    assert lost == request_id
                    assert not accepted
                    assert self.now >= since + ACCEPT_SECONDS
                    assert known.where is Where.LEASED
                    known.where = Where.WAITING
                case LeaseLost(request_id, worker, epoch):
                    assert self.slots[worker].lose(epoch)[0] == request_id
                    assert self.known[request_id].where is Where.LEASED
                    self.known[request_id].where = Where.DECIDING
                case Dropped(worker, epoch):
                    lost, _, _ = self.slots[worker].lose(epoch)
                    assert self.known[lost].where is Where.OVER

    def assigned(self, effect: Assign) -> None:
        slot, known = self.slots[effect.worker], self.known[effect.request_id]
        assert slot.ahead is None
        assert slot.offered
        is_ahead = slot.request is not None
        assert not (is_ahead and any(self.is_idle(o) and self.admits(w, o, known) for w, o in self.slots.items()))
        assert slot.epoch == effect.epoch
        assert known.where is Where.WAITING
        assert (effect.worker, effect.epoch.process) not in known.exclude
        assert self.now < known.expires
        assert self.possible
        for other in self.waiting():
            is_same_line = (other.request.tenant, other.request.priority) == (
                known.request.tenant,
                known.request.priority,
            )
            overtakes = is_same_line and other.number < known.number and self.can_run(other)
            assert not overtakes or known.fresh
            assert not (other.fresh and self.can_run(other) and not known.fresh)
        assert not (known.fresh and slot.served)
        assert not slot.parked
        slot.offered = False
        if is_ahead:
            slot.ahead, slot.ahead_at = effect.request_id, self.now
        else:
            slot.request, slot.leased, slot.assigned_at = effect.request_id, effect.epoch, self.now
            slot.accepted = False
        known.where = Where.LEASED

    def was_refused(self, effect: Refuse) -> None:
        known = self.known[effect.request_id]
        assert known.where is Where.WAITING
        match effect.code:
            case Refusal.NO_CAPACITY:
                assert not self.possible
            case Refusal.QUEUE_FULL:
                assert known.arrived == self.now
                assert not any(slot.offered and not slot.parked for slot in self.slots.values())
            case Refusal.QUEUE_TIMEOUT:
                assert not known.retried
                assert known.expires <= self.now < known.request.deadline
            case Refusal.REQUEST_TIMEOUT:
                assert self.now >= known.request.deadline
        if effect.retry_after_seconds is not None:
            assert 1 <= effect.retry_after_seconds <= 120
        self.over(known)

    def over(self, known: Known) -> None:
        known.where = Where.OVER
        known.ends += 1

    def waiting(self) -> list[Known]:
        return [known for known in self.known.values() if known.where is Where.WAITING]

    def is_idle(self, slot: Slot) -> bool:
        return slot.offered and not slot.parked and slot.request is None

    def admits(self, worker: str, slot: Slot, known: Known) -> bool:
        return (worker, slot.epoch.process) not in known.exclude and not (known.fresh and slot.served)

    def can_run(self, known: Known) -> bool:
        return any(
            slot.offered and not slot.parked and self.admits(worker, slot, known) for worker, slot in self.slots.items()
        )

    def pick(self, data: st.DataObject, where: Where) -> str | None:
        ids = [request_id for request_id, known in self.known.items() if known.where is where]
        return data.draw(st.sampled_from(ids)) if ids else None

    def some_leased(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from([worker for worker, slot in self.slots.items() if slot.leased]))

    # What happens to it.

    @rule(
        tenant=st.sampled_from("xyz"),
        priority=st.sampled_from(Priority),
        size=st.integers(1, 20),
        total=st.sampled_from([5.0, 60.0, 600.0]),
    )
    def request_arrives(self, tenant: str, priority: Priority, size: int, total: float) -> None:
        self.arrive(tenant, priority, size, total)

    def arrive(self, tenant: str, priority: Priority, size: int, total: float) -> None:
        number = len(self.known)
        request = Request(f"r-{number}", tenant, 1.0 + number % 2, priority, size, None, self.now + total)
        self.known[request.id] = Known(request, number, self.now)
        self.perform(self.dispatch.enqueue(request, self.now))

    @rule(worker=st.sampled_from(WORKERS), recycled=st.booleans())
    def slot_is_offered(self, worker: str, recycled: bool) -> None:
        """Also while it is leased: the agent then has lost that lease."""
        self.offer(worker, recycled=recycled)

    @rule(worker=st.sampled_from(WORKERS))
    def slot_gets_work_and_more(self, worker: str) -> None:
        """What a busy slot sees most, in one go: walks by single steps rarely come this far."""
        self.offer(worker, recycled=False)
        self.arrive("x", Priority.NORMAL, 1, 60.0)
        if self.slots[worker].leased:
            self.offer_ahead(worker)
            self.arrive("x", Priority.NORMAL, 1, 60.0)

    def offer(self, worker: str, *, recycled: bool) -> None:
        slot = self.slots[worker]
        held = [slot.leased] * (slot.request is not None) + [slot.epoch] * (slot.ahead is not None)
        offered = replace(slot, past=[*slot.past, slot.epoch], counter=slot.counter + 1, offered=True, parked=False)
        offered.generation += recycled
        offered.served = 0 if recycled else slot.served + 1
        effects = self.dispatch.offer(worker, offered.epoch, self.now, served=offered.served)
        lost = [effect for effect in effects if isinstance(effect, LeaseLost | Dropped)]
        assert [effect.epoch for effect in lost] == held
        self.perform(tuple(lost))
        offered.request = offered.leased = offered.ahead = None
        offered.recalled = False
        self.slots[worker] = offered
        self.perform(tuple(effect for effect in effects if effect not in lost))

    @precondition(lambda self: any(slot.leased for slot in self.slots.values()))
    @rule(data=st.data())
    def slot_is_offered_ahead(self, data: st.DataObject) -> None:
        """Its response is over; a lease of this offer stands behind the current one."""
        self.offer_ahead(self.some_leased(data))

    def offer_ahead(self, worker: str) -> None:
        slot = self.slots[worker]
        if slot.request is None or slot.offered or slot.ahead is not None:
            return
        self.accept(worker)
        slot.past.append(slot.epoch)
        slot.counter += 1
        slot.served += 1
        slot.offered, slot.parked = True, False
        effects = self.dispatch.offer(worker, slot.epoch, self.now, served=slot.served, kind=OfferKind.AHEAD)
        assert not any(isinstance(effect, LeaseLost | Dropped) for effect in effects)
        self.perform(effects)

    @precondition(lambda self: any(slot.past for slot in self.slots.values()))
    @rule(data=st.data(), worker=st.sampled_from(WORKERS))
    def old_messages_arrive(self, data: st.DataObject, worker: str) -> None:
        """Nothing of the past changes anything, and it is counted."""
        slot = self.slots[worker]
        past = [e for e in slot.past if e.incarnation == slot.epoch.incarnation and e != slot.leased]
        if not past or worker not in self.dispatch._slots._heard:
            return
        epoch = data.draw(st.sampled_from(past))
        stale = self.dispatch.snapshot(self.now).stale
        self.perform(self.dispatch.accepted(worker, epoch, self.now))
        self.perform(self.dispatch.refused(worker, epoch, self.now))
        self.perform(self.dispatch.offer(worker, epoch, self.now))
        self.perform(self.dispatch.withdraw(worker, epoch, self.now))
        self.perform(self.dispatch.slot_ended(worker, epoch, self.now))
        assert self.dispatch.snapshot(self.now).stale == stale + 5

    @precondition(lambda self: any(slot.offered for slot in self.slots.values()))
    @rule(worker=st.sampled_from(WORKERS))
    def slot_is_withdrawn(self, worker: str) -> None:
        """A lease that crosses this stays until the agent refuses it."""
        slot = self.slots[worker]
        slot.offered = False
        self.perform(self.dispatch.withdraw(worker, slot.epoch, self.now))

    @precondition(lambda self: any(slot.offered for slot in self.slots.values()))
    @rule(workers=st.sets(st.sampled_from(WORKERS)), back=st.booleans())
    def agent_is_out_of_reach(self, workers: set[str], back: bool) -> None:
        """Slots that are offered then rest, and come back by the same offer."""
        for worker in workers:
            self.slots[worker].parked = self.slots[worker].offered and not back
        act = self.dispatch.agent_resumed if back else self.dispatch.agent_suspended
        self.perform(act(sorted(workers), self.now))

    @precondition(lambda self: any(slot.leased for slot in self.slots.values()))
    @rule(data=st.data())
    def lease_is_accepted(self, data: st.DataObject) -> None:
        self.accept(self.some_leased(data))

    def accept(self, worker: str) -> None:
        slot = self.slots[worker]
        assert slot.leased is not None
        slot.accepted = True
        self.perform(self.dispatch.accepted(worker, slot.leased, self.now))

    @precondition(lambda self: any(slot.leased for slot in self.slots.values()))
    @rule(data=st.data())
    def lease_is_refused(self, data: st.DataObject) -> None:
        """The one that stands behind another goes first."""
        worker = self.some_leased(data)
        slot = self.slots[worker]
        epoch = slot.epoch if slot.ahead else slot.leased
        if epoch and (slot.ahead or not slot.accepted):
            request_id, _, _ = slot.lose(epoch)
            if self.known[request_id].where is Where.LEASED:
                self.known[request_id].where = Where.WAITING
            self.perform(self.dispatch.refused(worker, epoch, self.now))

    @precondition(lambda self: any(slot.leased for slot in self.slots.values()))
    @rule(data=st.data(), blamed=st.booleans())
    def slot_ends(self, data: st.DataObject, blamed: bool) -> None:
        """Told twice, as a repeated End would."""
        self.end(self.some_leased(data), blamed=blamed)

    def end(self, worker: str, *, blamed: bool) -> None:
        slot = self.slots[worker]
        epoch = slot.leased
        if epoch:
            is_newest = epoch == slot.epoch
            request_id, _, _ = slot.lose(epoch)
            if self.known[request_id].where is Where.LEASED:
                self.known[request_id].where = Where.DECIDING
            stale = self.dispatch.snapshot(self.now).stale
            self.perform(self.dispatch.slot_ended(worker, epoch, self.now, blamed=blamed))
            self.perform(self.dispatch.slot_ended(worker, epoch, self.now, blamed=blamed))
            assert self.dispatch.snapshot(self.now).stale == stale + (not is_newest)

    @precondition(lambda self: any(known.where is Where.DECIDING for known in self.known.values()))
    @rule(data=st.data(), workers=st.sets(st.sampled_from(WORKERS)), fresh=st.booleans())
    def request_runs_again(self, data: st.DataObject, workers: set[str], fresh: bool) -> None:
        request_id = self.pick(data, Where.DECIDING)
        if request_id is None:
            return
        known = self.known[request_id]
        exclude = frozenset((worker, self.slots[worker].epoch.process) for worker in workers)
        known.exclude |= exclude
        known.where, known.retried, known.fresh = Where.WAITING, True, fresh
        self.perform(self.dispatch.retry(request_id, exclude, self.now, fresh=fresh))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), where=st.sampled_from([Where.WAITING, Where.LEASED, Where.DECIDING]))
    def request_is_finished(self, data: st.DataObject, where: Where) -> None:
        request_id = self.pick(data, where)
        if request_id is not None:
            self.over(self.known[request_id])
            effects = self.dispatch.finished(request_id, self.now)
            assert not any(isinstance(effect, CancelLease) for effect in effects)
            self.perform(effects)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), where=st.sampled_from(Where))
    def client_leaves(self, data: st.DataObject, where: Where) -> None:
        """Cancels the lease exactly where one holds a slot, and ends nothing else."""
        request_id = self.pick(data, where)
        if request_id is None:
            return
        if where is not Where.OVER:
            self.over(self.known[request_id])
        held = [slot.leased for slot in self.slots.values() if slot.request == request_id]
        held += [slot.epoch for slot in self.slots.values() if slot.ahead == request_id]
        effects = self.dispatch.cancel(request_id, self.now)
        assert [effect.epoch for effect in effects if isinstance(effect, CancelLease)] == held
        self.perform(effects)

    @precondition(lambda self: any(slot.counter > 1 for slot in self.slots.values()))
    @rule(agent=st.sampled_from("ab"))
    def agent_is_lost(self, agent: str) -> None:
        """Its next offers come from another incarnation."""
        workers = [worker for worker in WORKERS if worker.startswith(agent)]
        effects = self.dispatch.agent_lost(workers, self.now)
        for worker in workers:
            self.slots[worker].offered = False
        self.perform(effects)
        for worker in workers:
            assert self.slots[worker].request is None
            slot = self.slots[worker]
            self.slots[worker] = Slot(incarnation=slot.incarnation + 1, counter=slot.counter)

    @precondition(lambda self: len(self.known) > MANY_REQUESTS)
    @rule(possible=st.sampled_from([True, True, True, False]))
    def capacity_changes(self, possible: bool) -> None:
        self.possible = possible
        self.perform(self.dispatch.capacity(possible=possible, now=self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.dispatch.tick(self.now))

    @precondition(lambda self: self.dispatch.next_wake() is not None)
    @rule()
    def sleeper_wakes(self) -> None:
        """The time of the next wake is exact: something is then due."""
        due = self.dispatch.next_wake()
        assert due is not None
        assert due > self.now
        self.now = due
        before = self.dispatch.snapshot(self.now)
        effects = self.dispatch.tick(self.now)
        assert effects or self.dispatch.snapshot(self.now).in_flight < before.in_flight
        self.perform(effects)

    # What is always true.

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        snapshot = self.dispatch.snapshot(self.now)
        waiting = self.waiting()
        assert snapshot.queued_requests == len(waiting)
        assert snapshot.queued_bytes == sum(known.request.size_bytes for known in waiting)
        assert snapshot.oldest_seconds == max((self.now - known.arrived for known in waiting), default=0.0)
        assert snapshot.in_flight == sum(slot.request is not None for slot in self.slots.values())
        assert snapshot.ahead == sum(slot.ahead is not None for slot in self.slots.values())
        assert snapshot.idle == sum(self.is_idle(slot) for slot in self.slots.values())
        assert snapshot.deciding == sum(known.where is Where.DECIDING for known in self.known.values())
        assert snapshot.demand == len(waiting) + snapshot.in_flight + snapshot.ahead + snapshot.deciding
        assert snapshot.lease_violations == 0

    @invariant()
    def no_slot_is_idle_in_vain(self) -> None:
        assert not any(self.can_run(known) for known in self.waiting())

    @invariant()
    def nothing_waits_beyond_its_time(self) -> None:
        assert all(self.now < known.expires for known in self.waiting())

    @invariant()
    def the_queue_is_bounded(self) -> None:
        """Those that waited before or ran before are never turned away for a full queue, so they come on top."""
        fresh = [known for known in self.waiting() if not known.retried]
        assert len(fresh) <= LIMITS.max_requests + len(WORKERS)
        assert sum(known.request.size_bytes for known in fresh) <= LIMITS.max_bytes + 20 * len(WORKERS)

    @invariant()
    def every_request_ends_at_most_once(self) -> None:
        assert all(known.ends == (known.where is Where.OVER) for known in self.known.values())

    def teardown(self) -> None:
        """After the storm all gauges are 0, and nothing is remembered of anybody (C31)."""
        for worker in WORKERS:
            self.end(worker, blamed=False)
            self.end(worker, blamed=False)  # what stood behind it, too
            self.perform(self.dispatch.withdraw(worker, self.slots[worker].epoch, self.now))
        self.perform(self.dispatch.agent_lost(WORKERS, self.now))
        self.now += 1000.0
        self.perform(self.dispatch.tick(self.now))
        for request_id, known in self.known.items():
            if known.where is Where.DECIDING:
                self.over(known)
                self.perform(self.dispatch.finished(request_id, self.now))
        assert self.dispatch.snapshot(self.now).demand == 0
        assert self.dispatch.next_wake() is None
        assert all(known.ends == 1 for known in self.known.values())
        assert not any(ledger._present for ledger in self.dispatch._ledgers.values())


TestDispatchKeepsItsPromises = DispatchKeepsItsPromises.TestCase
TestDispatchKeepsItsPromises.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
