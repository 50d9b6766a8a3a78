"""What of a response may go out, what waits for the judge, and what follows when the judge says no.

The agent holds pieces by `Gate` and lets go of them by `releases`; the gateway decides by `Attempts` what comes after
each attempt. A verdict itself is made in `isolation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, assert_never

from basert_fleet.core.verdict import Reason, Verdict, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from basert_fleet.core.epoch import Process


class VerifyMode(StrEnum):
    """How much of a response waits for its slot to be judged. A later member holds more than an earlier one."""

    OFF = "off"
    TOOL_CALLS = "toolCalls"
    FULL = "full"


class Part(StrEnum):
    """What a released piece of a response is; decides whether another attempt may still take its place."""

    OPENING = "opening"
    """Nothing a user could see yet, such as the chunk that only tells the role."""
    TEXT = "text"
    TOOL_CALL = "tool_call"
    ENDING = "ending"
    """finish_reason, usage, `[DONE]`: no content."""
    WHOLE = "whole"
    """A response that is released in one piece."""


class Outcome(StrEnum):
    """How one attempt ended, apart from what the judge thinks of it."""

    RELEASED = "released"
    """The whole response was handed over."""
    WITHHELD = "withheld"
    """The response ended, and the judge kept what was held of it."""
    CRASHED = "crashed"
    """The process died by itself while it had the request."""
    WORKER_LOST = "worker_lost"
    """The process cut its response short, broke the protocol, fell silent or was halted."""
    AGENT_LOST = "agent_lost"
    """The link to the agent broke: nobody can tell what became of it, and nothing says that the request did it."""
    SWALLOWED = "swallowed"
    """The process took the request and did nothing; it was killed."""
    TIMED_OUT = "timed_out"
    """The request's own time was over."""
    CANCELLED = "cancelled"
    """The gateway cancelled it."""
    REJECTED = "rejected"
    """The agent or the engine's limits refused the request before a response began."""


def raised(pool: VerifyMode, asked: VerifyMode | None) -> VerifyMode:
    """Return the stricter of the pool's mode and the one a client asked for; a client can never lower it."""
    strictness = list(VerifyMode)  # by definition: as strings, "full" is less than "off"
    return pool if asked is None else max(pool, asked, key=strictness.index)


class Admission(StrEnum):
    """What happens to a piece when it arrives at the gate."""

    PASS = "pass"  # noqa: S105 - a piece's way, not a password
    HOLD = "hold"


class Gate:
    """Decides piece by piece what of one response may go out before the verdict.

    A barrier, not a filter: once a piece is held, all later ones are, so order is kept and a client never sees an
    ending before the call it ends.
    """

    def __init__(self, mode: VerifyMode, *, structured: bool) -> None:
        """Begin a response, to a request that perhaps wants `structured` output by a schema.

        Structured output is a call by another name: in it, a wrong text is as harmful, so all of it waits.
        """
        self._mode = VerifyMode.FULL if structured and mode is VerifyMode.TOOL_CALLS else mode
        self._closed = False

    def admit(self, part: Part) -> Admission:
        """Say whether this piece may go out now."""
        self._closed = self._closed or self._must_wait(part)
        return Admission.HOLD if self._closed else Admission.PASS

    def _must_wait(self, part: Part) -> bool:
        match self._mode:
            case VerifyMode.OFF:
                return False
            case VerifyMode.FULL:
                return True
            case VerifyMode.TOOL_CALLS:
                # The ending waits too: the very absence of a call can be the damage (the report's sixth answer ends
                # with `length`), and a stream that is found contaminated must not have ended as if it were well.
                return part in {Part.TOOL_CALL, Part.ENDING, Part.WHOLE}
            case _:
                assert_never(self._mode)


def releases(verdict: Verdict, *, agreed: AbstractSet[Reason], require_slots: bool) -> bool:
    """Say whether what was held may go out.

    `agreed` are reasons that another worker gave for the same request before. A contaminated response never goes out,
    whatever was agreed.
    """
    match verdict.kind:
        case VerdictKind.CLEAN:
            return True
        case VerdictKind.CONTAMINATED:
            return False
        case VerdictKind.SUSPECT:
            return verdict.reason in agreed
        case VerdictKind.UNVERIFIABLE:
            return verdict.reason in agreed or not require_slots
        case _:
            assert_never(verdict.kind)


@dataclass(frozen=True, slots=True)
class Deliver:
    """The client has its response, or all of it is on its way."""


@dataclass(frozen=True, slots=True)
class RunElsewhere:
    """Lease the request again, to none of these processes."""

    exclude: frozenset[tuple[str, Process]]
    """The processes that failed it, with their workers. The same worker's next process may have it."""
    avoid: frozenset[tuple[str, Process]]
    """Those whose answer was only doubted. Where there is no other worker, one that passed its test since may have it:
    to replace it would be to recycle a worker for a request's content (promise 7)."""
    agreed: frozenset[Reason]
    """What the next lease says was seen already: the same again is the model's or the request's doing."""
    fresh: bool = False
    """Only to a process that has served nothing yet: the surest one there is (the report's first control)."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Nothing a client could see went out: answer with an error."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class FailStream:
    """Part of the response is out and cannot be taken back: end the stream with an error event, without `[DONE]`."""

    code: str
    message: str


Next: TypeAlias = Deliver | RunElsewhere | Fail | FailStream

AGREEABLE: frozenset[Reason] = frozenset(
    {
        Reason.TOOL_ARGUMENTS_INVALID,
        Reason.TOOL_NAME_UNKNOWN,
        Reason.TOOL_CALL_MISSING,
        Reason.NOT_CALIBRATED,
        Reason.USAGE_MISSING,
    }
)
"""Reasons that lie in the request, the model or the build when two processes give them. A silent /slots does not."""


def blames_request(outcome: Outcome, verdict: Verdict) -> bool:
    """Say whether the request may be the cause of what its worker has to do next: a test, or a new start."""
    return verdict.kind is VerdictKind.SUSPECT or outcome in {Outcome.CRASHED, Outcome.WORKER_LOST, Outcome.SWALLOWED}


MAX_CRASHES = 2
"""A crash is retried once (design, section 5): a body that kills processes must not walk through a fleet."""
MAX_ENGINE_ERRORS = 2
"""An engine's own error (5xx) is tried once more elsewhere; the same again is what the client gets to know."""
ENGINE_ERROR_STATUS = 500
"""From this status on, the engine's answer tells of the worker and not of the request."""


