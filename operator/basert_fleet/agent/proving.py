"""How a process proves itself: its warm-up, and the scrub and canary that it owes afterwards.

The requests come from `engine.canary`, the judgement from `core`; here they are run in order. Every one of them settles
as a lease does.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from basert_fleet.agent.generation import Ended, Execution
from basert_fleet.agent.slot import Slot
from basert_fleet.core.api import BasertWorker, CanaryProfile
from basert_fleet.core.calibration import Ending, NoFit, Reading, fit
from basert_fleet.core.isolation import Evidence, JudgePolicy, judge
from basert_fleet.core.lifecycle import Event
from basert_fleet.core.settle import Slots
from basert_fleet.core.verdict import Reason, VerdictKind
from basert_fleet.engine.canary import calibration_requests, canary_failure, canary_request, scrub_request
from basert_fleet.engine.response import ResponseFacts

OK = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of proving a process: the event for its lifecycle, and why."""

    event: Event
    message: str = ""
    reason: Reason | None = None


async def warm_up(slot: Slot, worker: BasertWorker) -> Finding:
    """Prove a fresh process and learn its drift baseline; keeps the baseline in the slot.

    The canary comes first and plain chats follow, so that the first user does not continue the canary's prefix.
    """
    readings: list[Reading] = []
    model = worker.spec.model.name
    if worker.spec.isolation.canary.profile is CanaryProfile.TOOL_CALL:
        finding = await _canary(slot, worker, readings)
        if finding is not None:
            return finding if finding.event is Event.DIED else Finding(Event.WARM_UP_FAILED, finding.message)
    if slot.line.slots is Slots.ABSENT:
        return _uncalibrated(slot, worker, "the engine has no /slots.")
    requests = calibration_requests(model)
    for body in (requests.short_length, requests.long_length, requests.stop):
        execution, answer = await slot.ask(body, worker)
        if not execution.idle_proven:
            return _died(execution, "calibration")
        _, facts = answer.finish()
        _note(readings, execution, facts)
    execution = await slot.ask_and_cancel(requests.cancelled, worker)
    if not execution.idle_proven:
        return _died(execution, "calibration by a cancelled request")
    if execution.ended is Ended.CANCELLED and execution.after is not None:
        readings.append(Reading(Ending.CANCELLED, None, execution.after))
    return _calibrate(slot, worker, readings)


async def test(slot: Slot, worker: BasertWorker) -> Finding:
    """Scrub the slot, then run a canary on it: PROVEN only if it passes and leaves no drift."""
    scrubbed = await scrub(slot, worker)
    if scrubbed is not None:
        return scrubbed
    if worker.spec.isolation.canary.profile is CanaryProfile.NONE:
        return Finding(Event.PROVEN)
    readings: list[Reading] = []
    finding = await _canary(slot, worker, readings)
    if finding is not None:
        return finding
    drifted = _drifted(slot, worker, readings)
    if drifted is not None:
        return drifted
    return Finding(Event.PROVEN)


async def scrub(slot: Slot, worker: BasertWorker) -> Finding | None:
    """Run a cheap plain chat, so that what comes next shares no prefix with what was before (seed, control 2)."""
    execution, _ = await slot.ask(scrub_request(secrets.token_hex(8), worker.spec.model.name), worker)
    return None if execution.idle_proven else _died(execution, "scrub")


async def _canary(slot: Slot, worker: BasertWorker, readings: list[Reading]) -> Finding | None:
    nonce = f"canary-{secrets.token_hex(6)}"
    execution, answer = await slot.ask(canary_request(nonce, worker.spec.model.name), worker)
    if not execution.idle_proven:
        return _died(execution, "canary")
    if execution.ended is not Ended.COMPLETE or answer.status != OK:
        failure = execution.detail or f"it was answered with status {answer.status}"
    else:
        body, facts = answer.finish()
        failure = canary_failure(body, nonce) or ""
        _note(readings, execution, facts)
    return Finding(Event.CONTAMINATED, f"canary failed: {failure}", Reason.CANARY_FAILED) if failure else None


def _drifted(slot: Slot, worker: BasertWorker, readings: list[Reading]) -> Finding | None:
    """Judge a canary that passed as any lease is judged: the right answer from a drifted slot is luck."""
    if slot.baseline is None or not readings:
        return None
    reading = readings[0]
    evidence = Evidence(
        settled=None,
        before=None,
        after=reading.probe,
        ending=reading.ending,
        prompt_tokens=None,
        expected_prompt_tokens=None,
        completion_tokens=reading.completion_tokens,
        tool_problem=None,
        idle_proven=True,
        server_restarted=False,
    )
    verdict = judge(evidence, slot.baseline, policy_of(worker))
    if verdict.kind is VerdictKind.CONTAMINATED:
        return Finding(Event.CONTAMINATED, f"the canary left a drift of {verdict.drift_tokens} tokens", verdict.reason)
    return None


def policy_of(worker: BasertWorker) -> JudgePolicy:
    """Return what the worker's pool asks of its judge."""
    isolation = worker.spec.isolation
    return JudgePolicy(
        tolerance_tokens=isolation.drift.tolerance_tokens,
        require_slots=isolation.require_slots,
        drift_action=isolation.drift.action,
    )


def _calibrate(slot: Slot, worker: BasertWorker, readings: list[Reading]) -> Finding:
    fitted = fit(readings)
    if isinstance(fitted, NoFit):
        return _uncalibrated(slot, worker, fitted.explanation)
    slot.baseline, slot.calibration_note = fitted, ""
    return Finding(Event.WARM)


def _uncalibrated(slot: Slot, worker: BasertWorker, why: str) -> Finding:
    slot.baseline, slot.calibration_note = None, why
    if worker.spec.isolation.require_slots:
        return Finding(Event.WARM_UP_FAILED, f"{why} Set isolation.requireSlots: false to serve by canaries alone.")
    return Finding(Event.WARM, why)


def _note(readings: list[Reading], execution: Execution, facts: ResponseFacts | None) -> None:
    if execution.after is not None and facts is not None:
        readings.append(Reading(facts.ending, facts.completion_tokens, execution.after))


def _died(execution: Execution, what: str) -> Finding:
    return Finding(Event.DIED, f"{what}: {execution.detail or 'the slot was not proven idle'}", Reason.NO_PROOF_OF_IDLE)
