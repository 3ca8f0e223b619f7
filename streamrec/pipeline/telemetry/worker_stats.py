"""Brings the statistics of loader workers to the process that made them, through files.

A worker writes its statistics about once a second, and the process that made the workers reads
them when they are asked for. A pipe would have to be emptied by a process that may never ask, and
torch's shared memory is what small containers lack.

Rules:
- The directory has a random name below the system's one for temporary files. The first worker that
  writes makes it, for this user alone, and the process that chose the name removes it.
- A file is whole or absent, since it is renamed when it is written.
- A worker that cannot write says nothing: its batches are worth more than its statistics.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import uuid
import weakref
from contextlib import suppress
from time import monotonic
from typing import Final

from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.telemetry.sums import sum_stats

SECONDS: Final = 1.0
"""The time between two writes of a worker. Not tuned: one takes about 0.1 ms."""


class WorkerStats:
    """The statistics of all workers of one data set; each worker has a copy of this object."""

    def __init__(self) -> None:
        self._directory = os.path.join(tempfile.gettempdir(), f"streamrec-{uuid.uuid4().hex}")
        self._next = 0.0
        # A forked worker has this, too.
        weakref.finalize(self, remove_if_owner, self._directory, os.getpid())

    def is_due(self) -> bool:
        """Whether the last write of this process is old enough."""
        return monotonic() >= self._next

    def write(self, worker: int, workers: int, epoch: int, stats: Stats) -> None:
        """Writes the statistics of one of several workers."""
        self._next = monotonic() + SECONDS
        path = os.path.join(self._directory, str(worker))
        with suppress(OSError):
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            with open(f"{path}.new", "wb") as file:
                pickle.dump((workers, epoch, stats), file)
            os.replace(f"{path}.new", path)

    def read(self) -> Stats | None:
        """The sum over the workers of the latest epoch; None before any has written."""
        found = []
        with suppress(OSError):  # a worker that could not write, or moves a file now
            for name in os.listdir(self._directory):
                if name.isdigit():
                    with open(os.path.join(self._directory, name), "rb") as file:
                        found.append((int(name), *pickle.load(file)))
        if not found:
            return None
        latest = max(epoch for _, _, epoch, _ in found)
        # An earlier DataLoader may have had more workers.
        workers = min(workers for _, workers, epoch, _ in found if epoch == latest)
        return sum_stats(
            [
                stats
                for worker, _, epoch, stats in sorted(found, key=lambda each: each[0])
                if epoch == latest and worker < workers
            ]
        )


def remove_if_owner(directory: str, process: int) -> None:
    """Removes the directory, in the process that chose its name."""
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
