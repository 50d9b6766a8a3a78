"""The slots of one pool as the gateway knows them: offered, leased, or out of use.

Occupancy is counted from own leases alone (C01), and no timer frees a leased slot (C29): a slot that was leased,
withdrawn, taken back or lost comes back into use by a newer offer and by nothing else.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from basert_fleet.core.epoch import Epoch
from basert_fleet.core.heap import KeyedHeap
from basert_fleet.core.waiting import ANYTHING, Demand, Place


@dataclass(frozen=True, slots=True)
class Lease:
    """One request on one slot, from the moment it is assigned until the slot has ended it."""

    worker: str
    epoch: Epoch
    place: Place
    since: float
    """When it was assigned."""
    wanted: bool = True
    """False once nobody waits for the response any more; the slot is taken all the same."""


class OfferKind(Enum):
    """What an offer says about its slot."""

    VALID = "valid"
    STALE = "stale"
    """Not newer than what was heard last."""
    FOREIGN = "foreign"
    """From another incarnation, while the slot is leased: two processes would stand behind one name."""


class Idle(NamedTuple):
    """One offered slot; ordered by how much its process has served, then by how lately it was offered."""

    served: int
    """Leases that its process has ended."""
    seniority: int
    """Grows the longer ago it was offered; no two have the same."""
    worker: str
    epoch: Epoch


class Slots:
    """The one owner of offers and leases: a worker has at most one of either."""

    def __init__(self) -> None:
        self._heard: dict[str, Epoch] = {}  # the last epoch of each worker, in use or not
        self._idle: dict[str, Idle] = {}
        self._order: list[Idle] = []  # the same, sorted: the freshest process first
        self._parked: dict[str, Idle] = {}  # offered, and out of reach for the moment
        self._offers = 0
        self._leases: dict[str, Lease] = {}
        self._worker_of: dict[str, str] = {}  # by request
        self._accept_by = KeyedHeap()

    def __len__(self) -> int:
        return len(self._idle) + len(self._parked) + len(self._leases)

    @property
    def idle_count(self) -> int:
        """How many slots are offered and free."""
        return len(self._idle)

    @property
    def lease_count(self) -> int:
        """How many slots are leased."""
        return len(self._leases)

    def judge_offer(self, worker: str, epoch: Epoch) -> OfferKind:
        """Say whether an offer may be taken; nothing changes."""
        last = self._heard.get(worker)
        if last is None:
            return OfferKind.VALID
        if last.incarnation != epoch.incarnation:
            return OfferKind.FOREIGN if worker in self._leases else OfferKind.VALID
        return OfferKind.VALID if epoch.is_newer_than(last) else OfferKind.STALE

    def put_idle(self, worker: str, epoch: Epoch, served: int) -> None:
        """Take a valid offer of a worker that is not leased (any more), whose process has ended so many leases."""
        self._heard[worker] = epoch
        self._drop_idle(worker)
        self._offers += 1
        self._add_idle(Idle(served, -self._offers, worker, epoch))

    def withdraw(self, worker: str, epoch: Epoch) -> bool:
        """Take an idle slot out of use; False when that epoch is not the slot's."""
        if self._heard.get(worker) != epoch:
            return False
        self._drop_idle(worker)
        return True

    def park(self, worker: str) -> None:
        """Keep an offered slot from new leases until `unpark`; one that is leased or unknown is left alone."""
        idle = self._idle.get(worker)
        if idle is not None:
            self._drop_idle(worker)
            self._parked[worker] = idle

    def unpark(self, worker: str) -> None:
        """Take a parked slot into use again, by the offer that it had."""
        idle = self._parked.pop(worker, None)
        if idle is not None:
            self._add_idle(idle)

    def can_run(self, demand: Demand) -> bool:
        """Say whether a request with this demand can run now."""
        return self._choice(demand) is not None

    def lease(self, place: Place, *, now: float, accept_by: float) -> Lease:
        """Lease the slot that suits this request best, of those that can run it.

        A first attempt goes to the process that has served most, the longest idle of equals: under a fault that grows
        with use, workers so come to it one after another and not all at once. A retry goes to the freshest.

        Raises:
            LookupError: there is none; ask `can_run` first.
        """
        idle = self._choice(place.demand)
        if idle is None:
            raise LookupError(f"no idle slot can run {place.request.id}")
        self._drop_idle(idle.worker)
        lease = Lease(idle.worker, idle.epoch, place, now)
        self._leases[idle.worker] = lease
        self._worker_of[place.request.id] = idle.worker
        self._accept_by.put(idle.worker, accept_by)
        return lease

    def lease_of(self, request_id: str) -> Lease | None:
        """Return the lease that runs this request."""
        worker = self._worker_of.get(request_id)
        return None if worker is None else self._leases[worker]

    def lease_on(self, worker: str) -> Lease | None:
        """Return the lease on this worker."""
        return self._leases.get(worker)

    def is_current(self, worker: str, epoch: Epoch) -> bool:
        """Say whether this is the last epoch heard of the worker."""
        return self._heard.get(worker) == epoch

    def accept(self, lease: Lease) -> None:
        """Note that the agent took the lease: it stands now until the slot has ended it."""
        self._accept_by.discard(lease.worker)

    def unwant(self, lease: Lease) -> None:
        """Note that nobody waits for the response any more."""
        self._leases[lease.worker] = replace(lease, wanted=False)

    def end(self, lease: Lease) -> None:
        """Take a leased slot out of use, until it is offered anew."""
        del self._leases[lease.worker]
        del self._worker_of[lease.place.request.id]
        self._accept_by.discard(lease.worker)

    def forget(self, worker: str) -> None:
        """Forget a worker that is not leased (any more), its epochs included."""
        self._drop_idle(worker)
        self._heard.pop(worker, None)

    def overdue(self, now: float) -> Iterator[Lease]:
        """Yield each lease that should have been accepted by now; the caller ends it."""
        for worker in self._accept_by.take_until(now):
            yield self._leases[worker]

    def next_overdue(self) -> float:
        """Return when the next lease must have been accepted; infinity when all are."""
        return self._accept_by.first_rank()

    def _choice(self, demand: Demand) -> Idle | None:
        """Return the slot for a request; the first look succeeds unless processes are excluded."""
        if demand is ANYTHING:
            return self._order[-1] if self._order else None
        return next((i for i in self._order if demand.admits(i.worker, i.epoch.process, i.served)), None)

    def _add_idle(self, idle: Idle) -> None:
        self._idle[idle.worker] = idle
        insort(self._order, idle)

    def _drop_idle(self, worker: str) -> None:
        self._parked.pop(worker, None)
        idle = self._idle.pop(worker, None)
        if idle is not None:
            del self._order[bisect_left(self._order, idle)]
