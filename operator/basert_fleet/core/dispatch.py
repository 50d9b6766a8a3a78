"""Which waiting request runs on which offered slot of one pool, and which request is refused.

Decided here: places, priority, fairness, deadlines, and that a slot never has two leases. Left to others: whether an
attempt was good (`delivery`), whether a slot is clean (its agent, who then offers it), and all doing: each call returns
the effects that the caller must perform, in order.

A request is in exactly one place until it is over::

    enqueue -> WAITING -> LEASED -> DECIDING -> finished
                  ^          |          |
                  +----------+----------+
                 refused, Retake      retry

A slot is offered, leased, or out of use. Only a newer offer brings it (back) into use (C02, C29). While its last lease
is being verified it may be offered ahead, so that the next lease travels meanwhile; see `slots`. A lease ahead is asked
back (`RecallLease`) as soon as another slot could run its request: that one is proven clean already.

Who is next: first the class, then the tenant in it, then the tenant's first request.

- The class: the highest, where a class counts one higher for each AGING_SECONDS that have passed since the oldest of
  its requests that could run now arrived, up to the highest. Classes that count the same take turns, so that an old
  backlog of low requests gets a share of the slots and not all of them. A class rises as a whole: if each request rose
  alone, a tenant with many old requests would overtake the fresh ones of others, and fairness would be lost wherever
  requests are long.
- The tenant: see `fairness`.
- Requests that may not run on any idle slot are skipped; they keep their place.
- A request that needs a fresh process goes before all others once there is one: it has failed on others already, and a
  fresh process does not stay fresh.

`now` is the caller's monotonic clock in seconds and must never go back. Each call costs O(tenants + slots + log
requests) per request that it moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from typing import TypeAlias

from basert_fleet.core.epoch import Epoch
from basert_fleet.core.fairness import Ledger
from basert_fleet.core.slots import Lease, OfferKind, Slots, Standing
from basert_fleet.core.waiting import Exclusion, Limits, Place, Priority, Request, WaitingRequests

__all__ = [
    "Assign",
    "CancelLease",
    "Dispatch",
    "Dropped",
    "Effect",
    "Exclusion",
    "LeaseLost",
    "Limits",
    "OfferKind",
    "Priority",
    "RecallLease",
    "Refusal",
    "Refuse",
    "Request",
    "Retake",
    "Snapshot",
]

ACCEPT_SECONDS = 2.0
"""Within this a lease is accepted or the request runs elsewhere (design, section 3). It is no proof about the slot."""
AGING_SECONDS = 30.0
"""Waiting that lifts a class by one: low competes with high after a minute, a fifth of the usual waiting limit."""
FIRST_SERVICE_SECONDS = 10.0
"""Assumed length of a lease before the first one ended; only Retry-After depends on it."""
SERVICE_SMOOTHING = 0.2
"""Weight of the latest lease in the mean length: about the last ten leases count."""
RETRY_AFTER_SECONDS = (1, 120)
"""Bounds of Retry-After (design, section 6)."""


class Refusal(StrEnum):
    """Why a request is refused: the code of its error."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    NO_CAPACITY = "no_capacity"
    REQUEST_TIMEOUT = "request_timeout"


@dataclass(frozen=True, slots=True)
class Assign:
    """Send the request to this worker, as the lease of this epoch."""

    request_id: str
    worker: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with this error; it is over here."""

    request_id: str
    code: Refusal
    retry_after_seconds: int | None
    """None where waiting alone does not help."""


@dataclass(frozen=True, slots=True)
class CancelLease:
    """Tell the agent that nobody wants this lease's response any more. The slot stays out of use."""

    worker: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class RecallLease:
    """Ask the agent to refuse this lease if it has not accepted it yet: another slot is idle."""

    worker: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Retake:
    """The agent did not accept this lease in time: the request waits again. Ignore what still comes of the lease."""

    request_id: str
    worker: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """The lease is gone without an end. Decide about the request: `retry` or `finished`."""

    request_id: str
    worker: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Dropped:
    """A lease that nobody wanted any more is gone without an end: forget it."""

    worker: str
    epoch: Epoch


