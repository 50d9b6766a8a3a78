"""Shares, debts and aging, seen from outside: closed-loop tenants against a pool, in simulated time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import pytest

from basert_fleet.core.dispatch import AGING_SECONDS, Assign, Dispatch, Effect, Limits, Priority, Request
from basert_fleet.core.epoch import Epoch
from basert_fleet.core.fairness import (
    ADVANCE_SECONDS,
    DEBT_MEMORY_SECONDS,
    MAX_AFTERMATH_SECONDS,
    MAX_DEBTORS,
    MAX_IMBALANCE_SECONDS,
    Ledger,
)

FOREVER = 1e9
CLIENT_SECONDS = 0.001
"""What a closed-loop client needs to send its next request: for this long it has nothing in the queue."""


@dataclass(frozen=True)
class Served:
    tenant: str
    start: float
    end: float
    waited: float


class Pool:
    """A pool whose slots run each request for exactly its length, and a clock that jumps from event to event."""

    def __init__(self, slots: int) -> None:
        self.dispatch = Dispatch(Limits(100_000, 1 << 40, FOREVER))
        self.now = 0.0
        self.served: list[Served] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._asked: dict[str, tuple[Request, float, float, Callable[[], None]]] = {}
        for index in range(slots):
            self._offer(f"w-{index}", 1)

    def at(self, when: float, do: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._order), do))

    def ask(
        self,
        tenant: str,
        seconds: float,
        *,
        weight: float = 1.0,
        priority: Priority = Priority.NORMAL,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        request = Request(f"{tenant}#{next(self._order)}", tenant, weight, priority, 1, None, FOREVER)
        self._asked[request.id] = (request, self.now, seconds, then)
        self._perform(self.dispatch.enqueue(request, self.now))

    def loops(self, number: int, tenant: str, seconds: float, **how: object) -> None:
        """Let the tenant have this many clients, each of which always has one request."""

        def again() -> None:
            self.ask(tenant, seconds, then=lambda: self.at(self.now + CLIENT_SECONDS, again), **how)  # type: ignore[arg-type]  # passed on

        for _ in range(number):
            again()

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, do = heappop(self._events)
            do()
        self.now = until

    def seconds(self, since: float = 0.0) -> dict[str, float]:
        """Return the slot-seconds that each tenant had from then until now, running leases left out."""
        sums: dict[str, float] = defaultdict(float)
        for served in self.served:
            sums[served.tenant] += max(0.0, served.end - max(since, served.start))
        return sums

    def share(self, tenant: str, since: float = 0.0) -> float:
        sums = self.seconds(since)
        return sums[tenant] / sum(sums.values())

    def _offer(self, worker: str, counter: int) -> None:
        self._perform(self.dispatch.offer(worker, Epoch("agent", 1, counter), self.now))

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            assert isinstance(effect, Assign)
            self._perform(self.dispatch.accepted(effect.worker, effect.epoch, self.now))
            start, (request, asked_at, seconds, then) = self.now, self._asked.pop(effect.request_id)

            def end(
                effect: Assign = effect,
                request: Request = request,
                start: float = start,
                waited: float = self.now - asked_at,
                then: Callable[[], None] = then,
            ) -> None:
                self.served.append(Served(request.tenant, start, self.now, waited))
                self._perform(self.dispatch.slot_ended(effect.worker, effect.epoch, self.now))
                self._perform(self.dispatch.finished(effect.request_id, self.now))
                then()
                self._offer(effect.worker, effect.epoch.counter + 1)

            self.at(self.now + seconds, end)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("light_seconds", [1.0, 7.0])
def test_long_requests_get_no_larger_share(slots: int, light_seconds: float) -> None:
    """Twenty clients with long requests and a few with short ones share the slot-seconds evenly."""
    pool = Pool(slots)
    pool.loops(20, "heavy", 50.0)
    pool.loops(slots + 2, "light", light_seconds)
    pool.run(8_000)
    assert pool.share("light") == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("weight", [0.25, 3.0])
def test_shares_follow_the_weights(weight: float) -> None:
    """A tenant of another weight gets that many times the slot-seconds of one of weight 1, whatever the lengths."""
    pool = Pool(2)
    pool.loops(20, "heavy", 30.0)
    pool.loops(8, "light", 2.0, weight=weight)
    pool.run(8_000)
    assert pool.share("light") == pytest.approx(weight / (1 + weight), rel=0.1)


def test_an_occasional_request_waits_for_one_lease_at_most() -> None:
    """Who asks rarely is served by the first slot that comes free, however many requests a heavy tenant queues."""
    pool = Pool(2)
    pool.loops(40, "heavy", 20.0)
    for when in range(100, 5000, 97):
        pool.at(when, lambda: pool.ask("light", 1.0))
    pool.run(6000)
    waits = [served.waited for served in pool.served if served.tenant == "light"]
    assert len(waits) == len(range(100, 5000, 97))
    assert max(waits) <= 20.0


def test_going_away_resets_no_debt() -> None:
    """A tenant that sends batches of long requests and is gone between them keeps no more than its share."""
    pool = Pool(1)

    def batch() -> None:
        left = [3]

        def one_ended() -> None:
            left[0] -= 1
            if not left[0]:
                pool.at(pool.now + CLIENT_SECONDS, batch)

        for _ in range(3):
            pool.ask("heavy", 90.0, then=one_ended)

    batch()
    pool.loops(3, "light", 1.0)
    pool.run(12_000)
    assert pool.share("light") >= 0.45


def test_one_long_request_at_a_time_resets_no_debt() -> None:
    """A tenant with a single client and long requests owes them, though it is gone after each."""
    pool = Pool(1)
    pool.loops(1, "heavy", 100.0)
    pool.loops(3, "light", 1.0)
    pool.run(8_000)
    assert pool.share("light") == pytest.approx(0.5, abs=0.05)


def test_using_an_idle_pool_is_no_debt() -> None:
    """What a tenant took while nobody else waited counts for nothing once others come."""
    pool = Pool(2)
    pool.loops(20, "early", 10.0)
    pool.run(5000)
    pool.loops(20, "late", 10.0)
    pool.run(5400)
    assert pool.share("early", since=5000) == pytest.approx(0.5, abs=0.1)


def test_absence_earns_nothing() -> None:
    """A tenant that was away for hours shares evenly from its return."""
    pool = Pool(2)
    pool.loops(20, "stayed", 5.0)
    pool.ask("away", 5.0)
    pool.run(10_000)
    pool.loops(20, "away", 5.0)
    pool.run(10_300)
    assert pool.share("away", since=10_000) == pytest.approx(0.5, abs=0.1)


def test_little_use_all_day_gives_no_lasting_claim() -> None:
    """A tenant that was content with one slot is then owed at most MAX_IMBALANCE_SECONDS."""
    pool = Pool(10)
    pool.loops(30, "busy", 10.0)
    pool.loops(1, "content", 5.0)
    pool.run(8_000)
    pool.loops(30, "content", 5.0)
    monopoly = MAX_IMBALANCE_SECONDS / 10
    pool.run(8_000 + monopoly + 400)
    sums = pool.seconds(since=8_000)
    assert sums["content"] - sums["busy"] <= MAX_IMBALANCE_SECONDS * 1.2


def test_tenants_that_share_the_rest_are_fair_beside_a_higher_class() -> None:
    """What a higher class took says nothing about two tenants that share what it leaves."""
    pool = Pool(4)
    pool.loops(2, "urgent", 10.0, priority=Priority.HIGH)
    pool.loops(20, "heavy", 25.0)
    pool.loops(6, "light", 1.0)
    pool.run(8_000)
    sums = pool.seconds()
    assert sums["light"] / (sums["light"] + sums["heavy"]) == pytest.approx(0.5, abs=0.05)


def test_slots_that_come_free_at_once_are_spread() -> None:
    """Of slots that come free at one instant no tenant gets all."""
    pool = Pool(0)
    for tenant in "ab":
        for _ in range(8):
            pool.ask(tenant, 10.0)
    for index in range(8):
        pool._offer(f"w-{index}", 1)
    pool.run(10)
    assert pool.share("a") == pytest.approx(0.5)


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.LOW])
def test_a_flood_of_high_requests_starves_nobody(priority: Priority) -> None:
    """A lower request is served soon after it has aged to the top, against an endless flood from many tenants."""
    pool = Pool(1)
    for tenant in range(10):
        pool.loops(5, f"flood-{tenant}", 2.0, priority=Priority.HIGH)
    pool.at(100.0, lambda: pool.ask("patient", 1.0, priority=priority))
    pool.run(400)
    (served,) = (served for served in pool.served if served.tenant == "patient")
    aged = AGING_SECONDS * (priority - Priority.HIGH)
    assert aged <= served.waited <= aged + 2 * 2.0


def test_an_old_backlog_takes_turns_with_a_higher_class() -> None:
    """Aged low requests get a share beside high ones, and never more than every other lease."""
    pool = Pool(1)
    pool.loops(30, "low", 2.0, priority=Priority.LOW)
    pool.loops(10, "high", 2.0, priority=Priority.HIGH)
    pool.run(2000)
    assert 0.2 < pool.share("low") <= 0.51


def test_priority_is_strict_among_fresh_requests() -> None:
    """A higher class goes first as long as nobody has aged."""
    pool = Pool(1)
    for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.LOW, Priority.HIGH):
        pool.ask(priority.name, 1.0, priority=priority)
    pool.run(10)
    assert [served.tenant for served in pool.served] == ["LOW", "HIGH", "HIGH", "NORMAL", "LOW"]


def indebted(ledger: Ledger, tenant: str, now: float) -> None:
    """Let the tenant run a second while "other" waits, and go."""
    ledger.join(tenant, 1.0, {"other"}, now)
    ledger.start(tenant, tenant, 1.0, now)
    ledger.end(tenant, tenant, now + 1)
    ledger.leave(tenant, {"other"}, now + 1)


def ledger_with_a_waiting_tenant() -> Ledger:
    """Return a ledger in which "other" waits and has had nothing."""
    ledger = Ledger()
    ledger.join("other", 1.0, frozenset(), 0.0)
    return ledger


def test_remembered_debts_are_bounded_in_number() -> None:
    """However many tenants leave with a debt, only the latest are remembered."""
    ledger = ledger_with_a_waiting_tenant()
    for index in range(MAX_DEBTORS + 50):
        indebted(ledger, f"t-{index}", 0.0)
    assert len(ledger) == MAX_DEBTORS + 1


def test_remembered_debts_are_forgotten_in_time() -> None:
    """A debt is remembered for DEBT_MEMORY_SECONDS and not longer."""
    ledger = ledger_with_a_waiting_tenant()
    indebted(ledger, "early", 0.0)
    indebted(ledger, "late", DEBT_MEMORY_SECONDS - 1)
    assert len(ledger) == 3
    indebted(ledger, "last", DEBT_MEMORY_SECONDS)
    assert len(ledger) == 3  # "early" is gone


def test_a_debt_that_others_have_overtaken_is_no_claim() -> None:
    """Who comes back owing less than others have had meanwhile joins at their level."""
    ledger = ledger_with_a_waiting_tenant()
    indebted(ledger, "away", 0.0)
    ledger.start("other", "lease", 1.0, 1.0)
    ledger.end("other", "lease", 101.0)
    ledger.join("away", 1.0, {"other"}, 101.0)
    assert ledger.rank("away", 101.0) == ledger.rank("other", 101.0)


LEASES = {"busy": 10, "content": 1}


def charged(ledger: Ledger, tenant: str, now: float) -> float:
    """Return a tenant's figure without what its running leases count in advance."""
    return ledger.rank(tenant, now) - ADVANCE_SECONDS * LEASES[tenant]


