"""How `check` tells a person what it found, on one screen.

A table, the answers that were not right, the profile, and settings for a pool of such servers; the rest is in reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.counters import COUNTERS
from basert_fleet.cli.findings import ShapeFound, Slot
from basert_fleet.cli.report import DRIFT, REUSE, Report, Status
from basert_fleet.cli.shapes import FRESH
from basert_fleet.cli.tables import table
from basert_fleet.cli.visible import visible

HEADS = ("shape", "right", "finish reasons", "prompt tokens", "median s", "max s", "/slots tokens/position")
NUMBERS = frozenset({1, 4, 5})
MOST_TOLD = 3
"""Answers of one shape that are told apart; the reports have all. Chosen for one screen."""
PROFILED = (COUNTERS, REUSE, DRIFT)
"""Findings that the table does not show."""

STAYS = (
    "A contaminated server stays so until it is restarted: shapes after the first wrong one may be wrong for that "
    "reason alone.\nTo see one shape by itself, restart the server and run check with --only SHAPE."
)
CONTROL_LEFT_OUT = (
    "The report's first control, a fresh process for each request, is untested: it needs --restart-command."
)


def told(report: Report) -> str:
    """Return the whole text for standard output."""
    rows = [_row(shape) for shape in report.shapes]
    parts = [
        *([table(HEADS, rows, right=NUMBERS)] if rows else []),
        *faults(report.shapes),
        _profile(report),
        f"Settings for a pool of such servers:\n{report.recommendation.yaml}".rstrip(),
        _summary(report),
    ]
    return "\n\n".join(parts) + "\n"


def _row(shape: ShapeFound) -> tuple[str, ...]:
    reasons = ", ".join(f"{visible(reason)} {count}" for reason, count in shape.finish_reasons.items())
    return (
        shape.title,
        score(shape),
        reasons or "-",
        _prompts(shape),
        f"{shape.median_seconds:.2f}",
        f"{shape.max_seconds:.2f}",
        "-" if shape.slots_after is None else f"{_slots(shape.slots_before)} -> {_slots(shape.slots_after)}",
    )


def _profile(report: Report) -> str:
    found = [finding for finding in report.findings if finding.name in PROFILED]
    return "\n".join(f"{finding.title}: {visible(finding.detail)}" for finding in found)


def score(shape: ShapeFound) -> str:
    """Write how many were right."""
    return f"{shape.right}/{shape.judged}" if shape.judged else "not judged"


def _prompts(shape: ShapeFound) -> str:
    if shape.first_prompt_tokens is None:
        return "-"
    later = shape.least_later_prompt_tokens
    return str(shape.first_prompt_tokens) if later is None else f"{shape.first_prompt_tokens} -> {later}"


def _slots(slots: Iterable[Slot] | None) -> str:
    return "-" if slots is None else " ".join(map(str, slots))


def faults(shapes: Iterable[ShapeFound]) -> Iterator[str]:
    """Tell each shape's answers that were not right."""
    for shape in shapes:
        rest = [answer for answer in shape.answers if answer.outcome is not Outcome.RIGHT]
        if rest:
            lines = [f"  {answer.asked}: {answer.outcome.value}, {visible(answer.got)}" for answer in rest[:MOST_TOLD]]
            more = [f"  and {len(rest) - MOST_TOLD} more"] if len(rest) > MOST_TOLD else []
            yield "\n".join([f"{shape.title}: {_verdict(shape)}", *lines, *more])


def _verdict(shape: ShapeFound) -> str:
    wrong, errors = shape.count(Outcome.WRONG), shape.count(Outcome.ERROR)
    if wrong:
        return f"WRONG, {wrong} of {shape.judged} answers are not what was asked for"
    if errors:
        return f"ERRORS, {errors} of {shape.judged} requests got no answer"
    return "not judged, no call was found that check can read"


def _summary(report: Report) -> str:
    wrong = sum(shape.count(Outcome.WRONG) for shape in report.shapes)
    if report.all_right:
        untested = any(found.name == FRESH and found.status is Status.UNTESTED for found in report.findings)
        return f"All {report.right} answers are right. {CONTROL_LEFT_OUT if untested else ''}".rstrip()
    if wrong:
        return f"{wrong} of {report.judged} answers are WRONG: requests reach each other in this server.\n{STAYS}"
    if not report.judged:
        return "Nothing could be judged."
    return f"{report.judged - report.right} of {report.judged} requests got no answer; no answer was wrong."
