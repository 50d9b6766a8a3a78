"""docs/configuration.md and the schema tell one story."""

from __future__ import annotations

from pathlib import Path

from basert_fleet.cli.configuration_page import configuration_page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_page_is_up_to_date() -> None:
    """Run `python -m basert_fleet.cli.configuration_page > docs/configuration.md` when this fails (C26)."""
    assert PAGE.read_text(encoding="utf-8") == configuration_page()


def test_each_kind_of_field_is_told_with_its_bounds_and_default() -> None:
    """One row of each kind: a choice, a number, a quantity with and without an upper bound, a list, an inner list."""
    page = configuration_page()
    for start in (
        "| `apiVersion` | `fleet.basert.dev/v1alpha1` | required |",
        "| `spec.isolation.level` | `verify`, `scrub` | `verify` |",
        "| `spec.replicas` | whole number, 0 to 1000 | `1` |",
        "| `spec.resources.memory` | bytes, such as `24Gi`, more than 0 | none |",
        "| `spec.queue.maxBytes` | bytes, such as `24Gi`, 1Mi to 64Gi | `256Mi` |",
        "| `spec.server.command` | list, at most 64 entries | `[basert-serve]` |",
        "| `spec.server.env[].name` | string, at most 256 characters | required |",
        "| `spec.server.allowUnsafeFlags` | `true`, `false` | `false` |",
        "| `metadata.labels` | mapping of strings | none |",
        "| `spec.attach` | list, at most 256 entries | required |",
        "| `spec.attach[].restartCommand` | list, at most 64 entries | none |",
    ):
        assert start in page