def ledger_with_unequal_tenants() -> Ledger:
    """Return a ledger in which from time 0 "busy" has ten leases and "content" has one."""
    ledger = Ledger()
    for tenant, leases in LEASES.items():
        ledger.join(tenant, 1.0, frozenset(), 0.0)
        for index in range(leases):
            ledger.start(tenant, f"{tenant}-{index}", 1.0, 0.0)
    return ledger


def test_a_newcomer_where_nobody_waits_joins_at_the_busiest() -> None:
    """Nobody owes a newcomer what was taken while it was to spare."""
    ledger = ledger_with_unequal_tenants()
    ledger.join("new", 1.0, frozenset(), 20.0)
    assert ledger.rank("new", 20.0) == charged(ledger, "busy", 20.0) == 200.0


@pytest.mark.parametrize(("now", "owed"), [(20.0, 180.0), (1000.0, MAX_IMBALANCE_SECONDS)])
def test_what_a_running_tenant_is_owed_is_bounded(now: float, owed: float) -> None:
    """It keeps what it is owed when it starts to wait, up to MAX_IMBALANCE_SECONDS."""
    ledger = ledger_with_unequal_tenants()
    ledger.join("content", 1.0, {"busy"}, now)
    assert charged(ledger, "busy", now) - charged(ledger, "content", now) == owed


