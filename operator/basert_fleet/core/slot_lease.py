"""The agent's half of the lease protocol for one slot: what was offered, what is leased, what comes too late.

Promise 1 rests here: between an accepted lease and its end this object gives no second one away, whatever arrives, in
whatever order. It knows nothing of processes; its owner ends a lease only once the slot is settled or the process dead.

While a lease is in progress the slot may be offered ahead. A lease on that offer is held back: it is no lease in
progress until `take_ahead`, which is refused while another one is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from basert_fleet.core.epoch import Epoch


class LeaseAnswer(Enum):
    """What to do about a lease that arrived."""

    ACCEPT = auto()
    HOLD = auto()
    """It is for the offer ahead: keep it, and accept or refuse it once the lease in progress has ended."""
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
    _ahead: Epoch | None = None
    _answered: Epoch | None = None

    @property
    def leased(self) -> Epoch | None:
        """The epoch of the lease in progress."""
        return self._leased

    @property
    def offered(self) -> Epoch | None:
        """The epoch of the offer that stands."""
        return self._offered

    @property
    def ahead(self) -> Epoch | None:
        """The epoch of the lease that is held back."""
        return self._ahead

    def offer(self, generation: int) -> Epoch:
        """Make a new offer of the idle slot; its epoch is newer than every one before.

        Raises:
            SlotMisused: it is offered or leased already.
        """
        if self._leased or self._ahead:
            raise SlotMisused(f"slot is leased already: {self}")
        return self._new_offer(generation)

    def offer_ahead(self, generation: int) -> Epoch:
        """Offer the slot for the time after the lease in progress.

        Raises:
            SlotMisused: there is none, or the slot is offered or leased ahead already.
        """
        if self._leased is None or self._ahead:
            raise SlotMisused(f"slot has no lease to be ahead of, or one ahead: {self}")
        return self._new_offer(generation)

    def _new_offer(self, generation: int) -> Epoch:
        if self._offered:
            raise SlotMisused(f"slot is offered already: {self}")
        self._counter += 1
        self._offered = Epoch(self.incarnation, generation, self._counter)
        return self._offered

    def withdraw(self) -> Epoch | None:
        """Take the offer back; return its epoch, or None if there was none to take back."""
        taken, self._offered = self._offered, None
        return taken

    def lease(self, epoch: Epoch) -> LeaseAnswer:
        """Take a lease if it is for the offer that stands."""
        if epoch != self._offered:
            known = {self._answered, self._leased, self._ahead}
            return LeaseAnswer.IGNORE if epoch in known else LeaseAnswer.REFUSE
        self._offered = None
        if self._leased is not None:
            self._ahead = epoch
            return LeaseAnswer.HOLD
        self._leased = self._answered = epoch
        return LeaseAnswer.ACCEPT

    def take_ahead(self) -> Epoch | None:
        """Make the lease that was held back the one in progress: it is to be accepted. None if there is none.

        Raises:
            SlotMisused: another lease is in progress.
        """
        if self._leased is not None:
            raise SlotMisused(f"a lease is in progress: {self}")
        taken, self._ahead = self._ahead, None
        if taken is not None:
            self._leased = self._answered = taken
        return taken

    def drop_ahead(self) -> Epoch | None:
        """Give up the lease that was held back: it is to be refused. None if there is none."""
        dropped, self._ahead = self._ahead, None
        if dropped is not None:
            self._answered = dropped
        return dropped

    def holds(self, epoch: Epoch) -> bool:
        """Say whether this very lease is in progress; a cancel for any other comes too late, or too early."""
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
