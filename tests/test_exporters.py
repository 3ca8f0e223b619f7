"""Exporters, against the real packages: what they export is what the snapshot says."""

import math
from collections.abc import Iterator
from dataclasses import fields

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from streamrec.opentelemetry import observe
from streamrec.pipeline import ChainStats, StageStats, Stats
from streamrec.prometheus import StatisticsCollector
from streamrec.storage import Counts, Statistics
from streamrec.storage.backend import FastPath
from streamrec.storage.counters import metrics_of
from streamrec.storage.faults import Cause
from streamrec.storage.statistics import COUNTERS, Tally


@pytest.fixture
def statistics() -> Statistics:
    statistics = Statistics()
    for scheme, times in (("s3", 3), ("gs", 2)):
        tally = Tally(statistics.backend(scheme))
        statistics.add_stream(f"{scheme}://b/k", tally)
        for _ in range(times):
            tally.request(waited=0.25)
            tally.first_byte(0.040)
            tally.first_byte(100.0)
            tally.block(1_000_000, store=0.5, consumer=0.125)
            for counter in (
                Cause.BROKEN,
                "failures",
                "throttled",
                "stalls",
                "hedges",
                "hedges_won",
                "losses",
            ):
                tally.count(counter)
            tally.count("lost_bytes", 100)
            tally.count("bytes_not_admitted", 10)
            fast_path = FastPath("what the tests leave")
            statistics.backend(scheme, [fast_path])
            fast_path.disable("it", "on purpose")
    return statistics


def stats_of(statistics: Statistics) -> Stats:
    """Of a run whose stores counted that."""
    source = StageStats(
        title="TFRecordDataset",
        line="Shards()",
        elements_out=9,
        bytes_out=90,
        busy=0.25,
        waited_for_input=0.5,
        waited_for_output=0.75,
    )
    stage = StageStats(
        title="batch",
        line="Batch()",
        elements_in=9,
        bytes_in=90,
        elements_out=3,
        bytes_out=91,
        busy=1.25,
        waited_for_input=2.5,
        waited_for_output=3.75,
    )
    return Stats(
        elements=3,
        bytes=91,
        consumer_waited=1.5,
        consumer_busy=2.5,
        queued=7,
        queue_limit=70,
        chain=ChainStats((source, stage), 4.0),
        storage=statistics.snapshot(),
    )


def scraped(registry: CollectorRegistry) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def test_every_number_has_a_name() -> None:
    shaped = {"retries", "first_byte"}
    assert {counter.field for counter in COUNTERS} | shaped == {
        field.name for field in fields(Counts)
    }


def test_prometheus_reads_at_each_scrape(statistics: Statistics) -> None:
    registry = CollectorRegistry()
    registry.register(StatisticsCollector(Statistics().snapshot))  # of an earlier run
    registry.register(StatisticsCollector(lambda: stats_of(statistics)))
    statistics.backend("s3").block(500_000, 0.0, 0.0)
    found = {(name, *sorted(labels.values())): value for name, labels, value in scraped(registry)}
    counts = statistics.snapshot().backends["s3"]
    for counter in COUNTERS:
        assert found[f"streamrec_{counter.name}_total", "s3"] == getattr(counts, counter.field) > 0
    assert found["streamrec_retries_total", "broken", "gs"] == 2
    assert found["streamrec_retries_total", "connect", "gs"] == 0
    assert found["streamrec_consumer_waited_seconds_total",] == 1.5
    assert found["streamrec_consumer_busy_seconds_total",] == 2.5
    assert found["streamrec_queued_bytes",] == 7
    for stage, title in ((0, "TFRecordDataset"), (1, "batch")):
        row = stats_of(statistics).stages[stage]
        for counter in metrics_of(StageStats):
            name = f"streamrec_{counter.name.replace('.', '_')}_total"
            assert found[name, str(stage), title] == getattr(row, counter.field)
    assert found["streamrec_open_streams",] == 2
    median = found["streamrec_first_byte_quantile_seconds", "0.5", "gs"]
    assert median == pytest.approx(0.040, rel=0.01)


def test_prometheus_histograms_count_upwards(statistics: Statistics) -> None:
    registry = CollectorRegistry()
    registry.register(StatisticsCollector(statistics.snapshot, prefix="mine"))
    buckets = {
        float(labels["le"]): value
        for name, labels, value in scraped(registry)
        if name == "mine_first_byte_seconds_bucket" and labels["backend"] == "s3"
    }
    assert [buckets[le] for le in sorted(buckets)] == sorted(buckets.values())
    assert {le: value for le, value in buckets.items() if le in (0.032, 0.06400, math.inf)} == {
        0.032: 0,
        0.064: 3,
        math.inf: 6,
    }
    sums = {
        name: value for name, labels, value in scraped(registry) if labels.get("backend") == "s3"
    }
    assert sums["mine_first_byte_seconds_sum"] == pytest.approx(300.12)
    assert sums["mine_first_byte_seconds_count"] == 6


def test_opentelemetry_reads_at_each_collection(statistics: Statistics) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe(lambda: stats_of(statistics), provider.get_meter("test"))
    statistics.backend("s3").block(500_000, 0.0, 0.0)
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[tuple[object, ...], float] = {}
    for resource in data.resource_metrics:
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in metric.data.data_points:
                assert isinstance(point, NumberDataPoint)
                found[metric.name, *sorted(map(str, dict(point.attributes or {}).values()))] = (
                    point.value
                )
    counts = statistics.snapshot().backends["s3"]
    for counter in COUNTERS:
        assert found[f"streamrec.{counter.name}", "s3"] == getattr(counts, counter.field) > 0
    assert found["streamrec.retries", "broken", "gs"] == 2
    assert found["streamrec.first_byte.count", "gs"] == 4
    assert found["streamrec.first_byte.sum", "gs"] == pytest.approx(200.08)
    assert found["streamrec.stage.busy_seconds", "1", "batch"] == 1.25
    assert found["streamrec.consumer_waited_seconds",] == 1.5
    assert found["streamrec.first_byte.p50", "gs"] == pytest.approx(0.040, rel=0.01)
    provider.shutdown()