def test_what_a_tenant_owes_is_bounded() -> None:
    """Nobody is shut out for longer than it takes to work off MAX_IMBALANCE_SECONDS."""
    ledger = ledger_with_unequal_tenants()
    ledger.join("busy", 1.0, {"content"}, 1000.0)
    assert charged(ledger, "busy", 1000.0) - charged(ledger, "content", 1000.0) == MAX_IMBALANCE_SECONDS


def test_a_tenant_without_debt_leaves_no_account() -> None:
    """Nothing is kept of a tenant that owes nothing when it goes."""
    ledger = Ledger()
    ledger.join("t", 1.0, frozenset(), 0.0)
    ledger.start("t", "lease", 1.0, 0.0)
    ledger.end("t", "lease", 5.0)
    ledger.leave("t", frozenset(), 5.0)
    assert len(ledger) == 0


def test_a_lease_that_never_ran_is_not_charged() -> None:
    """A refused lease costs its tenant nothing."""
    ledger = Ledger()
    ledger.join("t", 1.0, frozenset(), 0.0)
    before = ledger.rank("t", 0.0)
    ledger.start("t", "lease", 1.0, 0.0)
    ledger.void("t", "lease")
    assert ledger.rank("t", 2.0) == before


def test_a_running_lease_is_charged_at_each_decision() -> None:
    """A long lease counts while it runs, by its weight, and not only once it has ended."""
    ledger = Ledger()
    ledger.join("t", 2.0, frozenset(), 0.0)
    ledger.start("t", "lease", 2.0, 0.0)
    assert ledger.rank("t", 100.0) == pytest.approx((100.0 + ADVANCE_SECONDS) / 2.0)


