"""What a gateway's links count, exported where agents dial in and nowhere else.

The links keep plain numbers, as they count within every frame; a scrape reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from basert_fleet.telemetry import definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from basert_fleet.telemetry.definitions import Definition


class LinkTotals(Protocol):
    """What one node's links have counted, as the transport keeps it; each number only ever grows."""

    opened: int
    resumed: int
    lost: int
    refused: int
    malformed: int
    duplicates: int


class LinkCollector(Collector):
    """Asks for the totals of all nodes, by name, once per scrape; an empty name is nobody's."""

    def __init__(self, source: Callable[[], Mapping[str, LinkTotals]]) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Return one family per counter, all from one reading."""
        totals = self._source().items()
        yield _family(definitions.LINKS_OPENED, ((node, of.opened) for node, of in totals))
        yield _family(definitions.LINKS_RESUMED, ((node, of.resumed) for node, of in totals))
        yield _family(definitions.LINKS_LOST, ((node, of.lost) for node, of in totals))
        yield _family(definitions.LINK_REFUSALS, ((node, of.refused) for node, of in totals))
        yield _family(definitions.LINK_MALFORMED_FRAMES, ((node, of.malformed) for node, of in totals))
        yield _family(definitions.LINK_DUPLICATES, ((node, of.duplicates) for node, of in totals))

    def describe(self) -> Iterator[Metric]:
        """Return no names, so that registering reads nothing."""
        return iter(())


def _family(definition: Definition, samples: Iterable[tuple[str, int]]) -> CounterMetricFamily:
    family = CounterMetricFamily(definition.name, definition.help, labels=definition.labels)
    for node, value in samples:
        family.add_metric((node,), value)
    return family