Effect: TypeAlias = Assign | Refuse | CancelLease | RecallLease | Retake | LeaseLost | Dropped
Effects: TypeAlias = tuple[Effect, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pool's queue and slots at one moment; all but the two counters is derived from what is there."""

    queued: Mapping[tuple[Priority, str], int]
    """By class and tenant; only where somebody waits."""
    queued_bytes: int
    oldest_seconds: float
    """How long ago the first of those who wait arrived; 0 when nobody waits."""
    in_flight: int
    """Leased slots, until they have ended."""
    ahead: int
    """Requests whose lease stands behind another one."""
    deciding: int
    """Requests whose lease is over and whose fate is open."""
    idle: int
    lease_violations: int
    """Offers by another incarnation for a worker that is still leased. They were refused; taking one would have put two
    leases on one slot."""
    stale: int
    """Messages of an epoch that is over, dropped."""

    @property
    def queued_requests(self) -> int:
        """How many wait."""
        return sum(self.queued.values())

    @property
    def demand(self) -> int:
        """How many slots would be busy if there were enough."""
        return self.queued_requests + self.in_flight + self.ahead + self.deciding


class Dispatch:
    """One pool's queue and slots.

    Each call returns what must be done because of it. Calls about requests that are not known (any more) do nothing,
    for a client may leave at any moment.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        """May be replaced at any time; holds for requests that come later."""
        self._waiting = WaitingRequests()
        self._slots = Slots()
        self._deciding: dict[str, Place] = {}
        self._aftermaths: dict[str, Lease] = {}  # by worker: the last lease, while its tenant is charged on
        self._ledgers = {priority: Ledger() for priority in Priority}
        self._last_turn = dict.fromkeys(Priority, -1)
        self._turns = 0
        self._arrivals = 0
        self._possible = True
        self._service_seconds = FIRST_SERVICE_SECONDS
        self._lease_violations = 0
        self._stale = 0

    def enqueue(self, request: Request, now: float) -> Effects:
        """Take a new request: assign it, let it wait, or refuse it.

        One that an idle slot can take at once is never refused for a full queue.

        Raises:
            ValueError: a request of this id is not over yet.
        """
        if self.knows(request.id):
            raise ValueError(f"request {request.id} is already here")
        effects = self._conclude((), now)  # frees the room of those whose time is over
        if self._possible and not self._slots.open_count and self._is_full_for(request):
            return *effects, Refuse(request.id, Refusal.QUEUE_FULL, self._retry_after())
        self._arrivals += 1
        asked = self.limits.max_wait_seconds if request.max_wait_seconds is None else request.max_wait_seconds
        expires = min(now + min(asked, self.limits.max_wait_seconds), request.deadline)
        self._wait(Place(request, self._arrivals, now, expires), now)
        return self._conclude(effects, now)

    def knows(self, request_id: str) -> bool:
        """Say whether a request of this id is not over, or still holds a slot after its client left."""
        return (
            request_id in self._waiting or request_id in self._deciding or self._slots.lease_of(request_id) is not None
        )

    def would_violate(self, worker: str, epoch: Epoch) -> bool:
        """Say whether an offer of this epoch would put two leases on one slot; `offer` refuses it."""
        return self._slots.judge_offer(worker, epoch) is Standing.FOREIGN

    def offer(
        self, worker: str, epoch: Epoch, now: float, *, served: int = 0, kind: OfferKind = OfferKind.IDLE
    ) -> Effects:
        """Take a slot into use. A newer offer ends an older lease of that slot; an older one is dropped.

        `served` is how many leases its process has ended. One that is offered ahead keeps its current lease; where the
        gateway knows of none (it took it back), it is an offer like any other, for the agent accepts nothing too early.
        """
        effects: Effects = ()
        standing = self._slots.judge_offer(worker, epoch)
        if standing is Standing.FOREIGN:
            self._lease_violations += 1
        elif standing is Standing.STALE:
            self._stale += 1
        elif kind is OfferKind.AHEAD and self._slots.lease_on(worker) is not None:
            if not self._slots.put_ahead(worker, epoch, served):
                self._stale += 1
        else:
            effects = self._lose(worker, now)
            self._close_aftermath(worker, now)
            self._slots.put_idle(worker, epoch, served)
        return self._conclude(effects, now)

    def withdraw(self, worker: str, epoch: Epoch, now: float) -> Effects:
        """Take an offer back. A lease that crossed this on its way will be refused by the agent, and is left alone."""
        if not self._slots.withdraw(worker, epoch):
            self._stale += 1
        return self._conclude((), now)

    def accepted(self, worker: str, epoch: Epoch, now: float) -> Effects:
        """Note that the agent took the lease: from now on no timer ends it (C29)."""
        lease = self._lease(worker, epoch)
        if lease is not None:
            self._slots.accept(lease)
        return self._conclude((), now)

    def refused(self, worker: str, epoch: Epoch, now: float) -> Effects:
        """Put the request back to its place: the lease came too late for its offer, and was no attempt."""
        lease = self._lease(worker, epoch)
        if lease is not None:
            self._put_back(lease, now)
        return self._conclude((), now)

    def slot_ended(self, worker: str, epoch: Epoch, now: float, *, blamed: bool = False) -> Effects:
        """Note that the slot is done with its lease: charge the tenant; the slot is out of use until offered anew.

        `blamed` says that the request may be the cause of what the worker has to do before that: its tenant is charged
        for it too, or one that sends nothing but such requests would take the time of all others.

        The request, unless it was given up before, now awaits `retry` or `finished`. Told twice is fine.
        """
        lease = self._slots.lease_at(worker, epoch)
        if lease is not None:
            self._end(lease, now, blamed=blamed)
        elif not self._slots.is_current(worker, epoch):
            self._stale += 1
        return self._conclude((), now)

    def retry(self, request_id: str, exclude: frozenset[Exclusion], now: float, *, fresh: bool = False) -> Effects:
        """Let a request whose lease is over run again, in its old place, away from these processes.

        `fresh` asks for a process that has served nothing yet; such a process then goes to no other request before it.

        Earlier exclusions stay. It is never refused for a full queue, and waits as long as its total time allows.

        Raises:
            ValueError: the request still waits or is leased.
        """
        if request_id in self._waiting or self._slots.lease_of(request_id):
            raise ValueError(f"request {request_id} cannot be retried before its lease is over")
        place = self._deciding.pop(request_id, None)
        if place is not None:
            self._wait(place.for_retry(exclude, fresh=fresh), now)
        return self._conclude((), now)

    def finished(self, request_id: str, now: float) -> Effects:
        """Forget a request, whatever became of it. A slot that it holds stays taken until `slot_ended`."""
        self._give_up(request_id, now)
        return self._conclude((), now)

    def cancel(self, request_id: str, now: float) -> Effects:
        """Forget a request whose client is gone; its lease is cancelled, its slot taken until `slot_ended` (C03)."""
        lease = self._give_up(request_id, now)
        return self._conclude((CancelLease(lease.worker, lease.epoch),) if lease else (), now)

    def agent_suspended(self, workers: Iterable[str], now: float) -> Effects:
        """Give these workers no new leases: their agent is out of reach. What they have goes on."""
        for worker in workers:
            self._slots.park(worker)
        return self._conclude((), now)

    def agent_resumed(self, workers: Iterable[str], now: float) -> Effects:
        """Use these workers' offers again: their agent is in reach, and no message was lost meanwhile."""
        for worker in workers:
            self._slots.unpark(worker)
        return self._conclude((), now)

    def agent_lost(self, workers: Iterable[str], now: float) -> Effects:
        """Forget these workers: their agent is gone. Their leases are lost; a new agent may offer them."""
        effects: Effects = ()
        for worker in workers:
            effects += self._lose(worker, now)
            self._close_aftermath(worker, now)
            self._slots.forget(worker)
        return self._conclude(effects, now)

    def capacity(self, *, possible: bool, now: float) -> Effects:
        """Say whether the pool can have a slot at all. While it cannot, all who wait and all who come are refused."""
        self._possible = possible
        return self._conclude((), now)

    def tick(self, now: float) -> Effects:
        """Do what is due by now."""
        return self._conclude((), now)

    def next_wake(self) -> float | None:
        """Return when `tick` has something to do next if nothing else happens; None if never."""
        due = min(self._waiting.next_expiry(), self._slots.next_overdue())
        return None if due == inf else due

    def snapshot(self, now: float) -> Snapshot:
        """Return what there is."""
        oldest = self._waiting.oldest_arrival()
        return Snapshot(
            queued=self._waiting.counts(),
            queued_bytes=self._waiting.size_bytes,
            oldest_seconds=0.0 if oldest is None else now - oldest,
            in_flight=self._slots.lease_count,
            ahead=self._slots.ahead_count,
            deciding=len(self._deciding),
            idle=self._slots.idle_count,
            lease_violations=self._lease_violations,
            stale=self._stale,
        )

    # What every call ends with. Then nothing is overdue, and no idle slot could run a request that waits.

    def _conclude(self, effects: Effects, now: float) -> Effects:
        if self._slots.next_overdue() <= now:
            effects = *effects, *self._take_back(now)
        if self._waiting:
            if self._waiting.next_expiry() <= now:
                effects = *effects, *self._expire(now)
            if not self._possible:
                effects = *effects, *self._dismiss(now)
            elif self._slots.open_count:
                effects = *effects, *self._assign(now)
        if self._slots.ahead_count and self._slots.idle_count:
            effects = *effects, *(RecallLease(lease.worker, lease.epoch) for lease in self._slots.recall())
        return effects

    def _take_back(self, now: float) -> Iterator[Effect]:
        for lease in self._slots.overdue(now):
            self._put_back(lease, now)
            if lease.wanted:
                yield CancelLease(lease.worker, lease.epoch)
                yield Retake(lease.place.request.id, lease.worker, lease.epoch)
            else:  # its cancel was sent when the client left
                yield Dropped(lease.worker, lease.epoch)

    def _expire(self, now: float) -> Iterator[Effect]:
        for place in self._waiting.take_expired(now):
            request = place.request
            self._leave(request, now)
            if now >= request.deadline:
                yield Refuse(request.id, Refusal.REQUEST_TIMEOUT, None)
            else:
                yield Refuse(request.id, Refusal.QUEUE_TIMEOUT, self._retry_after())

    def _dismiss(self, now: float) -> Iterator[Effect]:
        for request_id in self._waiting.ids():
            self._give_up(request_id, now)
            yield Refuse(request_id, Refusal.NO_CAPACITY, None)

    def _assign(self, now: float) -> Iterator[Effect]:
        while self._waiting and self._slots.open_count and (place := self._next(now)) is not None:
            request = place.request
            self._waiting.remove(request.id)
            lease = self._slots.lease(place, now=now, accept_by=now + ACCEPT_SECONDS)
            self._ledgers[request.priority].start(request.tenant, request.id, request.weight, now)
            self._turns += 1
            self._last_turn[request.priority] = self._turns
            yield Assign(request.id, lease.worker, lease.epoch)

    def _next(self, now: float) -> Place | None:
        """Return who is next of those that an idle slot can run."""
        heads = self._waiting.heads(self._slots.can_run)
        if not heads:
            return None
        rescued = [place for places in heads.values() for place in places if place.demand.fresh]
        if rescued:
            return min(rescued, key=lambda place: place.number)

        def turn(priority: Priority) -> tuple[int, int]:
            oldest_seconds = now - min(place.arrived for place in heads[priority])
            return max(Priority.HIGH, priority - int(oldest_seconds // AGING_SECONDS)), self._last_turn[priority]

        chosen = min(heads, key=turn) if len(heads) > 1 else next(iter(heads))
        ledger = self._ledgers[chosen]
        return min(heads[chosen], key=lambda place: (ledger.rank(place.request.tenant, now), place.number))

    # How a request or a lease moves; each move has one method.

    def _wait(self, place: Place, now: float) -> None:
        request = place.request
        waiting = self._waiting.tenants(request.priority)
        if request.tenant not in waiting:
            self._ledgers[request.priority].join(request.tenant, request.weight, waiting, now)
        self._waiting.add(place)

    def _leave(self, request: Request, now: float) -> None:
        """Follows each loss of a request or lease: its tenant may have nothing left here."""
        self._ledgers[request.priority].leave(request.tenant, self._waiting.tenants(request.priority), now)

    def _give_up(self, request_id: str, now: float) -> Lease | None:
        """Forget the request; return the lease that still holds its slot."""
        self._deciding.pop(request_id, None)
        place = self._waiting.remove(request_id)
        if place is not None:
            self._leave(place.request, now)
        lease = self._slots.lease_of(request_id)
        if lease is not None:
            self._slots.unwant(lease)
        return lease

    def _end(self, lease: Lease, now: float, *, blamed: bool = False) -> None:
        request = lease.place.request
        ledger = self._ledgers[request.priority]
        self._close_aftermath(lease.worker, now)
        self._slots.end(lease)
        self._service_seconds += SERVICE_SMOOTHING * (now - lease.since - self._service_seconds)
        if lease.wanted:
            self._deciding[request.id] = lease.place
        ledger.end(request.tenant, request.id, now)
        if blamed:
            self._aftermaths[lease.worker] = lease
            ledger.start_aftermath(request.tenant, lease.worker, request.weight, now)
        self._leave(request, now)

    def _close_aftermath(self, worker: str, now: float) -> None:
        """Stop charging for what the worker did since its last lease."""
        lease = self._aftermaths.pop(worker, None)
        if lease is not None:
            request = lease.place.request
            self._ledgers[request.priority].end_aftermath(request.tenant, worker, now)
            self._leave(request, now)

    def _lose(self, worker: str, now: float) -> Effects:
        effects: Effects = ()
        while (lease := self._slots.lease_on(worker)) is not None:  # by its end, one ahead becomes the current one
            self._end(lease, now)
            lost = LeaseLost(lease.place.request.id, worker, lease.epoch)
            effects = *effects, lost if lease.wanted else Dropped(worker, lease.epoch)
        return effects

    def _put_back(self, lease: Lease, now: float) -> None:
        """Let a request wait again whose lease never reached a process; its slot is in doubt and so out of use."""
        request = lease.place.request
        self._slots.end(lease)
        self._ledgers[request.priority].void(request.tenant, request.id)
        if lease.wanted:
            self._wait(lease.place, now)
        self._leave(request, now)

    def _lease(self, worker: str, epoch: Epoch) -> Lease | None:
        """Return the worker's lease if it is of this epoch; else the message was stale."""
        lease = self._slots.lease_at(worker, epoch)
        if lease is None:
            self._stale += 1
        return lease

    def _is_full_for(self, request: Request) -> bool:
        return (
            len(self._waiting) >= self.limits.max_requests
            or self._waiting.size_bytes + request.size_bytes > self.limits.max_bytes
        )

    def _retry_after(self) -> int:
        """Estimate when the queue of now has been worked off."""
        least, most = RETRY_AFTER_SECONDS
        seconds = self._service_seconds * (len(self._waiting) + 1) / max(1, len(self._slots))
        return min(max(least, ceil(seconds)), most)
