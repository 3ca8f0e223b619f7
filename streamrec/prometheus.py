"""Statistics for Prometheus: a collector that reads a snapshot whenever it is scraped.

    from prometheus_client import REGISTRY, start_http_server
    from streamrec.prometheus import StatisticsCollector

    batches = dataset.iterate()
    REGISTRY.register(StatisticsCollector(batches.stats))
    start_http_server(9000)

Needs `pip install 'streamrec[prometheus]'`. Nothing is counted twice: the numbers are those of
`batches.stats()`, labelled with the kind of store, or with the stage and its number among all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import ClassVar

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from streamrec.pipeline import Stats
from streamrec.storage import Distribution, Snapshot
from streamrec.storage.statistics import BOUNDS

__all__ = ["StatisticsCollector"]


class StatisticsCollector(Collector):
    """Exports one run's statistics, until a collector with the same prefix is made for the next run.

    Args:
        snapshot: Gives them: `iterator.stats`, or `storages.statistics.snapshot` where no dataset runs.
        prefix: Of all names. Give runs at the same time, as training and evaluation, a prefix each.
    """

    _exported: ClassVar[dict[str, StatisticsCollector]] = {}

    def __init__(self, snapshot: Callable[[], Snapshot | Stats], prefix: str = "streamrec") -> None:
        self._snapshot: Callable[[], Snapshot | Stats] | None = snapshot
        self._prefix = prefix
        if prefix in self._exported:
            self._exported[prefix]._snapshot = None
        self._exported[prefix] = self

    def describe(self) -> Iterator[Metric]:
        """No metrics: a registry takes the collectors of one run after another, which have the same names."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        if self._snapshot is None:
            return
        found = self._snapshot()
        for counter, values in found.counters():
            name = f"{self._prefix}_{counter.name.replace('.', '_')}"
            metric = Metric(name, counter.help, "counter")
            for labels, value in values:
                metric.add_sample(f"{name}_total", {key: str(label) for key, label in labels.items()}, value)
            yield metric
        snapshot = found.storage if isinstance(found, Stats) else found
        yield self._first_byte(snapshot)
        streams = len(snapshot.streams)
        yield GaugeMetricFamily(f"{self._prefix}_open_streams", "Objects that are being read.", value=streams)
        if isinstance(found, Stats):
            queued = "Bytes that wait for the consumer."
            yield GaugeMetricFamily(f"{self._prefix}_queued_bytes", queued, value=found.queued)

    def _first_byte(self, snapshot: Snapshot) -> Metric:
        family = HistogramMetricFamily(
            f"{self._prefix}_first_byte_seconds", "From a request to the head of its response.", labels=["backend"]
        )
        for backend, counts in snapshot.backends.items():
            family.add_metric([backend], _buckets(counts.first_byte), counts.first_byte.total)
        return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Prometheus counts upwards: each bucket holds what is below its bound."""
    names = [f"{bound:.4g}" for bound in BOUNDS] + ["+Inf"]
    return list(zip(names, accumulate(map(float, distribution.counts)), strict=True))
