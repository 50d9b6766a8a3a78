"""The agent's half of the lease protocol for one slot: what was offered, what is leased, what comes too late.

Promise 1 rests here: between an accepted lease and its end this object gives no second one away, whatever arrives, in
whatever order. It knows nothing of processes; its owner ends a lease only once the slot is settled or the process dead.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from basert_fleet.core.epoch import Epoch


class LeaseAnswer(Enum):
    """What to do about a lease that arrived."""

    ACCEPT = auto()
    REFUSE = auto()
    """It crossed a withdrawal: the gateway may place the request elsewhere at once."""
    IGNORE = auto()
    """It repeats a lease that was answered already."""


class SlotMisused(Exception):
    """The slot's owner asked for something out of turn: a bug, not a fault."""


@dataclass(slots=True)
class SlotLease:
    """One slot's offers and leases within one incarnation of its agent."""

    incarnation: str
    _counter: int = 0
    _offered: Epoch | None = None
    _leased: Epoch | None = None
    _answered: Epoch | None = None

    @property
    def leased(self) -> Epoch | None:
        """The epoch of the lease in progress."""
        return self._leased

    @property
    def offered(self) -> Epoch | None:
        """The epoch of the offer that stands."""
        return self._offered

    def offer(self, generation: int) -> Epoch:
        """Make a new offer of the idle slot; its epoch is newer than every one before.

        Raises:
            SlotMisused: it is offered or leased already.
        """
        if self._offered or self._leased:
            raise SlotMisused(f"slot is {'leased' if self._leased else 'offered'} already: {self}")
        self._counter += 1
        self._offered = Epoch(self.incarnation, generation, self._counter)
        return self._offered

    def withdraw(self) -> Epoch | None:
        """Take the offer back; return its epoch, or None if there was none to take back."""
        taken, self._offered = self._offered, None
        return taken

    def lease(self, epoch: Epoch) -> LeaseAnswer:
        """Take a lease if it is for the offer that stands."""
        if epoch == self._offered:
            self._offered, self._leased, self._answered = None, epoch, epoch
            return LeaseAnswer.ACCEPT
        return LeaseAnswer.IGNORE if epoch == self._answered else LeaseAnswer.REFUSE

    def holds(self, epoch: Epoch) -> bool:
        """Say whether this very lease is in progress; a cancel for any other comes too late."""
        return epoch == self._leased

    def end(self) -> Epoch:
        """End the lease in progress and return its epoch.

        Raises:
            SlotMisused: there is none.
        """
        if self._leased is None:
            raise SlotMisused(f"no lease to end: {self}")
        ended, self._leased = self._leased, None
        return ended
