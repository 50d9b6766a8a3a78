"""A slot is idle by proof, or its process is killed: the ways one request can settle."""

from __future__ import annotations

import pytest

from basert_fleet.core.calibration import Probe
from basert_fleet.core.settle import SettlePolicy, Settling, SlotsPage, Step

BEFORE = Probe(is_processing=False, cache_tokens=275, cache_position=275)
UNMOVED = BEFORE
RUNNING = Probe(is_processing=True, cache_tokens=275, cache_position=275)
MOVED = Probe(is_processing=False, cache_tokens=40, cache_position=40)
RESET = Probe(is_processing=False, cache_tokens=0, cache_position=0)


class Clock:
    """One request's settling, with every input at a later second than the one before."""

    def __init__(self, *, slots_page: SlotsPage = SlotsPage.PRESENT, before: Probe | None = BEFORE) -> None:
        self.settling = Settling(SettlePolicy(settle_seconds=10, slots_page=slots_page), before)
        self.now = 0.0

    def later(self, seconds: float = 1.0) -> float:
        self.now += seconds
        return self.now

    def probe(self, probe: Probe | None) -> Step:
        """Pass a probe that was asked and answered just now."""
        return self.settling.probe(probe, asked_at=self.later(), now=self.now)


def test_end_mark_then_idle_is_a_proof() -> None:
    """A response that ended on a slot that is idle afterwards is settled."""
    clock = Clock()
    assert clock.settling.head_seen() is Step.WAIT
    assert clock.settling.end_mark(clock.later()) is Step.WAIT
    assert clock.probe(UNMOVED) is Step.IDLE


def test_end_mark_alone_is_no_proof() -> None:
    """An engine may still be busy after its last byte (C02): processing and silence wait, then kill."""
    clock = Clock()
    clock.settling.end_mark(clock.later())
    assert clock.settling.kill_at == 11
    assert clock.probe(RUNNING) is Step.WAIT
    assert clock.probe(None) is Step.WAIT
    clock.later(7)
    assert clock.probe(RUNNING) is Step.KILL


def test_the_limit_after_an_end_is_exact() -> None:
    """One moment before settle_seconds it waits, at settle_seconds it kills."""
    clock = Clock()
    clock.settling.end_mark(0)
    assert clock.settling.probe(None, asked_at=9.9, now=9.9) is Step.WAIT
    assert clock.settling.probe(None, asked_at=9.9, now=10) is Step.KILL


def test_a_proof_at_the_limit_still_counts() -> None:
    """An idle slot is not killed because its proof came with the last tick."""
    clock = Clock()
    clock.settling.end_mark(0)
    assert clock.settling.probe(UNMOVED, asked_at=10, now=10) is Step.IDLE


def test_a_probe_asked_before_the_end_is_no_proof() -> None:
    """A probe under way while the response ended may tell of the time before; the next one decides."""
    clock = Clock()
    clock.settling.head_seen()
    clock.settling.end_mark(5)
    assert clock.settling.probe(UNMOVED, asked_at=4.9, now=6) is Step.WAIT
    assert clock.settling.probe(UNMOVED, asked_at=5, now=6) is Step.WAIT
    assert clock.settling.probe(UNMOVED, asked_at=6, now=6.1) is Step.IDLE


def test_a_cancel_waits_for_the_start() -> None:
    """An idle slot after a cancel proves nothing: the request may still be in the accept queue."""
    clock = Clock()
    assert clock.settling.cancel() is Step.WAIT
    assert clock.probe(UNMOVED) is Step.WAIT
    assert clock.probe(None) is Step.WAIT
    assert clock.probe(RESET) is Step.WAIT
    assert clock.probe(RUNNING) is Step.CLOSE


@pytest.mark.parametrize("seen", ["head", "processing", "moved"])
def test_each_sign_of_a_start_lets_a_cancel_close(seen: str) -> None:
    """Head, processing or moved counters: then the connection is closed, and the idle slot after it is proven."""
    clock = Clock()
    clock.settling.cancel()
    match seen:
        case "head":
            step = clock.settling.head_seen()
        case "processing":
            step = clock.probe(RUNNING)
        case _:
            step = clock.probe(MOVED)
    assert step is Step.CLOSE
    assert clock.settling.closed(clock.later()) is Step.WAIT
    assert clock.probe(MOVED) is Step.IDLE


def test_a_cancel_after_the_start_closes_at_once() -> None:
    """A running generation whose client left is cut without further ado."""
    clock = Clock()
    clock.probe(RUNNING)
    assert clock.settling.cancel() is Step.CLOSE


def test_a_cancel_after_the_end_closes_nothing() -> None:
    """A response that ended leaves a connection that can be used again."""
    clock = Clock()
    clock.settling.end_mark(clock.later())
    assert clock.settling.cancel() is Step.WAIT
    assert clock.probe(UNMOVED) is Step.IDLE


def test_an_engine_that_runs_on_is_killed() -> None:
    """A generation that goes on after its connection was closed comes back by kill (C39)."""
    clock = Clock()
    clock.settling.head_seen()
    clock.settling.cancel()
    clock.settling.closed(clock.later())
    assert clock.probe(RUNNING) is Step.WAIT
    clock.later(10)
    assert clock.probe(RUNNING) is Step.KILL


def test_counters_without_an_earlier_probe_show_no_start() -> None:
    """What has not been read before cannot be seen to move."""
    clock = Clock(before=None)
    clock.settling.cancel()
    assert clock.probe(MOVED) is Step.WAIT
    assert clock.probe(RUNNING) is Step.CLOSE


