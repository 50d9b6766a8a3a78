"""The agent's half of the lease protocol: one lease at a time, whatever arrives in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from basert_fleet.core.epoch import Epoch
from basert_fleet.core.slot_lease import LeaseAnswer, SlotLease, SlotMisused


class OneLeaseAtATime(RuleBasedStateMachine):
    """Leases may come late, twice or for offers of old: only one for the standing offer is taken (C36)."""

    epochs = Bundle("epochs")

    def __init__(self) -> None:
        super().__init__()
        self.slot = SlotLease("agent-a")
        self.standing: Epoch | None = None
        self.running: Epoch | None = None
        self.held: Epoch | None = None
        self.taken: list[Epoch] = []

    @precondition(lambda self: self.standing is None and self.held is None)
    @rule(target=epochs, generation=st.integers(1, 5))
    def slot_is_offered(self, generation: int) -> Epoch:
        """The slot's owner offers it: idle, or ahead of the end of what runs."""
        offer = self.slot.offer if self.running is None else self.slot.offer_ahead
        self.standing = offer(generation)
        return self.standing

    @rule(epoch=epochs)
    def lease_arrives(self, epoch: Epoch) -> None:
        """A lease for any offer ever made arrives, perhaps once more."""
        answer = self.slot.lease(epoch)
        if epoch != self.standing:
            assert answer in {LeaseAnswer.IGNORE, LeaseAnswer.REFUSE}
            assert answer is LeaseAnswer.IGNORE or epoch not in {self.running, self.held}
        elif self.running is None:
            assert answer is LeaseAnswer.ACCEPT
            self.standing, self.running = None, epoch
            self.taken.append(epoch)
        else:
            assert answer is LeaseAnswer.HOLD
            self.standing, self.held = None, epoch

    @rule()
    def offer_is_withdrawn(self) -> None:
        """The owner takes its offer back, if there is one."""
        assert self.slot.withdraw() == self.standing
        self.standing = None

    @precondition(lambda self: self.running is not None)
    @rule()
    def lease_ends(self) -> None:
        """The slot is settled."""
        assert self.slot.end() == self.running
        self.running = None

    @precondition(lambda self: self.running is None)
    @rule()
    def what_was_held_back_is_taken(self) -> None:
        """The slot was found clean."""
        assert self.slot.take_ahead() == self.held
        if self.held is not None:
            self.running, self.held = self.held, None
            self.taken.append(self.running)

    @rule()
    def what_was_held_back_is_dropped(self) -> None:
        """The slot was found unclean, or the gateway wants it back."""
        assert self.slot.drop_ahead() == self.held
        self.held = None

    @invariant()
    def no_epoch_is_leased_twice(self) -> None:
        """Each accepted lease had an epoch of its own, and the slot knows the one in progress."""
        assert len(self.taken) == len(set(self.taken))
        assert self.slot.leased == self.running
        assert self.slot.offered == self.standing
        assert self.slot.ahead == self.held


TestOneLeaseAtATime = OneLeaseAtATime.TestCase


def test_a_lease_that_crossed_a_withdrawal_is_refused() -> None:
    """The gateway is told, so that it can place the request elsewhere at once."""
    slot = SlotLease("a")
    epoch = slot.offer(1)
    slot.withdraw()
    assert slot.lease(epoch) is LeaseAnswer.REFUSE


def test_a_repeated_lease_is_ignored() -> None:
    """Refusing it would tell the gateway that the running request was never taken."""
    slot = SlotLease("a")
    epoch = slot.offer(1)
    slot.lease(epoch)
    assert slot.lease(epoch) is LeaseAnswer.IGNORE
    slot.end()
    assert slot.lease(epoch) is LeaseAnswer.IGNORE


def test_a_cancel_concerns_only_the_lease_in_progress() -> None:
    """A late cancel must not end the next user's request."""
    slot = SlotLease("a")
    old = slot.offer(1)
    slot.lease(old)
    slot.end()
    slot.lease(slot.offer(1))
    assert not slot.holds(old)


def test_an_offer_while_leased_is_a_bug() -> None:
    """A busy slot cannot be offered by mistake."""
    slot = SlotLease("a")
    slot.lease(slot.offer(1))
    with pytest.raises(SlotMisused):
        slot.offer(1)


def test_what_is_held_back_is_no_second_lease() -> None:
    """Until the lease in progress has ended, the one on the offer ahead cannot be taken, nor another be offered."""
    slot = SlotLease("a")
    with pytest.raises(SlotMisused):
        slot.offer_ahead(1)
    first = slot.offer(1)
    slot.lease(first)
    second = slot.offer_ahead(1)
    assert slot.lease(second) is LeaseAnswer.HOLD
    for too_early in (slot.take_ahead, lambda: slot.offer_ahead(1), lambda: slot.offer(1)):
        with pytest.raises(SlotMisused):
            too_early()
    assert (slot.end(), slot.take_ahead(), slot.leased) == (first, second, second)


def test_an_offer_ahead_is_an_offer_once_its_slot_is_idle() -> None:
    """Nothing has to be said again when the lease before it has ended well."""
    slot = SlotLease("a")
    slot.lease(slot.offer(1))
    ahead = slot.offer_ahead(1)
    slot.end()
    assert slot.offered == ahead
    assert slot.lease(ahead) is LeaseAnswer.ACCEPT


def test_an_end_without_a_lease_is_a_bug() -> None:
    """Nothing is given back that was not taken."""
    with pytest.raises(SlotMisused):
        SlotLease("a").end()


def test_epochs_grow_and_know_their_incarnation() -> None:
    """Epochs of one agent are ordered by process and lease; those of two agents have no order."""
    slot = SlotLease("a")
    first = slot.offer(1)
    slot.withdraw()
    second = slot.offer(2)
    assert second.is_newer_than(first)
    assert not first.is_newer_than(second)
    assert str(second) == "a.2.2"
    with pytest.raises(ValueError, match="no order"):
        first.is_newer_than(Epoch("b", 1, 1))
