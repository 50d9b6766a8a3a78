"""How `check` tells a person what it found: a table, the answers that were not right, and one line to remember."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.findings import Report, ShapeFound, Slot
from basert_fleet.cli.tables import table

HEADS = ("shape", "right", "finish reasons", "prompt tokens", "median s", "max s", "/slots tokens/position")
NUMBERS = frozenset({1, 4, 5})
MOST_TOLD = 8
"""Answers of one shape that are told apart; the JSON has all. Chosen for a terminal."""

STAYS = (
    "A contaminated server stays so until it is restarted: shapes after the first wrong one may be wrong for that "
    "reason alone.\nTo see one shape by itself, restart the server and run check with --only SHAPE."
)
CONTROL_LEFT_OUT = (
    "The report's first control, a fresh process for each request, is not among them: check cannot restart a server."
)


def told(report: Report) -> str:
    """Return the whole text for standard output."""
    rows = [_row(shape) for shape in report.shapes]
    parts = [table(HEADS, rows, right=NUMBERS), *faults(report.shapes), _summary(report)]
    return "\n\n".join(parts) + "\n"


def _row(shape: ShapeFound) -> tuple[str, ...]:
    reasons = ", ".join(f"{reason} {count}" for reason, count in shape.finish_reasons.items())
    return (
        shape.title,
        score(shape),
        reasons or "-",
        _prompts(shape),
        f"{shape.median_seconds:.2f}",
        f"{shape.max_seconds:.2f}",
        "-" if shape.slots_after is None else f"{_slots(shape.slots_before)} -> {_slots(shape.slots_after)}",
    )


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
            lines = [f"  {answer.asked}: {answer.outcome.value}, {answer.got}" for answer in rest[:MOST_TOLD]]
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
        return f"All {report.right} answers are right. {CONTROL_LEFT_OUT}"
    if wrong:
        return f"{wrong} of {report.judged} answers are WRONG: requests reach each other in this server.\n{STAYS}"
    if not report.judged:
        return "Nothing could be judged."
    return f"{report.judged - report.right} of {report.judged} requests got no answer; no answer was wrong."
