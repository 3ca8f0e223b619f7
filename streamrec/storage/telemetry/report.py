"""Reports: statistics for people and for the exporters. Logs to the logger "streamrec", at level INFO.

    logging.getLogger("streamrec").setLevel(logging.INFO)

is all that is needed: a line a minute while Storages are open, one at their end, and one for each retry as it
happens. The timer is the event loop's own; where the level is off, nothing is put together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from streamrec.storage.telemetry.statistics import Counts, Snapshot, Statistics

__all__ = ["COUNTERS", "Counter", "Reporter", "lines"]

_logger = logging.getLogger("streamrec")


@dataclass(frozen=True, slots=True)
class Counter:
    """One number of `Counts`, as exporters name it.

    Attributes:
        field: Its name in `Counts`.
        name: Its name with the unit, without prefix and suffix.
        unit: In the notation of UCUM: "By", "s", or "1".
        help: What it says, in a sentence.
    """

    field: str
    name: str
    unit: str
    help: str


COUNTERS: Final = (
    Counter("requests", "requests", "1", "Requests sent, hedges included."),
    Counter("bytes", "read_bytes", "By", "Bytes delivered to readers."),
    Counter("failures", "failures", "1", "Operations given up after their retries."),
    Counter("hedges", "hedges", "1", "Requests sent because another one was slow."),
    Counter("hedges_won", "hedges_won", "1", "Second requests that were faster."),
    Counter("stalls", "stalls", "1", "Bodies that stood still for longer than the limit."),
    Counter("throttled", "throttled", "1", "Answers that asked for fewer requests."),
    Counter("waited_for_turn", "waited_for_turn_seconds", "s", "Time that requests were held back by the limiter."),
    Counter("waited_for_store", "waited_for_store_seconds", "s", "Time that readers waited for bytes."),
    Counter("waited_for_consumer", "waited_for_consumer_seconds", "s", "Time that responses waited for a reader."),
    Counter("fallbacks", "fallbacks", "1", "Fast paths that were left for the client's own way."),
    Counter("losses", "losses", "1", "Damaged places that were skipped."),
    Counter("lost_bytes", "lost_bytes", "By", "Bytes that were lost there."),
)
"""All plain numbers of `Counts`; retries (by cause) and the time to the first byte have a shape of their own."""


def lines(snapshot: Snapshot) -> Iterable[str]:
    """A line for each kind of store.

    >>> statistics = Statistics()
    >>> tally = statistics.backend("s3")
    >>> tally.request()
    >>> tally.first_byte(0.040)
    >>> tally.block(2_500_000, store=0.1, consumer=0.2)
    >>> print(*lines(statistics.snapshot()))
    s3: 2.5 MB in 1 request, first byte within 45 ms (half), 45 ms (99 %); waited 0.1 s for it, 0.2 s for the consumer
    """
    for scheme, counts in snapshot.backends.items():
        yield f"{scheme}: {', '.join(_parts(counts))}; waited {_waits(counts)}"


def _parts(counts: Counts) -> Iterable[str]:
    yield f"{counts.bytes / 1e6:,.1f} MB in {_many(counts.requests, 'request')}"
    median, most = (counts.first_byte.quantile(share) * 1000 for share in (0.5, 0.99))
    yield f"first byte within {median:.0f} ms (half), {most:.0f} ms (99 %)"
    retries = {cause: count for cause, count in counts.retries.items() if count}
    if retries:
        causes = ", ".join(f"{count} {cause}" for cause, count in retries.items())
        yield f"{sum(retries.values())} retried ({causes})"
    if counts.hedges:
        yield f"{counts.hedges_won} of {_many(counts.hedges, 'hedge')} won"
    if counts.fallbacks:
        yield f"{_many(counts.fallbacks, 'fallback')} to the client's own way"
    if counts.losses:
        yield f"{_many(counts.losses, 'loss', 'losses')} of {counts.lost_bytes:,} bytes"


def _waits(counts: Counts) -> str:
    turn = f", {counts.waited_for_turn:,.1f} s for leave to ask" if counts.waited_for_turn else ""
    return f"{counts.waited_for_store:,.1f} s for it, {counts.waited_for_consumer:,.1f} s for the consumer{turn}"


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


class Reporter:
    """Logs how statistics stand, at intervals and at the end.

    Args:
        statistics: What is logged.
        interval: Seconds between two lines.
    """

    def __init__(self, statistics: Statistics, interval: float) -> None:
        self._statistics = statistics
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """From now on, in the running loop."""
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """Logs how it ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._log("at the end")

    def _tick(self) -> None:
        self._log("so far")
        self.start()

    def _log(self, when: str) -> None:
        if _logger.isEnabledFor(logging.INFO):
            for line in lines(self._statistics.snapshot()):
                _logger.info("%s, %s", when, line)
