"""Statistics for OpenTelemetry: observable instruments that take a snapshot at each collection.

    from streamrec.opentelemetry import observe

    batches = dataset.iterate()
    observe(batches.stats)

Needs the extra `opentelemetry`, and an SDK with an exporter that your application
sets up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from streamrec.pipeline import Stats
from streamrec.storage import Distribution, Snapshot
from streamrec.storage.counters import Metric

__all__ = ["observe"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


def observe(snapshot: Callable[[], Snapshot | Stats], meter: Meter | None = None) -> None:
    """Exports the statistics of one run as long as the meter exists.

    OpenTelemetry has no observable histogram: the time to the first byte is exported as a count, a
    sum, and the quantiles p50, p90 and p99, within 1 %.

    Args:
        snapshot: Returns the statistics: `iterator.stats`, or `storages.statistics.snapshot`
            without a dataset.
        meter: Creates the instruments; None for the global provider's meter "streamrec".
    """
    meter = meter or get_meter("streamrec")
    for counter, _ in snapshot().counters():
        callback = partial(_observe, snapshot, counter)
        meter.create_observable_counter(
            f"streamrec.{counter.name}", [callback], counter.unit, counter.help
        )
    for name, unit, create, value in (
        ("count", "1", meter.create_observable_counter, lambda times: times.count),
        ("sum", "s", meter.create_observable_counter, lambda times: times.total),
        ("p50", "s", meter.create_observable_gauge, lambda times: times.quantile(0.5)),
        ("p90", "s", meter.create_observable_gauge, lambda times: times.quantile(0.9)),
        ("p99", "s", meter.create_observable_gauge, lambda times: times.quantile(0.99)),
    ):
        description = "Time from a request to the head of its response."
        create(
            f"streamrec.first_byte.{name}",
            [partial(_first_byte, snapshot, value)],
            unit,
            description,
        )


def _observe(
    snapshot: Callable[[], Snapshot | Stats], counter: Metric, options: CallbackOptions
) -> Iterator[Observation]:
    values = next(values for each, values in snapshot().counters() if each == counter)
    return (Observation(value, labels) for labels, value in values)


def _first_byte(
    snapshot: Callable[[], Snapshot | Stats],
    value: Callable[[Distribution], float],
    options: CallbackOptions,
) -> Iterator[Observation]:
    stats = snapshot()
    for backend, counts in (stats.storage if isinstance(stats, Stats) else stats).backends.items():
        yield Observation(value(counts.first_byte), {"backend": backend})