def test_an_engine_that_hung_up_before_any_start_proves_nothing() -> None:
    """A connection closed by the engine with no sign of a start is killed after settle_seconds."""
    clock = Clock()
    clock.settling.closed(clock.later())
    assert clock.probe(UNMOVED) is Step.WAIT
    clock.later(10)
    assert clock.probe(UNMOVED) is Step.KILL


def test_an_engine_that_cut_its_response_settles_by_probe() -> None:
    """A truncated response whose start was seen leaves a slot that an idle probe proves."""
    clock = Clock()
    clock.settling.head_seen()
    clock.settling.closed(clock.later())
    assert clock.probe(UNMOVED) is Step.IDLE


def test_a_swallowed_request_is_killed() -> None:
    """No byte, and the next probe shows neither processing nor a start (C12)."""
    clock = Clock()
    assert clock.settling.first_byte_expired(clock.later()) is Step.WAIT
    assert clock.probe(UNMOVED) is Step.KILL


def test_an_old_probe_does_not_make_a_request_swallowed() -> None:
    """The request may have started since: only a probe asked after the watchdog fired decides."""
    clock = Clock()
    clock.settling.first_byte_expired(5)
    assert clock.settling.probe(UNMOVED, asked_at=5, now=6) is Step.WAIT


@pytest.mark.parametrize("probe", [RUNNING, None])
def test_a_long_prefill_goes_on(probe: Probe | None) -> None:
    """Processing or a silent /slots: the watchdog kills nobody, however long it takes (C07, C16)."""
    clock = Clock()
    clock.settling.first_byte_expired(clock.later())
    for _ in range(3):
        clock.later(600)
        assert clock.probe(probe) is Step.WAIT


def test_a_cancel_in_a_silent_prefill_closes_after_the_watchdog() -> None:
    """Silence shows no start; the fired watchdog lets the cancel close all the same, and silence then kills."""
    clock = Clock()
    clock.settling.cancel()
    assert clock.probe(None) is Step.WAIT
    assert clock.settling.first_byte_expired(clock.later()) is Step.CLOSE
    assert clock.settling.closed(clock.later()) is Step.WAIT
    assert clock.probe(None) is Step.WAIT
    clock.later(10)
    assert clock.probe(None) is Step.KILL


def test_a_cancelled_prefill_that_answers_again_settles() -> None:
    """After such a close, processing shows the start and the idle slot behind it is proven."""
    clock = Clock()
    clock.settling.cancel()
    clock.settling.first_byte_expired(clock.later())
    clock.settling.closed(clock.later())
    assert clock.probe(RUNNING) is Step.WAIT
    assert clock.probe(MOVED) is Step.IDLE


def test_a_generation_without_an_answer_is_killed() -> None:
    """It ran, it is idle, and no byte comes: after a little patience for bytes under way it is wedged (C15)."""
    clock = Clock()
    clock.probe(RUNNING)
    clock.settling.first_byte_expired(clock.later())
    assert clock.probe(MOVED) is Step.WAIT
    assert clock.probe(MOVED) is Step.WAIT
    clock.later(10)
    assert clock.probe(MOVED) is Step.KILL


@pytest.mark.parametrize("life", ["head", "processing"])
def test_a_late_answer_is_spared(life: str) -> None:
    """A head, or processing after all, lifts the limit of a slot that seemed wedged."""
    clock = Clock()
    clock.probe(RUNNING)
    clock.settling.first_byte_expired(clock.later())
    clock.probe(MOVED)
    if life == "head":
        clock.settling.head_seen()
    else:
        clock.probe(RUNNING)
    assert clock.settling.kill_at is None
    clock.later(100)
    assert clock.probe(None) is Step.WAIT


def test_life_after_the_end_moves_no_limit() -> None:
    """Processing after an end mark shows no health: the limit stands."""
    clock = Clock()
    clock.settling.end_mark(1)
    clock.probe(RUNNING)
    clock.settling.head_seen()
    clock.settling.closed(5)
    assert clock.settling.kill_at == 11


def test_an_idle_slot_after_the_head_waits_for_the_end_mark() -> None:
    """A fired watchdog means nothing once a byte came, and idle alone does not end a response."""
    clock = Clock()
    clock.settling.first_byte_expired(clock.later())
    clock.settling.head_seen()
    assert clock.probe(UNMOVED) is Step.WAIT


def test_without_slots_the_end_mark_is_the_proof() -> None:
    """Where /slots does not exist, the response's own end is all there is."""
    clock = Clock(slots_page=SlotsPage.ABSENT)
    clock.settling.head_seen()
    assert clock.settling.end_mark(clock.later()) is Step.IDLE
    assert clock.settling.cancel() is Step.IDLE


@pytest.mark.parametrize("how", ["cancel", "closed"])
def test_without_slots_nothing_else_is_a_proof(how: str) -> None:
    """A cancelled or cut request on a process without /slots is killed."""
    clock = Clock(slots_page=SlotsPage.ABSENT)
    clock.settling.head_seen()
    assert (clock.settling.cancel() if how == "cancel" else clock.settling.closed(clock.later())) is Step.KILL


def test_a_dead_process_is_killed_whatever_was_proven() -> None:
    """What is left of its group must go, even after a proof of idle."""
    clock = Clock()
    clock.settling.end_mark(clock.later())
    clock.probe(UNMOVED)
    assert clock.settling.process_died() is Step.KILL
    assert clock.probe(UNMOVED) is Step.KILL


def test_a_proof_is_final() -> None:
    """No later silence turns a proven slot into a doubtful one."""
    clock = Clock()
    clock.settling.end_mark(clock.later())
    clock.probe(UNMOVED)
    clock.later(100)
    assert clock.probe(None) is Step.IDLE
