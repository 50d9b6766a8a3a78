"""Who of a class's tenants is next: the one that has had the fewest slot-seconds for its weight.

This is fair queueing in virtual time instead of deficit round robin. A generation's cost is known only after it ran,
and several run at once; a round robin would have to guess quanta and correct them, while here an account simply grows
as its leases run, and the lowest account goes next. An account's figures are virtual seconds: slot-seconds, prefill
included, divided by the weight.

Accounts only mean something relative to each other. The reference is the *level*, which never falls: it follows the
lowest account among those who wait. While nobody waits, nobody takes anything from anyone, and it follows the busiest.
Whoever starts to wait

- and was away, joins at the level: absence earns nothing; but what it owes above the level stays, so that leaving and
  coming back resets nothing (a reset lets a tenant of long requests take 98 % of a slot);
- and still has leases running, keeps what it is owed too, for between two short requests everybody has nothing waiting
  for a moment;

both within MAX_IMBALANCE_SECONDS.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

MAX_IMBALANCE_SECONDS = 600.0
"""Slot-seconds (for weight 1) that a tenant can owe or be owed when it starts to wait.

One lease of the default request timeout: less would forgive a tenant of long requests what it has just taken, more
would let one that used little all day shut the others out for longer than a request may last.
"""
ADVANCE_SECONDS = 1.0
"""What a running lease counts beyond its time when tenants are compared; it is never charged.

Without it all slots that come free at one instant would go to one tenant, as no time has passed between the decisions.
Chosen well below a usual generation.
"""
MAX_DEBTORS = 1000
"""Absent tenants whose debt is remembered, the one longest away is forgotten first. Chosen: more than use one pool."""
DEBT_MEMORY_SECONDS = 600.0
"""How long the debt of an absent tenant is remembered: as long as the largest one takes to work off on one slot."""
MAX_AFTERMATH_SECONDS = 60.0
"""How long a tenant is charged at most for what its ended lease made a worker do: a test, or a new start. A loading
model takes about as long; one that fails to start for hours is nobody's debt."""


@dataclass(frozen=True, slots=True)
class _Running:
    since: float
    weight: float


@dataclass(slots=True)
class _Account:
    """A tenant's virtual seconds: those of ended leases, and those that grow with each running one.

    What runs is kept as a sum that grows linearly, so that a figure costs the same for one lease and for a thousand.
    """

    ended: float
    absent_since: float = 0.0
    """Holds only for an absent tenant."""
    _running: dict[str, _Running] = field(default_factory=dict)
    _aftermaths: dict[str, _Running] = field(default_factory=dict)
    """Few: workers that are being tested or started anew. They stop to count after MAX_AFTERMATH_SECONDS."""
    _growth: float = 0.0
    """Virtual seconds per second of all running leases."""
    _origin: float = 0.0
    """What the running leases had grown by at time 0, negated: they stand at `growth * now - origin`."""

    @property
    def is_charged(self) -> bool:
        """Whether anything runs on this account."""
        return bool(self._running or self._aftermaths)

    def at(self, now: float) -> float:
        """Return the account's figure."""
        figure = self.ended + self._growth * now - self._origin
        for run in self._aftermaths.values():
            figure += _aftermath_seconds(run, now) / run.weight
        return figure

    def rank(self, now: float) -> float:
        """Return the figure by which tenants are compared."""
        return self.at(now) + ADVANCE_SECONDS * self._growth

    def start(self, lease: str, weight: float, now: float) -> None:
        """Let a lease count."""
        self._running[lease] = _Running(now, weight)
        self._growth += 1 / weight
        self._origin += now / weight

    def stop(self, lease: str) -> _Running:
        """Let a lease count no more, as if it had never run; return what it was."""
        run = self._running.pop(lease)
        self._growth -= 1 / run.weight
        self._origin -= run.since / run.weight
        if not self._running:
            self._growth = self._origin = 0.0  # sheds what rounding has left
        return run

    def start_aftermath(self, worker: str, weight: float, now: float) -> None:
        """Let what a worker does after a lease count, within its limit."""
        self._aftermaths[worker] = _Running(now, weight)

    def end_aftermath(self, worker: str, now: float) -> None:
        """Charge what the worker did."""
        run = self._aftermaths.pop(worker)
        self.ended += _aftermath_seconds(run, now) / run.weight


