"""The slots of one pool as the gateway knows them: offered, leased, or out of use.

Occupancy is counted from own leases alone (C01), and no timer frees a leased slot (C29): a slot that was leased,
withdrawn, taken back or lost comes back into use by a newer offer and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from basert_fleet.core.epoch import Epoch
from basert_fleet.core.heap import KeyedHeap
from basert_fleet.core.waiting import Exclusion, Place


@dataclass(frozen=True, slots=True)
class Lease:
    """One request on one slot, from the moment it is assigned until the slot has ended it."""

    worker: str
    epoch: Epoch
    place: Place
    wanted: bool = True
    """False once nobody waits for the response any more; the slot is taken all the same."""


class OfferKind(Enum):
    """What an offer says about its slot."""

    VALID = "valid"
    STALE = "stale"
    """Not newer than what was heard last."""
    FOREIGN = "foreign"
    """From another incarnation, while the slot is leased: two processes would stand behind one name."""


class Slots:
    """The one owner of offers and leases: a worker has at most one of either."""

    def __init__(self) -> None:
        self._heard: dict[str, Epoch] = {}  # the last epoch of each worker, in use or not
        self._idle: dict[str, Epoch] = {}  # the longest idle first
        self._leases: dict[str, Lease] = {}
        self._worker_of: dict[str, str] = {}  # by request
        self._accept_by = KeyedHeap()

    def __len__(self) -> int:
        return len(self._idle) + len(self._leases)

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

    def put_idle(self, worker: str, epoch: Epoch) -> None:
        """Take a valid offer of a worker that is not leased (any more)."""
        self._heard[worker] = epoch
        self._idle.pop(worker, None)  # a renewed offer goes to the end of the order
        self._idle[worker] = epoch

    def withdraw(self, worker: str, epoch: Epoch) -> bool:
        """Take an idle slot out of use; False when that epoch is not the slot's."""
        if self._heard.get(worker) != epoch:
            return False
        self._idle.pop(worker, None)
        return True

    def can_run(self, exclude: frozenset[Exclusion]) -> bool:
        """Say whether a request with these exclusions can run now."""
        return any(True for _ in self._idle_for(exclude))

    def lease(self, place: Place, *, accept_by: float) -> Lease:
        """Lease the slot that has been idle longest of those that can run this request.

        The longest idle one, so that work, wear and canaries spread evenly over the pool.

        Raises:
            StopIteration: there is none; ask `can_run` first.
        """
        worker = next(self._idle_for(place.exclude))
        lease = Lease(worker, self._idle.pop(worker), place)
        self._leases[worker] = lease
        self._worker_of[place.request.id] = worker
        self._accept_by.put(worker, accept_by)
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
        self._idle.pop(worker, None)
        self._heard.pop(worker, None)

    def _idle_for(self, exclude: frozenset[Exclusion]) -> Iterator[str]:
        """Yield the longest idle first; the first comes after at most one look per exclusion, plus one."""
        return (worker for worker, epoch in self._idle.items() if (worker, epoch.generation) not in exclude)

    def overdue(self, now: float) -> Iterator[Lease]:
        """Yield each lease that should have been accepted by now; the caller ends it."""
        for worker in self._accept_by.take_until(now):
            yield self._leases[worker]

    def next_overdue(self) -> float | None:
        """Return when the next lease must have been accepted; None when all are."""
        return self._accept_by.first_rank()
