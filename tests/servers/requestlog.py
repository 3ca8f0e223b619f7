"""The log of requests and answers, and their totals.

An entry is there from the moment the request was read, with `done` false, and is replaced by fuller ones as
the answer goes out. A client can hold the last byte of an answer before its entry is closed: who wants to
assert on the log calls `wait_idle` first. A stalled answer counts as idle, because it goes on for as long as
the client likes.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.servers.faults import Kind

__all__ = ["Counters", "Entry", "RequestLog"]

_LIMIT: Final = 100_000


@dataclass(frozen=True)
class Entry:
    """One request and its answer.

    Args:
        number: Counted from 0 over the life of the server.
        began: Seconds since the server was started.
        connection: Counted from 0; requests with the same number came over the same connection.
        kind: read, stat, list or write.
        method: As it came.
        target: Path and query, as they came.
        object: "bucket/key", decoded.
        range: The Range header, or "".
        ordinal: How many requests of this kind for this object came before, since faults were last set.
        start: First byte of the object that the answer's body holds; 0 where it has no bytes of an object.
        status: Of the answer; 0 where none was sent.
        promised: The answer's Content-Length.
        sent: Bytes of the body that were handed to the kernel.
        received: Bytes of the request's body that were read.
        fault: The fault that was done, or "".
        slow: Whether it was one of the slow requests.
        delay: Seconds it was kept waiting on purpose.
        rate: The pacing that the kernel kept for the connection, bytes per second; None is no limit.
        done: Whether the answer has ended, well or not.
    """

    number: int
    began: float
    connection: int
    kind: Kind
    method: str
    target: str
    object: str
    range: str = ""
    ordinal: int = 0
    start: int = 0
    status: int = 0
    promised: int = 0
    sent: int = 0
    received: int = 0
    fault: str = ""
    slow: bool = False
    delay: float = 0.0
    rate: int | None = None
    done: bool = False


@dataclass(frozen=True)
class Counters:
    """Sums since the server was started or the log was cleared.

    Args:
        requests: All but those for the control path.
        connections: Connections accepted, control path included.
        sent: Bytes of bodies sent.
        received: Bytes of bodies received.
        in_flight: Requests in progress, stalled ones included.
        peak_in_flight: The most that were in progress at once.
        by_kind: Requests of each kind.
        by_status: Answers of each status, as a string; "0" is no answer.
        by_fault: Requests with each fault, and "slow" for the slow ones.
    """

    requests: int = 0
    connections: int = 0
    sent: int = 0
    received: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    by_kind: Mapping[str, int] = field(default_factory=dict)
    by_status: Mapping[str, int] = field(default_factory=dict)
    by_fault: Mapping[str, int] = field(default_factory=dict)


class RequestLog:
    """The entries and the sums; safe to use from any thread. It keeps the last 100,000 entries."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._born = time.monotonic()
        self._next = 0
        self._entries: dict[int, Entry] = {}
        self._running: set[int] = set()
        self._stalled: set[int] = set()
        self._forget()

    def _forget(self) -> None:
        self._sums: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._by_status: Counter[str] = Counter()
        self._by_fault: Counter[str] = Counter()
        self._peak = len(self._running)

    def connected(self) -> None:
        """Counts a connection."""
        with self._changed:
            self._sums["connections"] += 1

    def begin(self, **known: Any) -> int:
        """Opens an entry with the fields that are known, and gives its number."""
        with self._changed:
            number = self._next
            self._next += 1
            self._entries[number] = Entry(number=number, began=time.monotonic() - self._born, **known)
            self._running.add(number)
            self._peak = max(self._peak, len(self._running))
            while len(self._entries) > _LIMIT:
                del self._entries[next(iter(self._entries))]
            return number

    def update(self, number: int, **news: Any) -> None:
        """Sets fields of an open entry."""
        with self._changed:
            if number in self._entries:
                self._entries[number] = dataclasses.replace(self._entries[number], **news)

    def stalled(self, number: int) -> None:
        """The answer has stopped for good; it no longer counts for `wait_idle`."""
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
                self._entries[number] = dataclasses.replace(entry, done=True)
                self._add(entry)
            self._changed.notify_all()

    def _add(self, entry: Entry) -> None:
        self._sums["requests"] += 1
        self._sums["sent"] += entry.sent
        self._sums["received"] += entry.received
        self._by_kind[entry.kind] += 1
        self._by_status[str(entry.status)] += 1
        if entry.fault:
            self._by_fault[entry.fault] += 1
        if entry.slow:
            self._by_fault["slow"] += 1

    def entries(self) -> tuple[Entry, ...]:
        """All entries in the order in which the requests came."""
        with self._changed:
            return tuple(self._entries.values())

    def counters(self) -> Counters:
        """The sums; requests in progress count in `in_flight` alone."""
        with self._changed:
            return Counters(
                self._sums["requests"],
                self._sums["connections"],
                self._sums["sent"],
                self._sums["received"],
                len(self._running),
                self._peak,
                dict(self._by_kind),
                dict(self._by_status),
                dict(self._by_fault),
            )

    def wait_idle(self, seconds: float) -> bool:
        """Waits until only stalled answers are in progress; returns False after the time limit."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running <= self._stalled, seconds)

    def wait_closed(self, seconds: float) -> bool:
        """Waits until stalled answers have ended too, because their peers closed; whether that came true in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, seconds)

    def clear(self) -> None:
        """Forgets all entries that are closed, and the sums."""
        with self._changed:
            self._entries = {number: self._entries[number] for number in sorted(self._running & self._entries.keys())}
            self._forget()
