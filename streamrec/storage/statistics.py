"""Statistics: counters and histograms for each kind of store and each stream, and their lines in
the log.

Rules:

* The loop's thread alone counts, in plain numbers, without a lock or a clock of its own. A block
  costs one call (`Tally.block`); nothing is counted per record.
* Any thread may read at any time: a snapshot copies each number once. Numbers of one snapshot may
  be a block apart, and no number ever falls.
* A stream counts in its own table and in its store's, so that a snapshot needs no sums.
* Only open streams are listed, so a run over a million shards does not hold a million tallies.

`logging.getLogger("streamrec").setLevel(logging.INFO)` shows a line a minute while Storages are
open, one at their end, and one for each retry. The event loop's timer triggers it; without that
level, nothing is formatted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from streamrec.display import mask_name
from streamrec.storage.backend import FastPath
from streamrec.storage.counters import Metric, counter, explain_counters, metrics_of
from streamrec.storage.faults import Cause
from streamrec.storage.latency import Distribution, LatencyHistogram
from streamrec.storage.tasks import running_loop


@explain_counters
@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The counters of one kind of store, or of one stream. Times are in seconds, summed over
    streams.

    Attributes:
        retries: Failed attempts that were retried, by cause (`Cause`, in lower case).
        first_byte: Time from a request to the head of its response.
    """

    requests: int = counter("1", "Requests sent, hedges included.")
    bytes: int = counter("By", "Bytes delivered to readers.", name="read_bytes")
    retries: Mapping[str, int] = field(default_factory=dict)
    failures: int = counter("1", "Operations given up after their retries.")
    hedges: int = counter("1", "Requests sent because another one was slow.")
    hedges_won: int = counter("1", "Second requests that were faster.")
    stalls: int = counter("1", "Bodies that gave nothing for longer than the limit.")
    throttled: int = counter("1", "Answers that asked for fewer requests.")
    waited_for_turn: float = counter("s", "Time that the limiter delayed requests.")
    waited_for_store: float = counter("s", "Time that readers waited for bytes.")
    waited_for_consumer: float = counter("s", "Time that responses waited for a reader.")
    first_byte: Distribution = Distribution()
    losses: int = counter("1", "Damaged places that were skipped.")
    lost_bytes: int = counter("By", "Bytes lost at damaged places.")
    fallbacks: int = counter(
        "1", "Fast paths that were disabled in favour of the client's own way."
    )
    bytes_not_admitted: int = counter(
        "By",
        "Bytes that the cache on disk did not keep, because it is full or too slow.",
        name="not_admitted_bytes",
    )


COUNTERS: Final = metrics_of(Counts)
"""All scalar fields of `Counts`; retries (by cause) and the time to the first byte are not
scalars."""

_EMPTY_TABLE: Final[Mapping[str | Cause, float]] = {
    **{metric.field: 0.0 if metric.unit == "s" else 0 for metric in COUNTERS},
    **dict.fromkeys(Cause, 0),
}
"""The initial table of counts: it has all keys, so that its size never changes while another thread
copies it."""


