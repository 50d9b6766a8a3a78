"""What may go out before and after the verdict, and what follows each end of an attempt."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from basert_fleet.core.delivery import (
    Admission,
    Attempts,
    Deliver,
    Fail,
    FailStream,
    Gate,
    Next,
    Outcome,
    Part,
    RunElsewhere,
    VerifyMode,
    blames_request,
    raised,
    releases,
)
from basert_fleet.core.verdict import KIND_OF_REASON, Reason, Verdict, VerdictKind

CLEAN = Verdict(VerdictKind.CLEAN, drift_tokens=0)
DRIFT = Verdict.because(Reason.POSITION_DRIFT, drift_tokens=128)
VERDICTS = [CLEAN, *map(Verdict.because, Reason)]
AGREEMENTS = [frozenset[Reason](), frozenset(Reason), *(frozenset({reason}) for reason in Reason)]
STREAM = [Part.OPENING, Part.TEXT, Part.TOOL_CALL, Part.ENDING]


@pytest.mark.parametrize(("pool", "asked"), list(product(VerifyMode, [None, *VerifyMode])))
def test_a_client_can_only_raise_the_mode(pool: VerifyMode, asked: VerifyMode | None) -> None:
    """The stricter of both modes holds; off is the weakest and full the strictest."""
    order = [VerifyMode.OFF, VerifyMode.TOOL_CALLS, VerifyMode.FULL]
    expected = order[max(order.index(pool), order.index(asked or pool))]
    assert raised(pool, asked) is expected


def admitted(gate: Gate, parts: list[Part]) -> list[Part]:
    """Return the parts that this gate lets through."""
    return [part for part in parts if gate.admit(part) is Admission.PASS]


@pytest.mark.parametrize(
    ("mode", "structured", "parts", "passed"),
    [
        (VerifyMode.OFF, True, STREAM, STREAM),
        (VerifyMode.OFF, True, [Part.WHOLE], [Part.WHOLE]),
        (VerifyMode.TOOL_CALLS, False, STREAM, [Part.OPENING, Part.TEXT]),
        (VerifyMode.TOOL_CALLS, False, [Part.OPENING, Part.TEXT, Part.ENDING], [Part.OPENING, Part.TEXT]),
        (VerifyMode.TOOL_CALLS, False, [Part.TEXT, Part.TOOL_CALL, Part.TEXT], [Part.TEXT]),
        (VerifyMode.TOOL_CALLS, False, [Part.TOOL_CALL, Part.ENDING], []),
        (VerifyMode.TOOL_CALLS, False, [Part.WHOLE], []),
        (VerifyMode.TOOL_CALLS, True, [Part.OPENING, Part.TEXT, Part.ENDING], []),
        (VerifyMode.FULL, False, STREAM, []),
    ],
)
def test_what_passes_the_gate(mode: VerifyMode, structured: bool, parts: list[Part], passed: list[Part]) -> None:
    """Each mode lets through what the design's section 5 says, in order, up to the first piece that must wait."""
    assert admitted(Gate(mode, structured=structured), parts) == passed


@settings(max_examples=300)
@given(
    mode=st.sampled_from(VerifyMode),
    structured=st.booleans(),
    parts=st.lists(st.sampled_from(Part), min_size=2),
)
def test_the_gate_is_a_barrier(mode: VerifyMode, structured: bool, parts: list[Part]) -> None:
    """Nothing passes after something was held, and no unjudged call, ending or whole passes at all."""
    gate = Gate(mode, structured=structured)
    passed = admitted(gate, parts)
    assert passed == parts[: len(passed)]
    if mode is not VerifyMode.OFF:
        assert not {Part.TOOL_CALL, Part.WHOLE, Part.ENDING} & set(passed)
    if mode is VerifyMode.FULL or (structured and mode is VerifyMode.TOOL_CALLS):
        assert not passed
    if mode is VerifyMode.OFF:
        assert passed == parts


@pytest.mark.parametrize("verdict", VERDICTS)
def test_only_clean_or_agreed_responses_are_released(verdict: Verdict) -> None:
    """Clean is released, contaminated never; doubt only if another worker had the very same, or /slots is waived."""
    for agreed, require_slots in product(AGREEMENTS, [True, False]):
        assert releases(verdict, agreed=agreed, require_slots=require_slots) is (
            verdict.kind is VerdictKind.CLEAN
            or (verdict.kind in {VerdictKind.SUSPECT, VerdictKind.UNVERIFIABLE} and verdict.reason in agreed)
            or (verdict.kind is VerdictKind.UNVERIFIABLE and not require_slots)
        )


