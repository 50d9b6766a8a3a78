"""One lease from its acceptance to its End: run, read, judged, and released or withheld."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from basert_fleet.agent.generation import Ended, Execution, Generation
from basert_fleet.agent.proving import policy_of
from basert_fleet.agent.response import Response
from basert_fleet.agent.slot import Slot
from basert_fleet.core.api import BasertWorker
from basert_fleet.core.calibration import Ending, Probe
from basert_fleet.core.delivery import Outcome, releases
from basert_fleet.core.isolation import Check, Evidence, foresees_clean, judge, next_check, used_by_others
from basert_fleet.core.verdict import Reason, Verdict, VerdictKind
from basert_fleet.engine.request import InvalidRequest
from basert_fleet.engine.response import ResponseFacts
from basert_fleet.wire.messages import Body, End, Head, Lease

OUTCOME_OF = {
    Ended.CANCELLED: Outcome.CANCELLED,
    Ended.TIMED_OUT: Outcome.TIMED_OUT,
    Ended.SWALLOWED: Outcome.SWALLOWED,
    Ended.LOST: Outcome.WORKER_LOST,
}

CLEAN = Verdict(VerdictKind.CLEAN)

Send = Callable[[Head | Body | End], None]


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What a lease leaves behind for its worker."""

    verdict: Verdict
    check: Check
    alive: bool
    """Whether the engine is still in use, its slot proven idle."""
    sent: bool
    """Whether the engine saw anything of the request."""
    learnable: tuple[Ending, Probe, int | None] | None = None
    """A reading of an ending that was not calibrated: to be learnt if the next canary passes."""


class AheadOffers(Protocol):
    """What is offered of a slot while its lease is in progress."""

    def offer_ahead(self) -> None:
        """Take note that the response is over and promising: only the proof that its slot is clean is waited for."""

    def withdraw(self) -> None:
        """Take back what is offered: the slot must be tested or replaced first."""


