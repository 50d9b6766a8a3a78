"""What a person is told of an edit: each setting that differs, and pools that come and go."""

from __future__ import annotations

import pytest

from basert_fleet.cli.changes import changes
from basert_fleet.cli.fleetfile import read_pools
from basert_fleet.core.api import BasertPool

POOL = """\
apiVersion: fleet.basert.dev/v1alpha1
kind: BasertPool
metadata: {{name: {name}}}
spec:
  model: {{name: {name}-model, path: {name}.base}}
"""


def a_pool(name: str, more: str = "") -> BasertPool:
    """One pool; `more` continues its spec."""
    (pool,) = read_pools((POOL.format(name=name) + more).encode(), "fleet.yaml")
    return pool


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("", "  # a comment\n  replicas: 1\n", ()),
        ("", "  server: {maxContext: 8192}\n", ("a: spec.server.maxContext 4096 -> 8192",)),
        (
            "  replicas: 2\n  isolation: {level: scrub}\n",
            "",
            ("a: spec.replicas 2 -> 1", 'a: spec.isolation.level "scrub" -> "verify"'),
        ),
        ("", "  resources: {memory: 24Gi}\n", ("a: spec.resources.memory none -> 24Gi",)),
        ("  server: {args: [--x, '1']}\n", "", ('a: spec.server.args ["--x", "1"] -> []',)),
        ("", f"  server: {{args: [{'x' * 99}]}}\n", (f'a: spec.server.args [] -> ["{"x" * 58}…',)),
        ("", "  server: {env: [{name: TOKEN, value: secret}]}\n", ("a: spec.server.env changed",)),
    ],
)
def test_each_setting_that_differs_is_told(before: str, after: str, told: tuple[str, ...]) -> None:
    """Effective values are compared, so that a default written out is no change; secrets are not repeated."""
    assert changes([a_pool("a", before)], [a_pool("a", after)]) == told


def test_pools_that_come_and_go_are_told() -> None:
    """A renamed pool is another one."""
    assert changes([a_pool("a"), a_pool("b")], [a_pool("b"), a_pool("c", "  replicas: 2\n")]) == (
        "new: c × 2 (c-model)",
        "removed: a",
    )


def test_another_order_is_told() -> None:
    """Pools are placed in the order of the file, so that it is a setting as well."""
    assert changes([a_pool("a"), a_pool("b")], [a_pool("b"), a_pool("a")]) == ("the order of the pools",)


def test_a_label_that_was_not_there_is_told() -> None:
    """Fields that only one side has count as none on the other."""
    pool = a_pool("a")
    labelled = pool.model_copy(update={"metadata": pool.metadata.model_copy(update={"labels": {"x": "y"}})})
    assert changes([pool], [labelled]) == ('a: metadata.labels.x none -> "y"',)