def after(*ends: tuple[Outcome, Verdict], max_attempts: int = 3, released: Part | None = None) -> Next:
    """Return what follows the last of these ends, each on another worker; the last attempt released a part."""
    attempts = Attempts(max_attempts=max_attempts)
    following: Next = Deliver()
    for number, (outcome, verdict) in enumerate(ends, start=1):
        attempts.started(f"chat-{number}", 1)
        if released is not None and number == len(ends):
            attempts.released(released)
        following = attempts.ended(outcome, verdict, status=200)
    assert attempts.count == len(ends)
    return following


CRASHED = (Outcome.CRASHED, Verdict.because(Reason.SERVER_RESTARTED))
LOST = (Outcome.WORKER_LOST, Verdict.because(Reason.SERVER_RESTARTED))
SWALLOWED = (Outcome.SWALLOWED, Verdict.because(Reason.NO_PROOF_OF_IDLE))
CONTAMINATED = (Outcome.WITHHELD, DRIFT)
AWAY = (Outcome.AGENT_LOST, Verdict.because(Reason.NO_PROOF_OF_IDLE))
SUSPECT = (Outcome.WITHHELD, Verdict.because(Reason.TOOL_ARGUMENTS_INVALID))
SILENT = (Outcome.WITHHELD, Verdict.because(Reason.SLOTS_UNREACHABLE))


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_released_response_is_delivered(verdict: Verdict) -> None:
    """What was handed over whole is the answer, whatever the judge says of the slot afterwards."""
    assert after((Outcome.RELEASED, verdict)) == Deliver()


@pytest.mark.parametrize("outcome", Outcome)
def test_a_whole_response_that_went_out_is_delivered(outcome: Outcome) -> None:
    """Once the client has all of it, nothing that follows can need another answer."""
    assert after((outcome, DRIFT), released=Part.WHOLE) == Deliver()


@pytest.mark.parametrize("end", [CRASHED, LOST, AWAY, SWALLOWED, CONTAMINATED, SUSPECT, SILENT])
def test_a_first_failure_runs_elsewhere(end: tuple[Outcome, Verdict]) -> None:
    """One bad attempt is invisible to the client, also after only a role went out."""
    for released in (None, Part.OPENING):
        following = after(end, released=released)
        assert isinstance(following, RunElsewhere)
        doubted = end in (SUSPECT, SILENT, AWAY)
        assert (following.avoid if doubted else following.exclude) == {("chat-1", 1)}
        assert not (following.exclude if doubted else following.avoid)


@pytest.mark.parametrize(
    ("verdict", "agreed"),
    [
        (Verdict.because(reason), reason in {
            Reason.TOOL_ARGUMENTS_INVALID,
            Reason.TOOL_NAME_UNKNOWN,
            Reason.TOOL_CALL_MISSING,
            Reason.NOT_CALIBRATED,
            Reason.USAGE_MISSING,
        })
        for reason in Reason
    ],
)  # fmt: skip
def test_what_the_next_worker_may_agree_to(verdict: Verdict, agreed: bool) -> None:
    """Doubt that can lie in the request or the build is put to another worker; contamination and silence are not."""
    following = after((Outcome.WITHHELD, verdict))
    assert isinstance(following, RunElsewhere)
    assert following.agreed == ({verdict.reason} if agreed else set())


def test_agreed_reasons_add_up() -> None:
    """A third worker may agree with either of the first two."""
    following = after(SUSPECT, (Outcome.WITHHELD, Verdict.because(Reason.TOOL_CALL_MISSING)))
    assert following == RunElsewhere(
        exclude=frozenset(),
        avoid=frozenset({("chat-1", 1), ("chat-2", 1)}),
        agreed=frozenset({Reason.TOOL_ARGUMENTS_INVALID, Reason.TOOL_CALL_MISSING}),
    )