class Tally:
    """The mutable counters of one store; or of one stream, which counts in its store's, too.

    Only the loop's thread writes them. `fast_paths` are a store's, each with its fallbacks before
    they were counted.
    """

    def __init__(self, parent: Tally | None = None) -> None:
        self.open_streams = 0
        self.fast_paths: list[tuple[FastPath, int]] = []
        # Its own, and its store's: a snapshot then needs no sums.
        self._tables: tuple[dict[str | Cause, float], ...] = (dict(_EMPTY_TABLE),)
        self._first_bytes: tuple[LatencyHistogram, ...] = (LatencyHistogram(),)
        if parent is not None:
            self._tables += parent._tables
            self._first_bytes += parent._first_bytes

    def count(self, what: str | Cause, amount: float = 1) -> None:
        """Adds to a field of `Counts`, by its name; or to its retries, by their cause."""
        for table in self._tables:
            table[what] += amount

    def block(self, nbytes: int, store: float, consumer: float) -> None:
        """Counts a block, with the seconds that the reader waited for the store, and the response
        for the reader.
        """
        for table in self._tables:
            table["bytes"] += nbytes
            table["waited_for_store"] += store
            table["waited_for_consumer"] += consumer

    def request(self, waited: float = 0.0) -> None:
        """Counts a request, with the seconds that the limiter delayed it."""
        for table in self._tables:
            table["requests"] += 1
            table["waited_for_turn"] += waited

    def first_byte(self, seconds: float) -> None:
        """Counts the seconds until the head of a response arrived."""
        for histogram in self._first_bytes:
            histogram.observe(seconds)

    def counts(self) -> Counts:
        """A copy of the counters; may be made in any thread."""
        table = self._tables[0].copy()  # atomic under the GIL
        table["fallbacks"] = sum(path.fallbacks - before for path, before in self.fast_paths)
        numbers: dict[str, Any] = {metric.field: table[metric.field] for metric in COUNTERS}
        retries = {cause.name.lower(): int(table[cause]) for cause in Cause}
        return Counts(**numbers, retries=retries, first_byte=self._first_bytes[0].distribution())


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that failed, and waits to be tried again; or that has given nothing for ten
    seconds.

    Attributes:
        path: The object's URL.
        reason: What went wrong last.
        seconds: How long there has been no progress.
        left: Seconds until it is given up.
    """

    path: str
    reason: str
    seconds: float
    left: float

    def __str__(self) -> str:
        return (
            f"no progress for {self.seconds:.0f} s ({self.path}: {self.reason}), {self.left:.0f} s "
            "left"
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All statistics of stores at one moment.

    Attributes:
        backends: What each kind of store did so far, by the URLs' scheme ("s3", "gs", "file").
        streams: The streams that are open, each with the object's URL, in the order they were
            opened.
        waits: The requests that failed and wait to be tried again, or have given nothing for ten
            seconds, the one that has waited longest first.
    """

    backends: Mapping[str, Counts]
    streams: tuple[tuple[str, Counts], ...]
    waits: tuple[Wait, ...] = ()

    def counters(self) -> Iterator[tuple[Metric, Sequence[tuple[dict[str, Any], float]]]]:
        """Yields all counters for exporters, each with its values and their labels: one value per
        store.
        """
        stores = self.backends.items()
        for metric in COUNTERS:
            values = [({"backend": name}, getattr(each, metric.field)) for name, each in stores]
            yield metric, values
        retries = []
        for name, counts in stores:
            for cause, count in counts.retries.items():
                retries.append(({"backend": name, "cause": cause}, float(count)))
        yield (
            Metric("retries", "retries", "1", "Attempts that failed and were made again."),
            retries,
        )


class Statistics:
    """The counters of one run.

    Attributes:
        waits: For each request that waits to be retried: its path, the reason, since when, and
            until when.

    >>> statistics = Statistics()
    >>> statistics.backend("s3").block(1_000, store=0.1, consumer=0.0)
    >>> statistics.snapshot().backends["s3"].bytes
    1000
    """

    def __init__(self) -> None:
        self._backends: dict[str, Tally] = {}
        self._streams: dict[Tally, str] = {}
        self.waits: dict[object, tuple[str, str, float, float]] = {}

    def backend(self, scheme: str, fast_paths: Iterable[FastPath] = ()) -> Tally:
        """The counters of a kind of store, which count the fallbacks of these fast paths from now
        on.
        """
        tally = self._backends.setdefault(scheme, Tally())
        tally.fast_paths += [(fast_path, fast_path.fallbacks) for fast_path in fast_paths]
        return tally

    def add_stream(self, path: str, tally: Tally) -> None:
        """Lists a stream with this tally until `remove_stream`; ranges of one object share a
        tally.
        """
        self._streams[tally] = path
        tally.open_streams += 1

    def remove_stream(self, tally: Tally) -> None:
        """Ends one stream of this tally: with the last one it is no longer listed. It stays
        readable.
        """
        tally.open_streams -= 1
        if not tally.open_streams:
            self._streams.pop(tally, None)

    def snapshot(self) -> Snapshot:
        """Returns a copy of all counters; may be called from any thread."""
        backends = self._backends.copy()
        streams = self._streams.copy()
        waits = self.waits.copy()
        now = time.monotonic()
        return Snapshot(
            {scheme: tally.counts() for scheme, tally in backends.items()},
            tuple((mask_name(path), tally.counts()) for tally, path in streams.items()),
            tuple(
                Wait(mask_name(path), reason, max(0.0, now - since), max(0.0, until - now))
                for path, reason, since, until in sorted(waits.values(), key=itemgetter(2))
            ),
        )


