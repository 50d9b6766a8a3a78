"""How a process proves itself: its warm-up, and the scrub and canary that it owes afterwards.

The requests come from `engine.canary`, the judgement from `core`; here they are run in order. Every one of them settles
as a lease does.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from basert_fleet.agent.generation import Ended, Execution
from basert_fleet.agent.slot import Slot
from basert_fleet.core.api import BasertWorker, CanaryProfile
from basert_fleet.core.calibration import Ending, NoFit, Reading, fit
from basert_fleet.core.isolation import Evidence, JudgePolicy, judge
from basert_fleet.core.lifecycle import Event
from basert_fleet.core.settle import SlotsPage
from basert_fleet.core.verdict import Reason, VerdictKind
from basert_fleet.engine.canary import calibration_requests, canary_failure, canary_request, scrub_request
from basert_fleet.engine.request import InvalidRequest
from basert_fleet.engine.response import ResponseFacts

OK = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of proving a process: the event for its lifecycle, and why."""

    event: Event
    message: str = ""
    reason: Reason | None = None
    canary_passed: bool | None = None
    """None if none ran to its end."""


class Proof:
    """One process proving itself, once."""

    def __init__(self, slot: Slot, worker: BasertWorker) -> None:
        self._slot, self._worker = slot, worker
        self._model = worker.spec.model.name
        self._runs_canaries = worker.spec.isolation.canary.profile is CanaryProfile.TOOL_CALL
        self._readings: list[Reading] = []
        self._canary_passed: bool | None = None

    async def warm_up(self) -> Finding:
        """Prove a fresh process and learn its drift baseline, which is kept in the slot.

        The canary comes first and plain chats follow, so that the first user does not continue the canary's prefix.
        """
        return await self._rendered(self._warm_up(), on_failure=Event.WARM_UP_FAILED)

    async def test(self) -> Finding:
        """Scrub the slot, then run a canary on it: PROVEN only if it passes and leaves no drift."""
        return await self._rendered(self._test(), on_failure=Event.CONTAMINATED)

    async def scrub(self) -> Finding | None:
        """Run a cheap plain chat, so that what comes next shares no prefix with what was before.

        That is the report's second control. None if the process lived through it.
        """
        return await self._rendered(self._scrub(), on_failure=Event.CONTAMINATED)

    async def _rendered(self, work: Awaitable[T], *, on_failure: Event) -> T | Finding:
        """Return what the work finds; a chat template that refuses the fleet's own requests proves nothing."""
        try:
            return await work
        except InvalidRequest as refused:
            why = f"the fleet's own request cannot be rendered: {refused}"
            return self._finding(on_failure, why, Reason.CANARY_FAILED)

    async def _warm_up(self) -> Finding:
        if self._runs_canaries:
            failed = await self._canary(on_failure=Event.WARM_UP_FAILED)
            if failed is not None:
                return failed
        if self._slot.line.slots_page is SlotsPage.ABSENT:
            return self.uncalibrated("the engine has no /slots.")
        died = await self._calibrate()
        if died is not None:
            return died
        fitted = fit(self._readings)
        if isinstance(fitted, NoFit):
            return self.uncalibrated(fitted.explanation)
        self._slot.baseline, self._slot.calibration_note = fitted, ""
        return self._finding(Event.WARM)

    async def _test(self) -> Finding:
        died = await self._scrub()
        if died is not None or not self._runs_canaries:
            return died or self._finding(Event.PROVEN)
        failed = await self._canary(on_failure=Event.CONTAMINATED)
        return failed or self._drifted() or self._finding(Event.PROVEN)

    async def _scrub(self) -> Finding | None:
        execution, _ = await self._slot.ask(scrub_request(secrets.token_hex(8), self._model), self._worker)
        return None if execution.idle_proven else self._died(execution, "scrub")

    def uncalibrated(self, why: str) -> Finding:
        """Leave the process without a drift baseline: `requireSlots` says whether it may serve by canaries alone."""
        self._slot.baseline, self._slot.calibration_note = None, why
        if not self._worker.spec.isolation.require_slots:
            return self._finding(Event.WARM, why)
        return self._finding(
            Event.WARM_UP_FAILED, f"{why} Set isolation.requireSlots: false to serve by canaries alone."
        )

    async def _canary(self, *, on_failure: Event) -> Finding | None:
        nonce = f"canary-{secrets.token_hex(6)}"
        execution, answer = await self._slot.ask(canary_request(nonce, self._model), self._worker)
        if not execution.idle_proven:
            return self._died(execution, "canary")
        if execution.ended is not Ended.COMPLETE or answer.status != OK:
            failure = execution.detail or f"it was answered with status {answer.status}"
        else:
            body, facts = answer.finish()
            failure = canary_failure(body, nonce) or ""
            self._note(execution, facts)
        self._canary_passed = not failure
        return self._finding(on_failure, f"canary failed: {failure}", Reason.CANARY_FAILED) if failure else None

    async def _calibrate(self) -> Finding | None:
        """Take a reading of each ending; None if the process lived through it."""
        requests = calibration_requests(self._model)
        for body in (requests.short_length, requests.long_length, requests.stop):
            execution, answer = await self._slot.ask(body, self._worker)
            if not execution.idle_proven:
                return self._died(execution, "calibration")
            self._note(execution, answer.finish()[1])
        execution = await self._slot.ask_and_cancel(requests.cancelled, self._worker)
        if not execution.idle_proven:
            return self._died(execution, "calibration by a cancelled request")
        if execution.ended is Ended.CANCELLED and execution.after is not None:
            self._readings.append(Reading(Ending.CANCELLED, None, execution.after))
        return None

    def _drifted(self) -> Finding | None:
        """Judge a canary that passed as any lease is judged: the right answer from a drifted slot is luck."""
        if self._slot.baseline is None or not self._readings:
            return None
        reading = self._readings[-1]
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
        verdict = judge(evidence, self._slot.baseline, policy_of(self._worker))
        if verdict.kind is not VerdictKind.CONTAMINATED:
            return None
        drift = f"the canary left a drift of {verdict.drift_tokens} tokens"
        return self._finding(Event.CONTAMINATED, drift, verdict.reason)

    def _note(self, execution: Execution, facts: ResponseFacts | None) -> None:
        if execution.after is not None and facts is not None:
            self._readings.append(Reading(facts.ending, facts.completion_tokens, execution.after))

    def _died(self, execution: Execution, what: str) -> Finding:
        why = f"{what}: {execution.detail or 'the slot was not proven idle'}"
        return self._finding(Event.DIED, why, Reason.NO_PROOF_OF_IDLE)

    def _finding(self, event: Event, message: str = "", reason: Reason | None = None) -> Finding:
        return Finding(event, message, reason, self._canary_passed)


def policy_of(worker: BasertWorker) -> JudgePolicy:
    """Return what the worker's pool asks of its judge."""
    isolation = worker.spec.isolation
    return JudgePolicy(
        tolerance_tokens=isolation.drift.tolerance_tokens,
        require_slots=isolation.require_slots,
        drift_action=isolation.drift.action,
    )
