"""Trace files: the timeline of a run, for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is the array form of Chrome's "Trace Event Format", described in the Catapult project's
document of that name: metadata events ("M") name the tracks, complete events ("X") are slices with
a beginning and a duration in microseconds, counter events ("C") are numbers over time. Viewers also
accept a file without its closing bracket, as a killed program leaves it; a closed file is JSON.

Rules:
- A slice is written when it ends, so memory does not grow. Slices of one track never overlap.
- The file ends after `LIMIT` events, about 250 MB, since viewers take no more. The run continues.
- Any thread may write; lines are never mixed.
- A trace that cannot begin (a full disk, a missing right) is an error before the run. One that
  cannot go on ends with a warning: the run is worth more than its trace.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from streamrec.display import display_name, logger

LIMIT: Final = 2_000_000
BEGINNING: Final = '[{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "streamrec"}}'


class Trace:
    """Writes a trace file of at most `limit` events.

    It overwrites an older trace; another file is an error.
    """

    def __init__(self, path: str | os.PathLike[str], limit: int = LIMIT) -> None:
        if os.path.isfile(path):
            with open(path, "rb") as old:
                if old.read(len(BEGINNING)) not in (b"", BEGINNING.encode()):
                    raise FileExistsError(
                        f"{display_name(os.fspath(path))} already exists and is not a trace: use "
                        "another name"
                    )
        self._file = open(path, "w", encoding="ascii")  # noqa: SIM115 - closed by `close`
        self._lock = threading.RLock()
        self._began = perf_counter()
        self._left = limit
        self._tracks = 0
        self._path = os.fspath(path)
        self._file.write(BEGINNING)
        try:
            self._file.flush()
        except OSError as error:
            self._abandon()
            raise OSError(
                error.errno,
                f"the trace cannot be written ({error.strerror}): give trace= another place",
                display_name(self._path),
            ) from None

    def track(self, name: str) -> int:
        """Adds a track below the others; returns its number."""
        with self._lock:
            self._tracks += 1
            number = self._tracks
            self._write(
                {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
            )
            self._write(
                {
                    "name": "thread_sort_index",
                    "ph": "M",
                    "pid": 1,
                    "tid": number,
                    "args": {"sort_index": number},
                }
            )
        return number

    def slice(self, track: int, name: str, since: float, until: float, elements: int) -> None:
        """Writes a period of time, in seconds of `perf_counter`, and how many elements it gave."""
        event: dict[str, Any] = {"name": name, "ph": "X", "pid": 1, "tid": track}
        began = self._time(since)
        event |= {"ts": began, "dur": round(self._time(until) - began, 3)}
        if elements:
            event["args"] = {"elements": elements}
        self._write(event)

    def counter(self, name: str, now: float, value: float) -> None:
        """Writes a number at a time."""
        self._write(
            {
                "name": name,
                "ph": "C",
                "pid": 1,
                "tid": 0,
                "ts": self._time(now),
                "args": {"value": value},
            }
        )

    def close(self) -> None:
        """Ends the file. Closing twice is allowed; later events are dropped."""
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write("\n]\n")
                self._file.close()
            except OSError as error:
                self._fail(error)

    def _time(self, moment: float) -> float:
        return round((moment - self._began) * 1e6, 3)

    def _write(self, event: dict[str, Any]) -> None:
        with self._lock:
            if self._left and not self._file.closed:
                self._left -= 1
                try:
                    self._file.write(f",\n{json.dumps(event)}")
                except OSError as error:
                    self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Ends the trace where the disk did, and says so once."""
        self._abandon()
        logger.warning(
            "%s: this trace is incomplete, since it could not be written (%s): viewers show its "
            "beginning. The run goes on without it",
            display_name(self._path),
            error.strerror or error,
        )

    def _abandon(self) -> None:
        """Closes the file, which fails a second time where a buffer cannot be written."""
        with suppress(OSError):
            self._file.close()
