"""A report as Markdown, for a ticket or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from basert_fleet.cli.answers import Outcome
from basert_fleet.cli.counters import CountersFound
from basert_fleet.cli.findings import ShapeFound
from basert_fleet.cli.report import Report
from basert_fleet.cli.visible import visible

SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~&@])")
"""What Markdown or HTML in it could act on; `@` would notify somebody of that name."""


def markdown(report: Report) -> str:
    """Return the whole document."""
    verdict = "all right" if report.all_right else "NOT all right"
    head = [
        "# Check of a server",
        f"{_plain(report.model)} at {_plain(report.url)}: {verdict}, {report.right} of {report.judged} answers right.",
    ]
    findings = _table(
        ("finding", "status", "what was found"),
        [(_plain(found.title), found.status.value, _plain(found.detail)) for found in report.findings],
    )
    parts = [*head, "## Findings", findings, *_readings(report.profile.counters), *_not_right(report.shapes)]
    settings = f"```yaml\n{report.recommendation.yaml}```"
    return "\n\n".join([*parts, "## Settings for a pool of such servers", settings]) + "\n"


def _readings(counters: CountersFound | None) -> Iterator[str]:
    if counters is None or not counters.readings:
        return
    yield "## Readings of /slots"
    rows = [
        (
            reading.ending.value,
            "unknown" if reading.completion_tokens is None else str(reading.completion_tokens),
            str(reading.cache_tokens),
            str(reading.cache_position),
        )
        for reading in counters.readings
    ]
    yield _table(("ending", "completion tokens", "cache tokens", "cache position"), rows)


def _not_right(shapes: Sequence[ShapeFound]) -> Iterator[str]:
    rows = [
        (shape.name, _plain(answer.asked), answer.outcome.value, _plain(answer.wanted or "a text"), _plain(answer.got))
        for shape in shapes
        for answer in shape.answers
        if answer.outcome is not Outcome.RIGHT
    ]
    if rows:
        yield "## Answers that were not right"
        yield _table(("shape", "asked", "outcome", "wanted", "got"), rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(heads)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(r"\\\1", visible(text))