run_statistics: ContextVar[Statistics | None] = ContextVar("streamrec_statistics", default=None)
"""Those of the enclosing `collecting`."""


@contextmanager
def collecting(statistics: Statistics) -> Iterator[None]:
    """Makes Storages that this task and its child tasks create within the block count into
    `statistics`.

    A run creates its Storages deep inside, a repeated one several in succession; all count as one
    run.
    """
    token = run_statistics.set(statistics)
    try:
        yield
    finally:
        run_statistics.reset(token)


_logger = logging.getLogger("streamrec")


def format_lines(snapshot: Snapshot) -> Iterator[str]:
    """Yields a line for each kind of store.

    >>> statistics = Statistics()
    >>> tally = statistics.backend("s3")
    >>> tally.request()
    >>> tally.first_byte(0.040)
    >>> tally.block(2_500_000, store=0.1, consumer=0.2)
    >>> [line] = format_lines(statistics.snapshot())
    >>> for part in line.split(", waited: "):
    ...     print(part)
    s3: 2.5 MB, requests: 1, first byte: 40 ms (median), 40 ms (99 %)
    0.1 s for it, 0.2 s for the consumer
    """
    for scheme, counts in snapshot.backends.items():
        median, most = (counts.first_byte.quantile(share) * 1000 for share in (0.5, 0.99))
        # What is usually zero is left out, so that it is seen when it happens.
        retries = {cause: count for cause, count in counts.retries.items() if count}
        causes = ", ".join(f"{count:,} {cause}" for cause, count in retries.items())
        usual = (
            f"{scheme}: {counts.bytes / 1e6:,.1f} MB",
            f"requests: {counts.requests:,}",
            f"first byte: {median:.0f} ms (median), {most:.0f} ms (99 %)",
            f"waited: {counts.waited_for_store:,.1f} s for it, {counts.waited_for_consumer:,.1f} s "
            "for the consumer",
        )
        unusual = (
            (counts.waited_for_turn, f"delayed by throttling: {counts.waited_for_turn:,.1f} s"),
            (retries, f"retries: {sum(retries.values()):,} ({causes})"),
            (counts.hedges, f"hedges: {counts.hedges:,}, of which {counts.hedges_won:,} won"),
            (counts.fallbacks, f"fallbacks: {counts.fallbacks:,}"),
            (
                counts.bytes_not_admitted,
                f"not admitted: {counts.bytes_not_admitted / 1e6:,.1f} MB",
            ),
            (counts.losses, f"losses: {counts.losses:,}, of {counts.lost_bytes:,} bytes"),
        )
        yield ", ".join((*usual, *(text for happened, text in unusual if happened)))


def log_statistics(statistics: Statistics, when: str) -> None:
    """Logs a line for each kind of store, if the log's level is INFO."""
    if _logger.isEnabledFor(logging.INFO):
        for line in format_lines(statistics.snapshot()):
            _logger.info("%s, %s", when, line)


class PeriodicReport:
    """Logs the statistics every `interval` seconds, and at the end."""

    def __init__(self, statistics: Statistics, interval: float) -> None:
        self._statistics = statistics
        self._interval = interval
        self._timer: asyncio.TimerHandle

    def start(self) -> None:
        """Begins, in the running loop."""
        self._timer = running_loop().call_later(self._interval, self._log)

    def stop(self) -> None:
        """Logs the statistics for the last time."""
        self._timer.cancel()
        log_statistics(self._statistics, "at the end")

    def _log(self) -> None:
        log_statistics(self._statistics, "so far")
        self.start()
