"""Plain text tables for a terminal: columns as wide as what is in them, numbers to the right."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

GAP = "  "


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> str:
    """Return the lines of a table; `right` are the columns (from 0) that hold numbers."""
    lines = [heads, *rows]
    widths = [max(_width(line[column]) for line in lines) for column in range(len(heads))]
    rule = ["-" * width for width in widths]
    return "\n".join(_line(cells, widths, right) for cells in (heads, rule, *rows))


def _line(cells: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    padded = []
    for column, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - _width(cell))
        padded.append(space + cell if column in right else cell + space)
    return GAP.join(padded).rstrip()


def _width(text: str) -> int:
    """Count a terminal's cells: East Asian characters take two."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)
