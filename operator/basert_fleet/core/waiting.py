"""The requests of one pool that wait for a slot, and nothing about who of them is next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypeAlias

from basert_fleet.core.epoch import Process
from basert_fleet.core.heap import KeyedHeap


class Priority(IntEnum):
    """How urgent a request is; the smaller goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


Exclusion: TypeAlias = tuple[str, Process]
"""A worker and its process."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks of the process that runs it."""

    exclude: frozenset[Exclusion] = frozenset()
    """Processes that must not get it again."""
    fresh: bool = False
    """Only a process that has served nothing yet."""

    def admits(self, worker: str, process: Process, served: int) -> bool:
        """Say whether this process will do."""
        return (worker, process) not in self.exclude and not (self.fresh and served)


ANYTHING = Demand()


@dataclass(frozen=True, slots=True)
class Limits:
    """What may wait in one pool's queue."""

    max_requests: int
    max_bytes: int
    """Sum of the bodies that wait."""
    max_wait_seconds: float


@dataclass(frozen=True, slots=True)
class Request:
    """What the queue must know of a request; the request itself stays with the gateway."""

    id: str
    tenant: str
    weight: float
    """The tenant's share relative to other tenants; above 0."""
    priority: Priority
    size_bytes: int
    max_wait_seconds: float | None
    """How long the client is ready to wait for a slot; may only shorten the pool's limit. None: the pool's limit."""
    deadline: float
    """When its total time is over, on the caller's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Place:
    """A request's place in the queue. It keeps it through refusals and retries."""

    request: Request
    number: int
    """Order of arrival."""
    arrived: float
    expires: float
    """When waiting ends without a slot."""
    demand: Demand = ANYTHING

    def for_retry(self, exclude: frozenset[Exclusion], *, fresh: bool) -> Place:
        """Return the same place, bound by the total time alone, away from these processes too."""
        demand = Demand(self.demand.exclude | exclude, fresh)
        return replace(self, expires=self.request.deadline, demand=demand)


class WaitingRequests:
    """The one owner of what waits: places by class and tenant, first come first served within both.

    Within a tenant, requests with the same demand form one line, so that finding the first that may run costs one look
    per distinct demand (nearly always one, that of a first attempt) and not one per request.
    """

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._lines: dict[Priority, dict[str, dict[Demand, KeyedHeap]]] = {p: {} for p in Priority}
        self._expiry = KeyedHeap()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._places

    @property
    def size_bytes(self) -> int:
        """Sum of the waiting bodies; only `add` and `remove` change it."""
        return self._size_bytes

    def add(self, place: Place) -> None:
        """Let a request wait at its place."""
        request = place.request
        self._places[request.id] = place
        self._size_bytes += request.size_bytes
        self._expiry.put(request.id, place.expires)
        lines = self._lines[request.priority].setdefault(request.tenant, {})
        lines.setdefault(place.demand, KeyedHeap()).put(request.id, place.number)

    def remove(self, request_id: str) -> Place | None:
        """Take a request out; None when it does not wait."""
        place = self._places.pop(request_id, None)
        if place is None:
            return None
        request = place.request
        self._size_bytes -= request.size_bytes
        self._expiry.discard(request_id)
        tenants = self._lines[request.priority]
        lines = tenants[request.tenant]
        lines[place.demand].discard(request_id)
        if not lines[place.demand]:
            del lines[place.demand]
        if not lines:
            del tenants[request.tenant]
        return place

    def ids(self) -> tuple[str, ...]:
        """Return all that wait, in the order of their latest start of waiting."""
        return tuple(self._places)

    def take_expired(self, now: float) -> tuple[Place, ...]:
        """Take out, in order, those whose waiting is over."""
        return tuple(filter(None, map(self.remove, self._expiry.take_until(now))))

    def next_expiry(self) -> float:
        """Return when the next one's waiting is over; infinity when nothing waits."""
        return self._expiry.first_rank()

    def tenants(self, priority: Priority) -> frozenset[str]:
        """Return who waits in this class."""
        return frozenset(self._lines[priority])

    def heads(self, can_run: Callable[[Demand], bool]) -> dict[Priority, list[Place]]:
        """Return, for each class that has any, each tenant's first request that some slot can run now.

        One that needs a fresh process is its tenant's first, wherever it stands.
        """
        heads: dict[Priority, list[Place]] = {}
        for priority, tenants in self._lines.items():
            for lines in tenants.values():
                firsts = [self._first(line) for demand, line in lines.items() if can_run(demand)]
                if firsts:
                    heads.setdefault(priority, []).append(min(firsts, key=_before))
        return heads

    def counts(self) -> Mapping[tuple[Priority, str], int]:
        """Return how many wait, by class and tenant; only those of whom somebody waits."""
        return {
            (priority, tenant): sum(map(len, lines.values()))
            for priority, tenants in self._lines.items()
            for tenant, lines in tenants.items()
        }

    def oldest_arrival(self) -> float | None:
        """Return when the one that came first arrived; None when nothing waits."""
        lines = (line for tenants in self._lines.values() for lines in tenants.values() for line in lines.values())
        return min((self._first(line).arrived for line in lines), default=None)

    def _first(self, line: KeyedHeap) -> Place:
        return self._places[line.first()]


def _before(place: Place) -> tuple[bool, int]:
    return not place.demand.fresh, place.number