class LeaseRun:
    """Executes one lease. However `run` ends, the slot is proven idle or its engine given up."""

    def __init__(self, lease: Lease, slot: Slot, worker: BasertWorker, send: Send, offers: AheadOffers) -> None:
        self._lease, self._slot, self._worker, self._send = lease, slot, worker, send
        self._offers = offers
        self._generation: Generation | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Nobody wants the response any more; the slot is settled all the same."""
        self._cancelled = True
        if self._generation is not None:
            self._generation.cancel()

    async def run(self) -> Settled:
        """Execute the lease and send its End."""
        lease, slot = self._lease, self._slot
        try:
            prepared = await slot.prepare(lease.path, lease.body, lease.request_id, lease.content_type)
        except InvalidRequest as invalid:
            return self._not_sent(Outcome.REJECTED, str(invalid))
        settled = slot.line.last_probe
        before = await slot.probe_before_lease()
        if self._cancelled:
            return self._not_sent(Outcome.CANCELLED, "")
        if slot.engine.has_exited():
            return self._not_sent(Outcome.WITHHELD, "", Verdict.because(Reason.SERVER_RESTARTED))
        if before is not None and used_by_others(settled, before):
            return self._not_sent(Outcome.WITHHELD, "", Verdict.because(Reason.FOREIGN_TRAFFIC))
        response = Response(lease, prepared, self._send, self._response_over)
        self._generation = slot.begin(
            prepared.path,
            prepared.content_type,
            prepared.body,
            timeout_seconds=lease.timeout_seconds,
            worker=self._worker,
            sink=response,
        )
        execution = await self._generation.run()
        slot.served += 1
        slot.over(execution)
        restarted = execution.died or (execution.idle_proven and slot.engine.exited.done())
        facts = response.facts()
        evidence = _evidence(
            execution,
            facts,
            settled=settled,
            before=before,
            expected_prompt_tokens=prepared.expected_prompt_tokens,
            restarted=restarted,
        )
        policy = policy_of(self._worker)
        verdict = judge(evidence, slot.baseline, policy)
        outcome, error = self._conclude(execution, response, facts, verdict)
        check = _check(execution, facts, verdict, next_check(verdict, policy, agreed=lease.agreed))
        alive = execution.idle_proven and not restarted
        if check is not Check.NONE or not alive:
            self._offers.withdraw()  # before the end is told: with it, what was offered ahead counts as idle
        self._end(outcome, verdict, execution, facts, error)
        return Settled(
            verdict=verdict,
            check=check,
            alive=alive,
            sent=True,
            learnable=_learnable(evidence),
        )

    def _response_over(self, response: Response) -> None:
        """Let the slot be offered ahead if nothing in the response speaks against it already."""
        facts = response.facts()
        if facts is None or response.overflowed or _broken(facts) or self._cancelled:
            return
        if foresees_clean(self._slot.baseline, facts.ending, facts.completion_tokens, facts.tool_problem):
            self._offers.offer_ahead()

    def _conclude(
        self, execution: Execution, response: Response, facts: ResponseFacts | None, verdict: Verdict
    ) -> tuple[Outcome, str]:
        """Release what may be released; return how the attempt ended, and why if it failed."""
        if execution.died:
            return Outcome.CRASHED, execution.detail
        if execution.ended is not Ended.COMPLETE:
            return OUTCOME_OF[execution.ended], execution.detail
        broken = _broken(facts)
        if broken:
            return Outcome.WORKER_LOST, broken
        if response.overflowed:
            return Outcome.WORKER_LOST, "the response is larger than any model's answer"
        if not releases(verdict, agreed=self._lease.agreed, require_slots=self._worker.spec.isolation.require_slots):
            return Outcome.WITHHELD, ""
        response.release()
        return Outcome.RELEASED, ""

    def _end(
        self, outcome: Outcome, verdict: Verdict, execution: Execution, facts: ResponseFacts | None, error: str
    ) -> None:
        self._send(
            End(
                worker=self._lease.worker,
                epoch=self._lease.epoch,
                outcome=outcome,
                verdict=verdict,
                prompt_tokens=facts.prompt_tokens if facts else None,
                completion_tokens=facts.completion_tokens if facts else None,
                finish_reason=facts.finish_reason if facts else None,
                error=error,
                execute_seconds=self._slot.line.loop.time() - execution.sent_at,
                handoff_seconds=self._slot.handoff_seconds,
            )
        )

    def _not_sent(self, outcome: Outcome, error: str, verdict: Verdict = CLEAN) -> Settled:
        """End a lease of which the engine never saw a byte."""
        self._send(End(self._lease.worker, self._lease.epoch, outcome, verdict, error=error))
        check = next_check(verdict, policy_of(self._worker))
        return Settled(verdict=verdict, check=check, alive=True, sent=False)


def _evidence(
    execution: Execution,
    facts: ResponseFacts | None,
    *,
    settled: Probe | None,
    before: Probe | None,
    expected_prompt_tokens: int | None,
    restarted: bool,
) -> Evidence:
    whole = facts if execution.ended is Ended.COMPLETE else None
    return Evidence(
        settled=settled,
        before=before,
        after=execution.after,
        ending=whole.ending if whole else Ending.CANCELLED,
        prompt_tokens=facts.prompt_tokens if facts else None,
        expected_prompt_tokens=expected_prompt_tokens,
        completion_tokens=whole.completion_tokens if whole else None,
        tool_problem=whole.tool_problem if whole else None,
        idle_proven=execution.idle_proven,
        server_restarted=restarted,
    )


def _broken(facts: ResponseFacts | None) -> str:
    """Say why a response that came to its end is none; empty if nothing is wrong with its form."""
    if facts is None:
        return "the engine sent no response"
    if facts.malformed or facts.engine_error:
        return facts.malformed or f"the engine reported an error: {facts.engine_error}"
    return "" if facts.saw_done else "the stream ended without its [DONE]"


def _check(execution: Execution, facts: ResponseFacts | None, verdict: Verdict, owed: Check) -> Check:
    """A process that failed a request without dying owes a canary even if its counters look well."""
    broke = execution.ended is Ended.LOST or (execution.ended is Ended.COMPLETE and bool(_broken(facts)))
    return Check.CANARY if broke and owed is Check.NONE and verdict.kind is VerdictKind.CLEAN else owed


def _learnable(evidence: Evidence) -> tuple[Ending, Probe, int | None] | None:
    return None if evidence.after is None else (evidence.ending, evidence.after, evidence.completion_tokens)
