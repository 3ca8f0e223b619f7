"""Statistics for Prometheus: a collector that takes a snapshot at each scrape.

    from prometheus_client import REGISTRY, start_http_server
    from streamrec.prometheus import StatisticsCollector

    batches = dataset.iterate()
    REGISTRY.register(StatisticsCollector(batches.stats))
    start_http_server(9000)

Needs the extra `prometheus`. The values are those of `batches.stats()`, labelled
with the kind of store, or with the stage and the number of its row.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import ClassVar, Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from streamrec.pipeline import Stats
from streamrec.storage import Distribution, Snapshot

__all__ = ["StatisticsCollector"]

BUCKETS: Final = tuple(0.001 * math.sqrt(2.0) ** step for step in range(33))
"""Upper bounds of the exported buckets in seconds: 1 ms to 65.5 s, each 1.41 times the one before.
Those of `latency.py` are finer, and an exporter's series are one each."""

QUANTILES: Final = (0.5, 0.9, 0.99)


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


class StatisticsCollector(Collector):
    """Exports the statistics of one run until a collector with the same prefix is created for the
    next run.

    Args:
        snapshot: Returns the statistics: `iterator.stats`, or `storages.statistics.snapshot`
            without a dataset.
        prefix: Begins every metric's name. Simultaneous runs, such as training and evaluation, need
            different ones.
    """

    _exported: ClassVar[dict[str, StatisticsCollector]] = {}

    def __init__(self, snapshot: Callable[[], Snapshot | Stats], prefix: str = "streamrec") -> None:
        self._snapshot: Callable[[], Snapshot | Stats] | None = snapshot
        self._prefix = prefix
        if prefix in self._exported:
            self._exported[prefix]._snapshot = None
        self._exported[prefix] = self

    def describe(self) -> Iterator[Metric]:
        """No metrics, so that a registry accepts one collector after another with the same metric
        names.
        """
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All metrics with their current values."""
        if self._snapshot is None:
            return
        stats = self._snapshot()
        for counter, values in stats.counters():
            name = f"{self._prefix}_{counter.name.replace('.', '_')}"
            metric = Metric(name, counter.help, "counter")
            for labels, value in values:
                metric.add_sample(
                    f"{name}_total", {key: str(label) for key, label in labels.items()}, value
                )
            yield metric
        # A process has only what its storage counted; a run has what its stages counted, too.
        snapshot = stats.storage if isinstance(stats, Stats) else stats
        family = HistogramMetricFamily(
            f"{self._prefix}_first_byte_seconds",
            "From a request to the head of its response.",
            labels=["backend"],
        )
        for backend, counts in snapshot.backends.items():
            family.add_metric([backend], _buckets(counts.first_byte), counts.first_byte.total)
        yield family
        yield self._quantiles(snapshot)
        streams = len(snapshot.streams)
        yield GaugeMetricFamily(
            f"{self._prefix}_open_streams", "Objects that are being read.", value=streams
        )
        if isinstance(stats, Stats):
            queued = "Bytes that wait for the consumer."
            yield GaugeMetricFamily(f"{self._prefix}_queued_bytes", queued, value=stats.queued)

    def _quantiles(self, snapshot: Snapshot) -> Metric:
        """The time to the first byte within 1 %: Prometheus' own quantiles know only buckets."""
        family = GaugeMetricFamily(
            f"{self._prefix}_first_byte_quantile_seconds",
            "From a request to the head of its response, a quantile since the run began.",
            labels=["backend", "quantile"],
        )
        for backend, counts in snapshot.backends.items():
            for share in QUANTILES:
                family.add_metric([backend, f"{share:g}"], counts.first_byte.quantile(share))
        return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    """Cumulative buckets, as Prometheus needs them: each counts all values up to its bound."""
    counts = [0.0] * (len(BUCKETS) + 1)
    for bound, count in distribution.counts.items():
        # a bound may be a rounding error above the same bound here
        counts[bisect_left(BUCKETS, bound * (1 - 1e-9))] += count
    names = [f"{bound:.4g}" for bound in BUCKETS] + ["+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