def test_the_last_chance_after_a_contamination_is_a_fresh_process() -> None:
    """Workers that share the load share its faults: the last attempt must not land on one that is about to fail."""
    first, second = after(CONTAMINATED), after(CONTAMINATED, CONTAMINATED)
    assert isinstance(first, RunElsewhere)
    assert isinstance(second, RunElsewhere)
    assert (first.fresh, second.fresh) == (False, True)
    doubted = after(CONTAMINATED, SUSPECT)
    assert isinstance(doubted, RunElsewhere)
    assert not doubted.fresh


def test_no_fresh_process_is_asked_for_where_none_will_come() -> None:
    """A pool that confirms drift by a canary may keep its processes; waiting for a new one has no end."""
    attempts = Attempts(max_attempts=2, replaces_contaminated=False)
    attempts.started("chat-1", 1)
    following = attempts.ended(*CONTAMINATED, status=200)
    assert isinstance(following, RunElsewhere)
    assert not following.fresh


def test_a_process_that_broke_one_answer_and_lives_may_be_tried_again() -> None:
    """It was tested since; where it is the only worker, waiting for another process would have no end."""
    following = after((Outcome.WORKER_LOST, CLEAN))
    assert isinstance(following, RunElsewhere)
    assert (following.exclude, len(following.avoid)) == (frozenset(), 1)


def test_a_lost_agent_blames_no_request() -> None:
    """Two broken links are no two crashes, and no fresh process has to come of them."""
    following = after(AWAY, AWAY)
    assert isinstance(following, RunElsewhere)
    assert not following.fresh
    assert not blames_request(*AWAY)
    ended = after(AWAY, AWAY, AWAY)
    assert isinstance(ended, Fail)
    assert ended.code == "worker_lost"


def test_a_doubted_process_that_fails_after_all_is_excluded() -> None:
    """It got the request again for want of another; now there is no doubt."""
    attempts = Attempts(max_attempts=4)
    for end in (SUSPECT, CONTAMINATED):
        attempts.started("chat-1", 1)
        following = attempts.ended(*end, status=200)
    assert isinstance(following, RunElsewhere)
    assert (following.exclude, following.avoid) == ({("chat-1", 1)}, frozenset())


@pytest.mark.parametrize(
    ("end", "blamed"),
    [(CRASHED, True), (LOST, True), (SWALLOWED, True), (SUSPECT, True), (CONTAMINATED, False), (SILENT, False)],
)
def test_whose_doing_a_workers_next_minutes_are(end: tuple[Outcome, Verdict], blamed: bool) -> None:
    """A tenant pays for the tests that its requests cause, not for an engine that mixes users up."""
    assert blames_request(*end) is blamed


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (LOST, "worker_lost"),
        (SWALLOWED, "worker_lost"),
        (CONTAMINATED, "response_contaminated"),
        (SUSPECT, "response_contaminated"),
        (SILENT, "isolation_unavailable"),
        ((Outcome.TIMED_OUT, DRIFT), "request_timeout"),
        ((Outcome.CANCELLED, CLEAN), "request_timeout"),
        ((Outcome.REJECTED, CLEAN), "invalid_request"),
    ],
)
def test_the_last_attempt_names_the_error(end: tuple[Outcome, Verdict], code: str) -> None:
    """Out of attempts, the client reads what the last one came to; with text out already, as a stream's error."""
    failed = after(end, max_attempts=1)
    assert isinstance(failed, Fail)
    assert failed.code == code
    for part in (Part.TEXT, Part.TOOL_CALL, Part.ENDING):
        cut = after(end, released=part)
        assert isinstance(cut, FailStream)
        assert (cut.code, cut.message) == (failed.code, failed.message)


@pytest.mark.parametrize("end", [SWALLOWED, CONTAMINATED, SUSPECT, SILENT])
def test_attempts_are_three(end: tuple[Outcome, Verdict]) -> None:
    """The second failure still runs elsewhere, the third is the last."""
    assert isinstance(after(end, end), RunElsewhere)
    assert isinstance(after(end, end, end), Fail)


def test_two_crashes_blame_the_request() -> None:
    """A body that took two processes down does not reach a third, although attempts are left."""
    failed = after(CRASHED, CRASHED)
    assert isinstance(failed, Fail)
    assert failed.code == "request_refused"


