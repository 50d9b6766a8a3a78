"""A reader who begins at the README finds every page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_is_linked_from_the_table_of_the_readme():
    """A page that nobody links is a page that nobody reads."""
    rows = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    linked = set(re.findall(r"\]\(docs/([\w-]+\.md)", "\n".join(rows)))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == linked
