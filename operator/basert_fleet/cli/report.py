"""One run of `check`, whole: the structure that `--report json` prints, and the findings that a gate acts on.

Field names are part of the interface (docs/check.md); they appear in camelCase. A field is added, never given another
meaning; a change that breaks readers raises `version`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.counters import COUNTERS, CountersFound
from basert_fleet.cli.findings import AnswerFound, ShapeFound
from basert_fleet.cli.profile import DriftFound, Profile, ReuseFound
from basert_fleet.cli.recommendation import Recommendation, recommend
from basert_fleet.cli.shapes import FRESH

VERSION = 1
REUSE, DRIFT = "prefix-reuse", "drift"
"""Names of findings, as COUNTERS is; the others have those of their shapes."""


class Status(StrEnum):
    """What a finding says of the server."""

    PASSED = "passed"
    FAILED = "failed"
    """An answer was wrong."""
    ERROR = "error"
    """No answer was wrong, and a request got none."""
    UNTESTED = "untested"
    """Nothing can be said."""
    NOTED = "noted"
    """A property of the server, neither right nor wrong."""


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """One thing that was looked at."""

    name: str
    """Stable: a shape's name, or `counters`, `prefix-reuse`, `drift`."""
    status: Status
    title: str
    detail: str


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """One run of `check`."""

    version: int
    url: str
    model: str
    right: int
    judged: int
    all_right: bool
    """Something was judged, and nothing was wrong or an error. The exit status says the same."""
    findings: tuple[Finding, ...]
    profile: Profile
    recommendation: Recommendation
    shapes: tuple[ShapeFound, ...]


def report(
    url: str, model: str, shapes: Sequence[ShapeFound], profile: Profile, *, spoiled: frozenset[str] = frozenset()
) -> Report:
    """Sum up all shapes; `spoiled` are those that were sent after a wrong answer, without a restart between."""
    right, judged = sum(shape.right for shape in shapes), sum(shape.judged for shape in shapes)
    return Report(
        version=VERSION,
        url=url,
        model=model,
        right=right,
        judged=judged,
        all_right=0 < judged == right,
        findings=tuple(_findings(shapes, profile, spoiled)),
        profile=profile,
        recommendation=recommend(profile, shapes),
        shapes=tuple(shapes),
    )


def _findings(shapes: Sequence[ShapeFound], profile: Profile, spoiled: frozenset[str]) -> Iterator[Finding]:
    if profile.counters is not None:
        yield _of_counters(profile.counters)
    yield _of_reuse(profile.reuse)
    for shape in shapes:
        yield _of_shape(shape, is_spoiled=shape.name in spoiled)
    if all(shape.name != FRESH for shape in shapes):
        detail = "a URL gives no way to restart a server; give --restart-command"
        yield Finding(FRESH, Status.UNTESTED, "control: a fresh process for each request", detail)
    yield _of_drift(profile.drift)


def _of_counters(counters: CountersFound) -> Finding:
    title = "healthy counters of /slots"
    if not counters.readings:
        return Finding(COUNTERS, Status.UNTESTED, title, counters.explanation)
    if counters.mode is None:
        return Finding(COUNTERS, Status.NOTED, title, counters.explanation)
    gaps = ", ".join(f"{ending.value} {gap:+d}" for ending, gap in counters.intercepts.items())
    rule = f"{counters.mode.value}: position ahead of tokens by {gaps}{' + completion tokens' * (counters.slope or 0)}"
    return Finding(COUNTERS, Status.NOTED, title, "; ".join(filter(None, [rule, counters.explanation])))


def _of_reuse(reuse: ReuseFound | None) -> Finding:
    title = "reuse of a repeated prefix"
    if reuse is None:
        return Finding(REUSE, Status.UNTESTED, title, "no two prompt_tokens of the repeated request are known")
    tokens = f"prompt_tokens {reuse.first_prompt_tokens} -> {reuse.least_later_prompt_tokens}"
    return Finding(REUSE, Status.NOTED, title, f"{'reused' if reuse.is_reused else 'not reused'}, {tokens}")


def _of_shape(shape: ShapeFound, *, is_spoiled: bool) -> Finding:
    wrong, errors = shape.count(Outcome.WRONG), shape.count(Outcome.ERROR)
    if wrong:
        detail = (
            f"{wrong} of {shape.judged} wrong, request {shape.first_wrong} the first: {_first(shape, Outcome.WRONG)}"
        )
        detail += "; the server had been wrong before, which may be why" * is_spoiled
        return Finding(shape.name, Status.FAILED, shape.title, detail)
    if errors:
        detail = f"{errors} of {shape.judged} without an answer: {_first(shape, Outcome.ERROR)}"
        return Finding(shape.name, Status.ERROR, shape.title, detail)
    if not shape.judged:
        return Finding(shape.name, Status.UNTESTED, shape.title, "no answer could be judged")
    return Finding(shape.name, Status.PASSED, shape.title, f"all {shape.right} right")


def _first(shape: ShapeFound, outcome: Outcome) -> str:
    answer: AnswerFound = next(answer for answer in shape.answers if answer.outcome is outcome)
    return f"{answer.asked} got {answer.got}"


def _of_drift(drift: DriftFound | None) -> Finding:
    title = "drift of the counters"
    if drift is None:
        return Finding(DRIFT, Status.UNTESTED, title, "no rule for the counters, or no sequential answers")
    first = "none" if drift.first_tokens is None else f"first {drift.first_tokens} tokens"
    detail = (
        f"{first} in {drift.judged} sequential answers: {drift.wrong_shown} wrong ones shown, "
        f"{drift.wrong_hidden} hidden, {drift.right_drifted} right ones drifted"
    )
    return Finding(DRIFT, Status.NOTED, title, detail)
