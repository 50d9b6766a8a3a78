"""Ask for a share of covered branches, which coverage.py's own threshold blends with covered lines.

Reads the data file that the test run left behind and prints the lines and branches that no test took.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from coverage import Coverage


def share(totals: dict[str, Any]) -> float:
    """Return the covered branches in percent; code without a branch counts as covered."""
    branches = int(totals["num_branches"])
    return 100.0 * int(totals["covered_branches"]) / branches if branches else 100.0


def measured_totals(data: Coverage) -> dict[str, Any]:
    """Return the totals of coverage.py's JSON report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        data.json_report(outfile=str(report))
        totals: dict[str, Any] = json.loads(report.read_text())["totals"]
        return totals


def main() -> int:
    """Print the report; the exit code tells whether the share is below what is asked for."""
    parser = argparse.ArgumentParser(description="Ask for a share of covered branches.")
    parser.add_argument("--at-least", type=float, required=True, metavar="PERCENT")
    minimum: float = parser.parse_args().at_least
    data = Coverage()
    data.load()
    data.report()
    covered = share(measured_totals(data))
    print(f"branches covered: {covered:.1f} %, asked for: {minimum:.1f} %")
    return 0 if covered >= minimum else 1


if __name__ == "__main__":
    sys.exit(main())
