"""Counting: series that exist from the start, and a page of metrics that is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from basert_fleet.core.delivery import Part
from basert_fleet.core.verdict import Reason, Verdict, VerdictKind
from basert_fleet.telemetry.definitions import DEFINITIONS, Kind
from basert_fleet.telemetry.gauges import FleetGauges, NodeGauges, PoolGauges, WorkerGauges
from basert_fleet.telemetry.links import LinkCollector
from basert_fleet.telemetry.metrics import Metrics
from basert_fleet.telemetry.reference import metrics_page
from basert_fleet.wire.resumable import LinkCounts

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
GAUGES = FleetGauges(
    pools=(
        PoolGauges("qwen", 2, {"READY": 1}, {"normal": 3}, 400, {"capacity": 1.5}, {"idle": 1, "leased": 1}, demand=4),
    ),
    nodes=(NodeGauges("mac-1", connected=True),),
    workers=(WorkerGauges("qwen", "mac-1", "qwen-0", 1000.0),),
    desired_applied_timestamp=900.0,
)


def metrics_of(gauges: FleetGauges = GAUGES) -> Metrics:
    """Return metrics with the pool `qwen` declared."""
    metrics = Metrics(lambda: gauges)
    metrics.declare_pool("qwen", outcomes=["ok", "queue_full"], priorities=["normal"])
    metrics.declare_node("mac-1", ["qwen"])
    metrics.registry.register(LinkCollector(lambda: {"mac-1": LinkCounts(opened=2)}))
    return metrics


def test_the_page_of_metrics_is_up_to_date():
    """docs/metrics.md is what the definitions say (C26)."""
    assert PAGE.read_text() == metrics_page()


def test_every_definition_is_emitted_and_nothing_else():
    """What is exported is what is defined, with the very labels (C26)."""
    emitted = {}
    for family in metrics_of().registry.collect():
        for sample in family.samples:
            if not sample.name.endswith(("_created", "_bucket", "_sum")):
                name = sample.name.removesuffix("_count") if family.type == "histogram" else sample.name
                emitted[name] = (family.type, tuple(sample.labels))
    assert emitted == {d.name: (d.kind.value, d.labels) for d in DEFINITIONS}


def test_names_follow_prometheus_rules():
    """Counters end in _total, nothing else does; each Help is a sentence that says what a rise means."""
    for definition in DEFINITIONS:
        assert definition.name.startswith("basert_fleet_")
        assert definition.name.endswith("_total") == (definition.kind is Kind.COUNTER)
        assert bool(definition.buckets) == (definition.kind is Kind.HISTOGRAM)
        assert list(definition.buckets) == sorted(definition.buckets)
        assert len(definition.help) > 40
    assert len({definition.name for definition in DEFINITIONS}) == len(DEFINITIONS)


@pytest.mark.parametrize("reason", [None, *Reason])
def test_every_verdict_has_a_series_from_the_start(reason):
    """`increase()` sees the first contamination of a known engine."""
    metrics = metrics_of()
    pool = metrics.declare_pool("qwen", outcomes=[], priorities=[])
    pool.declare_engine("0.1.7")
    verdict = Verdict(VerdictKind.CLEAN) if reason is None else Verdict.because(reason)
    labels = {"pool": "qwen", "engine": "0.1.7", "verdict": verdict.kind.value, "reason": reason or ""}
    assert metrics.registry.get_sample_value("basert_fleet_leases_total", labels) == 0
    pool.lease_ended("0.1.7", verdict, ())
    assert metrics.registry.get_sample_value("basert_fleet_leases_total", labels) == 1


def test_what_was_released_is_counted_by_its_verdict():
    """Each kind of piece counts once per lease, under the verdict that came after it."""
    metrics = metrics_of()
    pool = metrics.declare_pool("qwen", outcomes=[], priorities=[])
    pool.lease_ended("", Verdict.because(Reason.POSITION_DRIFT, drift_tokens=128), {Part.OPENING, Part.TEXT})
    value = metrics.registry.get_sample_value
    labels = {"pool": "qwen", "verdict": "contaminated"}
    assert value("basert_fleet_released_total", {**labels, "part": "text"}) == 1
    assert value("basert_fleet_released_total", {**labels, "part": "tool_call"}) == 0
    assert value("basert_fleet_drift_tokens_sum", {"pool": "qwen"}) == 128


def test_declaring_a_pool_again_keeps_its_counts():
    """An edit of a pool's spec resets nothing."""
    metrics = metrics_of()
    again = metrics.declare_pool("qwen", outcomes=["ok"], priorities=["normal"])
    again.outcomes["ok"].inc()
    metrics.declare_pool("qwen", outcomes=["ok"], priorities=["normal"])
    assert metrics.registry.get_sample_value("basert_fleet_requests_total", {"pool": "qwen", "outcome": "ok"}) == 1


def test_gauges_are_asked_for_at_each_scrape():
    """A gauge is what its owner says now; two fleets in one process do not share any."""
    told = [FleetGauges(), GAUGES]
    metrics = Metrics(lambda: told.pop(0))
    assert metrics.registry.get_sample_value("basert_fleet_demand", {"pool": "qwen"}) is None
    assert metrics.registry.get_sample_value("basert_fleet_demand", {"pool": "qwen"}) == 4
    assert Metrics(FleetGauges).registry is not metrics.registry
