"""The model finds faults that are planted into production code one by one: else its silence would mean nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from basert_fleet.agent import lease_run
from basert_fleet.core import isolation
from basert_fleet.core.delivery import Attempts
from basert_fleet.core.dispatch import Dispatch
from basert_fleet.core.isolation import Check
from basert_fleet.core.settle import Settling, Step
from basert_fleet.core.slot_lease import LeaseAnswer, SlotLease
from basert_fleet.core.slots import Lease, Slots
from basert_fleet.core.verdict import VerdictKind
from basert_fleet.wire.channel import Channel
from model.explorer import explore
from model.machine import Fault
from model.scopes import STREAM, WHOLE, scope, told


def withdrawn_offer_is_leased(patch: pytest.MonkeyPatch) -> None:
    """The agent takes a lease whose offer it has withdrawn."""
    right = SlotLease.lease

    def wrong(self: SlotLease, epoch: object) -> LeaseAnswer:
        answer = right(self, epoch)
        if answer is LeaseAnswer.REFUSE:
            self._leased = epoch
            return LeaseAnswer.ACCEPT
        return answer

    patch.setattr(SlotLease, "lease", wrong)


def accept_timeout_frees_the_slot(patch: pytest.MonkeyPatch) -> None:
    """The gateway leases a slot again when a lease was not accepted in time, without a newer offer."""
    right = Dispatch._put_back

    def wrong(self: Dispatch, lease: Lease, now: float) -> None:
        right(self, lease, now)
        self._slots.put_idle(lease.worker, lease.epoch, 0)

    patch.setattr(Dispatch, "_put_back", wrong)


def idle_probe_before_the_start_is_a_proof(patch: pytest.MonkeyPatch) -> None:
    """The agent takes an idle /slots as proof while the request may still be in accept."""
    patch.setattr(Settling, "_moved", lambda self, probe: True)


def elapsed_time_is_a_proof(patch: pytest.MonkeyPatch) -> None:
    """The agent takes a slot as idle once the settle time has passed."""
    right = Settling._decide

    def wrong(self: Settling, final: Step) -> None:
        right(self, Step.IDLE if self._over_at is not None else final)

    patch.setattr(Settling, "_decide", wrong)


def resume_doubles_what_was_received(patch: pytest.MonkeyPatch) -> None:
    """A channel sends again all that was not acknowledged, and its other end takes it again."""
    right = Channel.attached

    def wrong(self: Channel, peer_received: int, now: float) -> tuple:
        return right(self, self._acknowledged, now)

    patch.setattr(Channel, "attached", wrong)
    patch.setattr(Channel, "received", _received_without_a_look)


def _received_without_a_look(self: Channel, frame: object, now: float) -> tuple:
    self._forget_up_to(max(frame.acknowledged, self._acknowledged))
    self.received_up_to = max(self.received_up_to, frame.first + len(frame.items) - 1)
    return frame.items


def resume_forgets_what_was_lost(patch: pytest.MonkeyPatch) -> None:
    """A channel goes on after a cut without sending again what was on its way."""

    def wrong(self: Channel) -> tuple:
        self._sent -= len(self._unacknowledged)
        self._unacknowledged.clear()
        self._unacknowledged_bytes = 0
        return ()

    patch.setattr(Channel, "_again", wrong)


def contaminated_response_is_released(patch: pytest.MonkeyPatch) -> None:
    """The agent lets a response out whatever the judge said."""
    patch.setattr(lease_run, "releases", lambda *args, **kwargs: True)


def suspect_answer_recycles_its_worker(patch: pytest.MonkeyPatch) -> None:
    """A worker is replaced for an odd answer alone."""
    right = isolation.next_check

    def wrong(verdict: object, *args: object, **kwargs: object) -> Check:
        return Check.RECYCLE if verdict.kind is VerdictKind.SUSPECT else right(verdict, *args, **kwargs)

    patch.setattr(isolation, "next_check", wrong)


def attempts_are_joined(patch: pytest.MonkeyPatch) -> None:
    """The gateway runs a request again though its client has seen text of an earlier attempt."""
    patch.setattr(Attempts, "released", lambda self, part: None)


def lost_agent_keeps_its_leases(patch: pytest.MonkeyPatch) -> None:
    """The gateway goes on waiting for leases of an agent that is gone."""
    patch.setattr(Dispatch, "_lose", lambda self, worker, now: ())


def link_is_made_without_new_offers(patch: pytest.MonkeyPatch) -> None:
    """The agent takes back no offer that it made to a gateway that is gone, and so never makes it anew."""
    patch.setattr(SlotLease, "withdraw", lambda self: None)


def lease_ahead_is_accepted_at_once(patch: pytest.MonkeyPatch) -> None:
    """The agent takes a lease ahead as if the one before it had ended."""
    right = SlotLease.lease

    def wrong(self: SlotLease, epoch: object) -> LeaseAnswer:
        answer = right(self, epoch)
        return LeaseAnswer.ACCEPT if answer is LeaseAnswer.HOLD else answer

    patch.setattr(SlotLease, "lease", wrong)


def offer_ahead_survives_the_verdict(patch: pytest.MonkeyPatch) -> None:
    """The agent finds that a contaminated lease obliges its worker to nothing, and takes the next one."""
    patch.setattr(lease_run, "_check", lambda *args: Check.NONE)


def lease_ahead_is_lost_with_its_worker(patch: pytest.MonkeyPatch) -> None:
    """The gateway forgets the lease that stands behind the one that it loses."""
    right = Slots.end

    def wrong(self: Slots, lease: Lease) -> None:
        self._leased_ahead.pop(lease.worker, None)
        right(self, lease)

    patch.setattr(Slots, "end", wrong)


@dataclass(frozen=True, slots=True)
class Plant:
    """One fault, what must happen for it to show, and how that looks."""

    fault: Callable[[pytest.MonkeyPatch], None]
    needs: tuple[Fault, ...]
    says: str
    workers: int = 1


PLANTS = (
    Plant(withdrawn_offer_is_leased, (Fault.CANARY,), "promise 1 "),
    Plant(accept_timeout_frees_the_slot, (Fault.ACCEPT_TIMEOUT, Fault.LEAVE), "promise 3 .* another request's"),
    Plant(idle_probe_before_the_start_is_a_proof, (Fault.LEAVE,), "promise 2 .* queued"),
    Plant(elapsed_time_is_a_proof, (Fault.LEAVE, Fault.NO_PROOF), "promise [12] "),
    Plant(resume_doubles_what_was_received, (Fault.CUT,), "promise [34] "),
    Plant(resume_forgets_what_was_lost, (Fault.CUT,), "promise 4 "),
    Plant(contaminated_response_is_released, (Fault.WRONG,), "promise 3 .* wrong"),
    Plant(suspect_answer_recycles_its_worker, (Fault.ODD,), "promise 7 "),
    Plant(attempts_are_joined, (Fault.BREAK,), "promise 3 .* two attempts", workers=2),
    Plant(lost_agent_keeps_its_leases, (Fault.AGENT_RESTART,), "promise 4 |production code failed"),
    Plant(link_is_made_without_new_offers, (Fault.GATEWAY_RESTART,), "promise 4 .* nothing leads"),
    Plant(lease_ahead_is_accepted_at_once, (Fault.LEAVE,), "promise 1 "),
    Plant(offer_ahead_survives_the_verdict, (Fault.WRONG,), "promise 2 .* mix requests up"),
    Plant(lease_ahead_is_lost_with_its_worker, (Fault.LEAVE,), "promise 4 |production code failed"),
)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.fault.__name__)
def test_a_planted_fault_is_found(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model breaks the promise that this fault endangers, and shows a shortest way there."""
    name, at_most = plant.fault.__name__, len(plant.needs)
    small = scope(name, STREAM, WHOLE, workers=plant.workers, at_most=at_most, faults=plant.needs)
    assert not explore(small).failure
    plant.fault(monkeypatch)
    found = explore(small)
    with capsys.disabled():
        told(found)
    assert re.search(plant.says, found.failure), str(found)
