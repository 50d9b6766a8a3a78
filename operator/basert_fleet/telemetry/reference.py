"""docs/metrics.md, written from the definitions: `python -m basert_fleet.telemetry.reference > docs/metrics.md`."""

from __future__ import annotations

import sys

from basert_fleet.telemetry.definitions import DEFINITIONS, Definition, Kind

_OPENING = """\
# Metrics

`GET /metrics` on the ops port, in the Prometheus or the OpenMetrics text format. Every series below exists from the
start of its pool or node, at 0; those of links only where agents dial in (`basert-fleet gateway`). This page is
generated from `telemetry/definitions.py`; a test fails when it is stale.

| metric | kind | labels | meaning |
|---|---|---|---|
"""


def metrics_page() -> str:
    """Return the whole page."""
    return _OPENING + "".join(_row(definition) for definition in DEFINITIONS) + "\n" + _buckets()


def _row(definition: Definition) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels)
    return f"| `{definition.name}` | {definition.kind.value} | {labels} | {definition.help} |\n"


def _buckets() -> str:
    lines = [
        f"- `{definition.name}`: {', '.join(f'{bound:g}' for bound in definition.buckets)}\n"
        for definition in DEFINITIONS
        if definition.kind is Kind.HISTOGRAM
    ]
    return "Upper bounds of the histograms' buckets:\n\n" + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