def _aftermath_seconds(run: _Running, now: float) -> float:
    return min(now - run.since, MAX_AFTERMATH_SECONDS)


class Ledger:
    """The accounts of one class's tenants.

    Who waits is the queue's knowledge and is passed in as `waiting`. A tenant without requests has an account only
    while it owes something: bounded by MAX_DEBTORS and DEBT_MEMORY_SECONDS.
    """

    def __init__(self) -> None:
        self._present: dict[str, _Account] = {}
        self._absent: dict[str, _Account] = {}  # the longest away first
        self._level = 0.0

    def __len__(self) -> int:
        return len(self._present) + len(self._absent)

    def join(self, tenant: str, weight: float, waiting: Collection[str], now: float) -> None:
        """Let a tenant that does not wait yet start to wait; to be told before it counts as waiting."""
        self._forget_old_debts(now)
        level = self._update_level(waiting, now)
        most = MAX_IMBALANCE_SECONDS / weight
        account = self._present.get(tenant)
        if account is None:
            account = self._present[tenant] = self._absent.pop(tenant, _Account(level))
            lowest = level
        else:
            lowest = level - most
        figure = account.at(now)
        account.ended += min(max(figure, lowest), level + most) - figure

    def leave(self, tenant: str, waiting: Collection[str], now: float) -> None:
        """Let a tenant go unless it still waits or has leases; one that is gone already is fine."""
        account = self._present.get(tenant)
        if account is None or account.is_charged or tenant in waiting:
            return
        level = self._update_level(waiting, now)
        del self._present[tenant]
        if account.ended > level:
            account.absent_since = now
            self._absent[tenant] = account
        self._forget_old_debts(now)

    def start(self, tenant: str, lease: str, weight: float, now: float) -> None:
        """Charge the tenant from now on for this lease."""
        self._present[tenant].start(lease, weight, now)

    def end(self, tenant: str, lease: str, now: float) -> None:
        """Close a lease's account. `leave` may follow."""
        account = self._present[tenant]
        run = account.stop(lease)
        account.ended += (now - run.since) / run.weight

    def start_aftermath(self, tenant: str, worker: str, weight: float, now: float) -> None:
        """Charge the tenant on, within a limit, for what its ended lease makes the worker do."""
        self._present[tenant].start_aftermath(worker, weight, now)

    def end_aftermath(self, tenant: str, worker: str, now: float) -> None:
        """Charge no more for what the worker does. `leave` may follow."""
        self._present[tenant].end_aftermath(worker, now)

    def void(self, tenant: str, lease: str) -> None:
        """Charge nothing for a lease that never reached its process. `leave` may follow."""
        self._present[tenant].stop(lease)

    def rank(self, tenant: str, now: float) -> float:
        """Return the figure by which present tenants are compared; the lowest is next."""
        return self._present[tenant].rank(now)

    def _update_level(self, waiting: Collection[str], now: float) -> float:
        if waiting:
            reached = min(self._present[tenant].at(now) for tenant in waiting)
        else:
            reached = max((account.at(now) for account in self._present.values()), default=self._level)
        self._level = max(self._level, reached)
        return self._level

    def _forget_old_debts(self, now: float) -> None:
        while self._absent:
            longest_away = next(iter(self._absent))
            is_old = now - self._absent[longest_away].absent_since >= DEBT_MEMORY_SECONDS
            if not is_old and len(self._absent) <= MAX_DEBTORS:
                return
            del self._absent[longest_away]
