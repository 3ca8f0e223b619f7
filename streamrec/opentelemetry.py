"""Statistics for OpenTelemetry: observable instruments that read a snapshot whenever metrics are collected.

    from streamrec.opentelemetry import observe

    batches = dataset.iterate()
    observe(batches.stats)

Needs `pip install 'streamrec[opentelemetry]'`, and an SDK with an exporter, as your application sets it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from streamrec.pipeline import Stats
from streamrec.storage import Distribution, Snapshot
from streamrec.storage.statistics import Metric

__all__ = ["observe"]


def observe(snapshot: Callable[[], Snapshot | Stats], meter: Meter | None = None) -> None:
    """Exports one run's statistics, for as long as the meter lives.

    OpenTelemetry has no histogram that is read and not written to: the time to the first byte comes as a count,
    a sum, and bounds that half and 99 of 100 responses keep within.

    Args:
        snapshot: Gives them: `iterator.stats`, or `storages.statistics.snapshot` where no dataset runs.
        meter: Where the instruments are made; None: the global provider's, by the name "streamrec".
    """
    meter = meter or get_meter("streamrec")
    for counter, _ in snapshot().counters():
        callback = partial(_observe, snapshot, counter)
        meter.create_observable_counter(f"streamrec.{counter.name}", [callback], counter.unit, counter.help)
    for name, unit, create, value in (
        ("count", "1", meter.create_observable_counter, lambda times: times.count),
        ("sum", "s", meter.create_observable_counter, lambda times: times.total),
        ("p50", "s", meter.create_observable_gauge, lambda times: times.quantile(0.5)),
        ("p99", "s", meter.create_observable_gauge, lambda times: times.quantile(0.99)),
    ):
        told = "Time from a request to the head of its response."
        create(f"streamrec.first_byte.{name}", [partial(_first_byte, snapshot, value)], unit, told)


def _observe(
    snapshot: Callable[[], Snapshot | Stats], counter: Metric, options: CallbackOptions
) -> Iterator[Observation]:
    values = next(values for each, values in snapshot().counters() if each == counter)
    return (Observation(value, labels) for labels, value in values)


def _first_byte(
    snapshot: Callable[[], Snapshot | Stats], value: Callable[[Distribution], float], options: CallbackOptions
) -> Iterator[Observation]:
    found = snapshot()
    for backend, counts in (found.storage if isinstance(found, Stats) else found).backends.items():
        yield Observation(value(counts.first_byte), {"backend": backend})
