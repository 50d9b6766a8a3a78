"""What the owners of a fleet's state tell at a scrape. Gauges are computed from this, never kept beside the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from basert_fleet.telemetry import definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from basert_fleet.telemetry.definitions import Definition

Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class PoolGauges:
    """One pool as it is now. Keys that are known but have nothing are told as 0, so that their series exist."""

    pool: str
    desired: int
    workers: Mapping[str, int]
    """By phase."""
    queued: Mapping[str, int]
    """By priority."""
    queued_bytes: int
    oldest_seconds: Mapping[str, float]
    """By what blocks the request."""
    slots: Mapping[str, int]
    """By activity."""
    demand: int


@dataclass(frozen=True, slots=True)
class NodeGauges:
    """One node that has been connected."""

    node: str
    connected: bool


@dataclass(frozen=True, slots=True)
class WorkerGauges:
    """One worker while it is desired."""

    pool: str
    node: str
    worker: str
    last_ready_timestamp: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class FleetGauges:
    """All that is exported as a gauge, taken in one moment."""

    pools: tuple[PoolGauges, ...] = ()
    nodes: tuple[NodeGauges, ...] = ()
    workers: tuple[WorkerGauges, ...] = ()
    desired_applied_timestamp: float | None = None
    """Unix seconds; None before the first desired state."""


class GaugeCollector(Collector):
    """Asks the owners once per scrape."""

    def __init__(self, source: Callable[[], FleetGauges]) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Return one family per gauge, all from one snapshot."""
        for definition, samples in _samples(self._source()):
            family = GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family

    def describe(self) -> Iterator[Metric]:
        """Return the names alone, so that registering takes no snapshot."""
        return iter(())


def _samples(now: FleetGauges) -> Iterator[tuple[Definition, list[Sample]]]:
    yield definitions.WORKERS, [((p.pool, phase), n) for p in now.pools for phase, n in p.workers.items()]
    yield definitions.WORKERS_DESIRED, [((p.pool,), p.desired) for p in now.pools]
    yield definitions.DEMAND, [((p.pool,), p.demand) for p in now.pools]
    yield definitions.QUEUE_DEPTH, [((p.pool, priority), n) for p in now.pools for priority, n in p.queued.items()]
    yield definitions.QUEUE_BYTES, [((p.pool,), p.queued_bytes) for p in now.pools]
    yield (
        definitions.QUEUE_OLDEST_SECONDS,
        [((p.pool, blocked), age) for p in now.pools for blocked, age in p.oldest_seconds.items()],
    )
    yield definitions.SLOTS, [((p.pool, state), n) for p in now.pools for state, n in p.slots.items()]
    yield definitions.NODE_CONNECTED, [((n.node, "false"), float(n.connected)) for n in now.nodes]
    yield (
        definitions.WORKER_LAST_READY,
        [((w.pool, w.node, w.worker), w.last_ready_timestamp) for w in now.workers],
    )
    applied = now.desired_applied_timestamp
    yield definitions.DESIRED_APPLIED, [] if applied is None else [((), applied)]
