"""Statistics for OpenTelemetry: observable instruments that read a snapshot whenever metrics are collected.

    from streamrec.opentelemetry import observe

    batches = dataset.iterate()
    observe(batches.stats)

Needs `pip install 'streamrec[opentelemetry]'`, and an SDK with an exporter, as your application sets it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

from streamrec.pipeline import Stats
from streamrec.pipeline.telemetry.stats import COUNTERS as STAGE_COUNTERS
from streamrec.storage import Counts, Snapshot
from streamrec.storage.statistics import COUNTERS

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
    for counter in COUNTERS:
        value = partial(_field, counter.field)
        callback = partial(_observed, snapshot, value)
        meter.create_observable_counter(f"streamrec.{counter.name}", [callback], counter.unit, counter.help)
    meter.create_observable_counter(
        "streamrec.retries", [partial(_retries, snapshot)], "1", "Attempts that failed and were made again."
    )
    for name, unit, taken in (
        ("count", "1", lambda counts: counts.first_byte.count),
        ("sum", "s", lambda counts: counts.first_byte.total),
    ):
        callback = partial(_observed, snapshot, taken)
        meter.create_observable_counter(f"streamrec.first_byte.{name}", [callback], unit, "Heads of responses.")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        callback = partial(_observed, snapshot, partial(_quantile, share))
        meter.create_observable_gauge(f"streamrec.first_byte.{name}", [callback], "s", "Time to the first byte.")
    for counter in STAGE_COUNTERS:
        callback = partial(_staged, snapshot, counter.field)
        meter.create_observable_counter(f"streamrec.stage.{counter.name}", [callback], counter.unit, counter.help)
    for name in ("waited", "busy"):
        callback = partial(_consumer, snapshot, f"consumer_{name}")
        told = f"Seconds that the consumer was in: {name}."
        meter.create_observable_counter(f"streamrec.consumer_{name}_seconds", [callback], "s", told)


def _field(name: str, counts: Counts) -> float:
    value: float = getattr(counts, name)
    return value


def _quantile(share: float, counts: Counts) -> float:
    return counts.first_byte.quantile(share)


def _stores(snapshot: Callable[[], Snapshot | Stats]) -> Iterable[tuple[str, Counts]]:
    found = snapshot()
    return (found.storage if isinstance(found, Stats) else found).backends.items()


def _observed(
    snapshot: Callable[[], Snapshot | Stats], value: Callable[[Counts], float], options: CallbackOptions
) -> Iterable[Observation]:
    return [Observation(value(counts), {"backend": backend}) for backend, counts in _stores(snapshot)]


def _retries(snapshot: Callable[[], Snapshot | Stats], options: CallbackOptions) -> Iterator[Observation]:
    for backend, counts in _stores(snapshot):
        for cause, count in counts.retries.items():
            yield Observation(count, {"backend": backend, "cause": cause})


def _staged(snapshot: Callable[[], Snapshot | Stats], field: str, options: CallbackOptions) -> Iterable[Observation]:
    found = snapshot()
    for row, stage in enumerate(found.stages if isinstance(found, Stats) else ()):
        yield Observation(getattr(stage, field), {"row": row, "stage": stage.title})


def _consumer(snapshot: Callable[[], Snapshot | Stats], field: str, options: CallbackOptions) -> Iterable[Observation]:
    found = snapshot()
    if isinstance(found, Stats):
        yield Observation(getattr(found, field))