def test_a_tenant_is_charged_for_what_its_request_made_a_worker_do() -> None:
    """While a blamed lease's worker is tested, its tenant pays; the other tenant's share grows by as much."""
    dispatch = Dispatch(Limits(100, 1000, FOREVER))
    for tenant in ("bad", "good"):
        for number in range(3):
            dispatch.enqueue(Request(f"{tenant}-{number}", tenant, 1.0, Priority.NORMAL, 1, None, FOREVER), 0.0)
    order = []
    now = 0.0
    for counter in range(1, 5):
        (assign,) = dispatch.offer("w", Epoch("agent", 1, counter), now)
        assert isinstance(assign, Assign)
        order.append(assign.request_id.partition("-")[0])
        now += 1.0
        dispatch.slot_ended("w", assign.epoch, now, blamed=order[-1] == "bad")
        dispatch.finished(assign.request_id, now)
        now += 2.0 if order[-1] == "bad" else 0.0  # the worker is tested before it is offered again
    assert order == ["bad", "good", "good", "good"]


def test_an_aftermath_is_charged_for_a_limited_time() -> None:
    """A worker that never comes back is not its last tenant's debt for ever."""
    ledger = Ledger()
    ledger.join("t", 1.0, (), 0.0)
    ledger.start_aftermath("t", "w", 1.0, 0.0)
    assert ledger.rank("t", 10.0) == 10.0
    assert ledger.rank("t", 10_000.0) == MAX_AFTERMATH_SECONDS


def test_a_figure_costs_no_rounding_however_many_leases_come_and_go() -> None:
    """The sum that running leases are kept in stays exact enough: an hour of them is charged within a millisecond."""
    ledger = Ledger()
    ledger.join("t", 3.0, frozenset(), 1e6)
    ledger.start("t", "long", 3.0, 1e6)
    for index in range(36_000):
        now = 1e6 + index / 10
        ledger.start("t", f"short-{index}", 3.0, now)
        ledger.end("t", f"short-{index}", now + 0.1)
    seconds = 36_000 * 0.1 + 3600.0
    assert ledger.rank("t", 1e6 + 3600.0) == pytest.approx((seconds + ADVANCE_SECONDS) / 3.0, abs=0.001)
