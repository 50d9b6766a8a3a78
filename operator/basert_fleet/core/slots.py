"""The slots of one pool as the gateway knows them: offered, leased, or out of use.

Occupancy is counted from own leases alone (C01), and no timer frees a leased slot (C29): a slot that was leased,
withdrawn, taken back or lost comes back into use by a newer offer and by nothing else.

A leased slot may be offered ahead: its response is over, and while the slot is being verified the next lease already
travels. A lease on such an offer stands behind the current one and becomes the current one by that one's end; its agent
accepts it only then, or refuses it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
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
    """What an offer promises."""

    IDLE = "idle"
    """The slot is proven idle and clean."""
    AHEAD = "ahead"
    """It is being verified: a lease is accepted once it is found clean, else refused."""


class Standing(Enum):
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
    """The one owner of offers and leases: a worker has at most one of either, and one of either ahead."""

    def __init__(self) -> None:
        self._heard: dict[str, Epoch] = {}  # the last epoch of each worker, in use or not
        self._idle: dict[str, Idle] = {}
        self._order: list[Idle] = []  # the same, sorted: the freshest process first
        self._offered_ahead: dict[str, Idle] = {}  # the longest offered first
        self._parked: dict[str, Idle] = {}  # offered, and out of reach for the moment
        self._offers = 0
        self._leases: dict[str, Lease] = {}
        self._leased_ahead: dict[str, Lease] = {}
        self._worker_of: dict[str, str] = {}  # by request
        self._accept_by = KeyedHeap()  # by request
        self._recalled: set[str] = set()  # requests leased ahead

    def __len__(self) -> int:
        return len(self._idle | self._parked | self._leases)

    @property
    def idle_count(self) -> int:
        """How many slots are offered and free."""
        return len(self._idle)

    @property
    def open_count(self) -> int:
        """How many leases can be given now, those ahead included."""
        return len(self._idle) + len(self._offered_ahead)

    @property
    def lease_count(self) -> int:
        """How many slots are leased."""
        return len(self._leases)

    @property
    def ahead_count(self) -> int:
        """How many leases stand behind another one."""
        return len(self._leased_ahead)

    def judge_offer(self, worker: str, epoch: Epoch) -> Standing:
        """Say whether an offer may be taken; nothing changes."""
        last = self._heard.get(worker)
        if last is None:
            return Standing.VALID
        if last.incarnation != epoch.incarnation:
            return Standing.FOREIGN if worker in self._leases else Standing.VALID
        return Standing.VALID if epoch.is_newer_than(last) else Standing.STALE

    def put_idle(self, worker: str, epoch: Epoch, served: int) -> None:
        """Take a valid offer of a worker that is not leased (any more), whose process has ended so many leases."""
        self._add_idle(self._heard_of(worker, epoch, served))

    def put_ahead(self, worker: str, epoch: Epoch, served: int) -> bool:
        """Take a valid offer ahead of a worker that is leased; False if it has a lease ahead already."""
        if worker in self._leased_ahead:
            return False
        self._offered_ahead[worker] = self._heard_of(worker, epoch, served)
        return True

    def _heard_of(self, worker: str, epoch: Epoch, served: int) -> Idle:
        """Note a worker's newest offer, which takes the place of any before."""
        self._heard[worker] = epoch
        self._drop_idle(worker)
        self._offers += 1
        return Idle(served, -self._offers, worker, epoch)

    def withdraw(self, worker: str, epoch: Epoch) -> bool:
        """Take an offered slot out of use; False when that epoch is not the slot's."""
        if self._heard.get(worker) != epoch:
            return False
        self._drop_idle(worker)
        return True

    def park(self, worker: str) -> None:
        """Keep an offered slot from new leases until `unpark`; one that is not offered is left alone."""
        idle = self._idle.get(worker) or self._offered_ahead.get(worker)
        if idle is not None:
            self._drop_idle(worker)
            self._parked[worker] = idle

    def unpark(self, worker: str) -> None:
        """Take a parked slot into use again, by the offer that it had."""
        idle = self._parked.pop(worker, None)
        if idle is None:
            return
        if worker in self._leases:
            self._offered_ahead[worker] = idle
        else:
            self._add_idle(idle)

    def can_run(self, demand: Demand) -> bool:
        """Say whether a request with this demand can run now."""
        return self._choice(demand) is not None

    def lease(self, place: Place, *, now: float, accept_by: float) -> Lease:
        """Lease the slot that suits this request best, of those that can run it.

        A first attempt goes to the process that has served most, the longest idle of equals: under a fault that grows
        with use, workers so come to it one after another and not all at once. A retry goes to the freshest. An offer
        ahead is only taken where no slot is idle.

        Raises:
            LookupError: there is none; ask `can_run` first.
        """
        idle = self._choice(place.demand)
        if idle is None:
            raise LookupError(f"no idle slot can run {place.request.id}")
        leases = self._leased_ahead if idle.worker in self._leases else self._leases
        self._drop_idle(idle.worker)
        lease = leases[idle.worker] = Lease(idle.worker, idle.epoch, place, now)
        self._worker_of[place.request.id] = idle.worker
        self._accept_by.put(place.request.id, accept_by)
        return lease

    def recall(self) -> Iterator[Lease]:
        """Yield, once, each lease ahead for which an idle slot is there now; it keeps its place until it is refused."""
        free = len(self._idle) - len(self._recalled)
        for lease in self._leased_ahead.values():
            request = lease.place.request.id
            if free <= 0:
                return
            if lease.wanted and request not in self._recalled and self._idle_choice(lease.place.demand):
                free -= 1
                self._recalled.add(request)
                yield lease

    def lease_of(self, request_id: str) -> Lease | None:
        """Return the lease that runs this request, or will."""
        worker = self._worker_of.get(request_id)
        if worker is None:
            return None
        current = self._leases[worker]
        return current if current.place.request.id == request_id else self._leased_ahead[worker]

    def lease_on(self, worker: str) -> Lease | None:
        """Return the current lease on this worker."""
        return self._leases.get(worker)

    def lease_at(self, worker: str, epoch: Epoch) -> Lease | None:
        """Return the lease of this epoch, current or ahead."""
        for leases in (self._leases, self._leased_ahead):
            lease = leases.get(worker)
            if lease is not None and lease.epoch == epoch:
                return lease
        return None

    def is_current(self, worker: str, epoch: Epoch) -> bool:
        """Say whether this is the last epoch heard of the worker."""
        return self._heard.get(worker) == epoch

    def accept(self, lease: Lease) -> None:
        """Note that the agent took the lease: it stands now until the slot has ended it."""
        self._accept_by.discard(lease.place.request.id)

    def unwant(self, lease: Lease) -> None:
        """Note that nobody waits for the response any more."""
        leases = self._leases if self._leases[lease.worker].epoch == lease.epoch else self._leased_ahead
        leases[lease.worker] = replace(lease, wanted=False)

    def end(self, lease: Lease) -> None:
        """Forget a lease. After a current one its slot is what was offered or leased ahead, or else out of use."""
        worker, request = lease.worker, lease.place.request.id
        del self._worker_of[request]
        self._accept_by.discard(request)
        self._recalled.discard(request)
        if self._leases[worker].epoch != lease.epoch:
            del self._leased_ahead[worker]
            return
        del self._leases[worker]
        if worker in self._leased_ahead:
            ahead = self._leases[worker] = self._leased_ahead.pop(worker)
            self._recalled.discard(ahead.place.request.id)
        elif worker in self._offered_ahead:
            self._add_idle(self._offered_ahead.pop(worker))

    def forget(self, worker: str) -> None:
        """Forget a worker that is not leased (any more), its epochs included."""
        self._drop_idle(worker)
        self._heard.pop(worker, None)

    def overdue(self, now: float) -> Iterator[Lease]:
        """Yield each lease that should have been accepted by now; the caller ends it."""
        for request_id in self._accept_by.take_until(now):
            lease = self.lease_of(request_id)
            if lease is not None:
                yield lease

    def next_overdue(self) -> float:
        """Return when the next lease must have been accepted; infinity when all are."""
        return self._accept_by.first_rank()

    def _choice(self, demand: Demand) -> Idle | None:
        return self._idle_choice(demand) or self._first_admitted(demand, self._offered_ahead.values())

    def _idle_choice(self, demand: Demand) -> Idle | None:
        """Return the idle slot for a request; the first look succeeds unless processes are excluded."""
        if demand is ANYTHING:
            return self._order[-1] if self._order else None
        return self._first_admitted(demand, self._order)

    def _first_admitted(self, demand: Demand, offers: Iterable[Idle]) -> Idle | None:
        return next((i for i in offers if demand.admits(i.worker, i.epoch.process, i.served)), None)

    def _add_idle(self, idle: Idle) -> None:
        self._idle[idle.worker] = idle
        insort(self._order, idle)

    def _drop_idle(self, worker: str) -> None:
        self._parked.pop(worker, None)
        self._offered_ahead.pop(worker, None)
        idle = self._idle.pop(worker, None)
        if idle is not None:
            del self._order[bisect_left(self._order, idle)]