def test_a_crash_between_other_failures_is_no_blame() -> None:
    """Only crashes add up to a refusal."""
    failed = after(LOST, CONTAMINATED, CRASHED)
    assert isinstance(failed, Fail)
    assert failed.code == "worker_lost"


@pytest.mark.parametrize("outcome", [Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.REJECTED])
def test_what_no_other_worker_can_help_ends_at_once(outcome: Outcome) -> None:
    """A request whose time is over, or that is wrong, is not run again."""
    assert isinstance(after((outcome, CLEAN)), Fail)


def test_a_rejection_says_why() -> None:
    """The agent's explanation reaches the client."""
    attempts = Attempts(max_attempts=3)
    attempts.started("chat-0", 1)
    failed = attempts.ended(Outcome.REJECTED, CLEAN, status=None, error="messages is not a list")
    assert failed == Fail("invalid_request", "messages is not a list")


def test_an_engines_refusal_of_a_request_is_its_answer() -> None:
    """A 4xx is delivered as it is."""
    attempts = Attempts(max_attempts=3)
    attempts.started("chat-0", 1)
    assert attempts.ended(Outcome.RELEASED, CLEAN, status=499) == Deliver()


def test_an_engines_own_error_runs_elsewhere_once() -> None:
    """A 5xx tells of the worker: one more try, then the client reads worker_lost and is not blamed."""
    attempts = Attempts(max_attempts=3)
    attempts.started("chat-0", 1)
    assert isinstance(attempts.ended(Outcome.RELEASED, CLEAN, status=500), RunElsewhere)
    attempts.started("chat-1", 1)
    failed = attempts.ended(Outcome.RELEASED, CLEAN, status=503)
    assert isinstance(failed, Fail)
    assert failed.code == "worker_lost"


PROCESSES = [("chat-0", 1), ("chat-0", 2), ("chat-1", 1), ("chat-1", 2)]
RETRIED = [
    Outcome.WITHHELD,
    Outcome.CRASHED,
    Outcome.WORKER_LOST,
    Outcome.SWALLOWED,
    Outcome.AGENT_LOST,
]  # drawn more often: the others end a request
ENDS = st.tuples(
    st.sampled_from([*Outcome, *RETRIED, *RETRIED]),
    st.sampled_from(VERDICTS),
    st.sampled_from([None, 200, 400, 500]),
    st.sampled_from([[], [], [Part.OPENING], [Part.TEXT], [Part.OPENING, Part.TOOL_CALL], [Part.ENDING], [Part.WHOLE]]),
)


@settings(max_examples=500)
@given(max_attempts=st.integers(1, 4), ends=st.lists(ENDS, min_size=4, max_size=4), data=st.data())
def test_a_request_always_comes_to_an_end(
    max_attempts: int, ends: list[tuple[Outcome, Verdict, int | None, list[Part]]], data: st.DataObject
) -> None:
    """Whatever happens: at most max_attempts, never the same process twice, never two attempts joined, no second crash.

    A clean response that was handed over is always delivered.
    """
    attempts = Attempts(max_attempts=max_attempts)
    tried: set[tuple[str, int]] = set()
    given_reasons: set[Reason | None] = set()
    visible, crashes = False, 0
    following: Next | None = None
    for outcome, verdict, status, parts in ends:
        if following is not None and not isinstance(following, RunElsewhere):
            break
        if following is not None:
            assert following.exclude | following.avoid == tried
        process = data.draw(st.sampled_from([process for process in PROCESSES if process not in tried]))
        tried.add(process)
        attempts.started(*process)
        for part in parts:
            attempts.released(part)
        visible = visible or bool(set(parts) - {Part.OPENING})
        crashes += outcome is Outcome.CRASHED
        given_reasons.add(verdict.reason)
        following = attempts.ended(outcome, verdict, status=status)
        if isinstance(following, RunElsewhere):
            assert not visible
            assert crashes < 2
            assert following.agreed <= given_reasons
            assert VerdictKind.CONTAMINATED not in {KIND_OF_REASON[reason] for reason in following.agreed}
        assert isinstance(following, FailStream) is (visible and not isinstance(following, Deliver))
        if outcome is Outcome.RELEASED and status != 500:
            assert following == Deliver()
    assert not isinstance(following, RunElsewhere)
    assert attempts.count == len(tried) <= max_attempts
