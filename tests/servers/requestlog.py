"""The log of requests and answers, and their totals.

An entry is there from the moment the request was read, and is replaced by fuller ones as the answer
goes out. A client can hold the last byte of an answer before its entry is closed: call `wait_idle`
before you assert on the log. A stalled answer counts as idle, because it continues for as long as
the client likes.
"""

import dataclasses
import itertools
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.servers.faults import Kind

_LIMIT: Final = 100_000


@dataclass(frozen=True)
class Entry:
    """One request and its answer.

    Args:
        began: Seconds since the server was started.
        connection: Counted from 0; requests with the same number came over the same connection.
        kind: read, stat, list or write.
        method: As it came.
        object: "bucket/key", decoded.
        ordinal: How many requests of this kind for this object came before, since faults were last
            set.
        start: First byte of the object that the answer's body holds; 0 where it has no bytes of an
            object.
        status: Of the answer; 0 where none was sent.
        promised: The answer's Content-Length.
        sent: Bytes of the body that were handed to the kernel.
        fault: The fault that was done, or "".
        slow: Whether it was one of the slow requests.
        delay: Seconds it was kept waiting on purpose.
        rate: The pacing that the kernel kept for the connection, bytes per second; None is no
            limit.
    """

    began: float
    connection: int
    kind: Kind
    method: str
    object: str
    ordinal: int = 0
    start: int = 0
    status: int = 0
    promised: int = 0
    sent: int = 0
    fault: str = ""
    slow: bool = False
    delay: float = 0.0
    rate: int | None = None


@dataclass(frozen=True)
class Counters:
    """Sums since the server was started or the log was cleared.

    Args:
        requests: All that have ended, but for those to the control path.
        sent: Bytes of bodies sent.
        in_flight: Requests in progress, stalled ones included.
        by_kind: Requests of each kind.
        by_fault: Requests with each fault, and "slow" for the slow ones.
    """

    requests: int = 0
    sent: int = 0
    in_flight: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    by_fault: Mapping[str, int] = field(default_factory=dict)


class RequestLog:
    """The entries and the sums; safe to use from any thread. It keeps the last 100,000 entries."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._born = time.monotonic()
        self._numbers = itertools.count()
        self._entries: dict[int, Entry] = {}
        self._running: set[int] = set()
        self._stalled: set[int] = set()
        self.clear()

    def clear(self) -> None:
        """Forgets all entries that are closed, and the sums. Faults and ordinals stay."""
        with self._changed:
            self._entries = {
                number: self._entries[number]
                for number in sorted(self._running & self._entries.keys())
            }
            self._sent = 0
            self._kinds: Counter[str] = Counter()
            self._met: Counter[str] = Counter()

    @property
    def log(self) -> tuple[Entry, ...]:
        """One entry for each request, in the order in which they came; see `wait_idle`."""
        with self._changed:
            return tuple(self._entries.values())

    @property
    def counters(self) -> Counters:
        """The sums over all requests that have ended; those in progress count in `in_flight`
        alone.
        """
        with self._changed:
            kinds, met = dict(self._kinds), dict(self._met)
            return Counters(sum(kinds.values()), self._sent, len(self._running), kinds, met)

    def wait_idle(self, seconds: float = 5.0) -> bool:
        """Waits until only stalled answers are in progress; returns False after the time limit."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running <= self._stalled, seconds)

    def wait_closed(self, seconds: float = 5.0) -> bool:
        """Waits until stalled answers have ended too, because their peers closed; returns False
        after the limit.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def begin(self, **known: Any) -> int:
        """Opens an entry with the fields that are known, and returns its number."""
        with self._changed:
            number = next(self._numbers)
            self._entries[number] = Entry(began=time.monotonic() - self._born, **known)
            self._running.add(number)
            while len(self._entries) > _LIMIT:
                del self._entries[next(iter(self._entries))]
            return number

    def update(self, number: int, **news: Any) -> None:
        """Sets fields of an open entry."""
        with self._changed:
            if number in self._entries:
                self._entries[number] = dataclasses.replace(self._entries[number], **news)

    def stalled(self, number: int) -> None:
        """The answer has stopped permanently; it no longer counts for `wait_idle`."""
        with self._changed:
            self._stalled.add(number)
            self._changed.notify_all()

    def end(self, number: int) -> None:
        """Closes an entry and adds it to the sums."""
        with self._changed:
            self._running.discard(number)
            self._stalled.discard(number)
            entry = self._entries.get(number)
            if entry is not None:
                self._sent += entry.sent
                self._kinds[entry.kind] += 1
                self._met.update(
                    name for name in (entry.fault, "slow" if entry.slow else "") if name
                )
            self._changed.notify_all()