class Attempts:
    """What became of one request so far, and what to do next: kept by the gateway from its first lease to its answer.

    A refused lease is no attempt. At most `max_attempts` are made, and none after a client could see a piece of one:
    two attempts are never joined.
    """

    def __init__(self, *, max_attempts: int, replaces_contaminated: bool = True) -> None:
        """Begin a request. `replaces_contaminated` says whether its pool recycles a process that was found so."""
        self._max_attempts = max_attempts
        self._replaces_contaminated = replaces_contaminated
        self._tried: list[tuple[str, Process]] = []
        self._doubted: set[tuple[str, Process]] = set()
        self._agreed: frozenset[Reason] = frozenset()
        self._crashes = 0
        self._engine_errors = 0
        self._released: set[Part] = set()

    @property
    def count(self) -> int:
        """How many attempts were started."""
        return len(self._tried)

    def started(self, worker: str, process: Process) -> None:
        """Note that a lease was accepted: this process has the request now."""
        self._tried.append((worker, process))

    def released(self, part: Part) -> None:
        """Note that a piece went to the client.

        An engine's error (status 500 and above) must not be passed on before the attempt has ended: it may still run
        elsewhere.
        """
        self._released.add(part)

    def ended(self, outcome: Outcome, verdict: Verdict, *, status: int | None, error: str = "") -> Next:
        """Say what follows the end of the current attempt.

        `status` is the engine's, None if no head came; `error` is the agent's explanation of a rejection.
        """
        engine_error = outcome is Outcome.RELEASED and status is not None and status >= ENGINE_ERROR_STATUS
        if Part.WHOLE in self._released or (outcome is Outcome.RELEASED and not engine_error):
            return Deliver()
        self._crashes += 1 if outcome is Outcome.CRASHED else 0
        self._engine_errors += 1 if engine_error else 0
        fault = self._fault(outcome, verdict, error)
        if self._released - {Part.OPENING}:
            return FailStream(fault.code, fault.message)
        if fault.final or len(self._tried) >= self._max_attempts:
            return Fail(fault.code, fault.message)
        self._doubted.discard(self._tried[-1])
        if outcome is Outcome.AGENT_LOST or verdict.kind is not VerdictKind.CONTAMINATED:
            self._doubted.add(self._tried[-1])  # it may well live on, tested; a contaminated one is replaced
        if outcome is Outcome.WITHHELD and verdict.kind is not VerdictKind.CONTAMINATED:
            self._agreed |= AGREEABLE & {verdict.reason}
        return RunElsewhere(
            exclude=frozenset(self._tried) - self._doubted,
            avoid=frozenset(self._doubted),
            agreed=self._agreed,
            fresh=outcome is not Outcome.AGENT_LOST and self._needs_fresh(verdict),
        )

    def _needs_fresh(self, verdict: Verdict) -> bool:
        """Say whether only a fresh process will do: the last chance after a contamination, which makes one fresh.

        Workers that share the load also share its faults: a second and a third may be about to fail like the first.
        """
        last_chance = len(self._tried) == self._max_attempts - 1
        return last_chance and verdict.kind is VerdictKind.CONTAMINATED and self._replaces_contaminated

    def _fault(self, outcome: Outcome, verdict: Verdict, error: str) -> _Fault:
        match outcome:
            case Outcome.WITHHELD if verdict.kind is VerdictKind.UNVERIFIABLE:
                return _Fault("isolation_unavailable", f"No worker could prove its isolation ({_reason(verdict)}).")
            case Outcome.WITHHELD:
                return _Fault("response_contaminated", f"The response did not pass verification ({_reason(verdict)}).")
            case Outcome.CRASHED if self._crashes >= MAX_CRASHES:
                return _Fault("request_refused", f"The request crashed {self._crashes} workers.", final=True)
            case Outcome.CRASHED | Outcome.WORKER_LOST:
                return _Fault("worker_lost", "The worker failed before its response was complete.")
            case Outcome.RELEASED:
                final = self._engine_errors >= MAX_ENGINE_ERRORS
                return _Fault("worker_lost", "The worker's engine failed with an error of its own.", final=final)
            case Outcome.AGENT_LOST:
                return _Fault("worker_lost", "The connection to the worker's node was lost.")
            case Outcome.SWALLOWED:
                return _Fault("worker_lost", "The worker took the request and did nothing.")
            case Outcome.TIMED_OUT | Outcome.CANCELLED:
                return _Fault("request_timeout", "The request's time was over before its response was.", final=True)
            case Outcome.REJECTED:
                return _Fault("invalid_request", error or "The worker rejected the request.", final=True)
            case _:
                assert_never(outcome)


@dataclass(frozen=True, slots=True)
class _Fault:
    """What one attempt came to, in the words a client would read if it was the last."""

    code: str
    message: str
    final: bool = False
    """Another attempt cannot help, or may do harm."""


def _reason(verdict: Verdict) -> str:
    return verdict.kind.value if verdict.reason is None else verdict.reason.value
