"""The process that `training.py` kills: it "trains", step by step, and saves where it stands every few steps.

A step is one batch. The parent gives leave for each, so that the process is never far ahead of it, and is told the ids
of the batch's records. The state is written beside its file and renamed, as a checkpoint should be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from streamrec import Dataset, TFRecordDataset

__all__ = ["END", "Job", "run_trainee", "saved", "train"]

END = b"end"


@dataclass(frozen=True)
class Job:
    """What a rank does.

    Args:
        shards: Names of the shards.
        manifest: URL of their manifest.
        states: Where its state is saved.
        rank: Which it is.
        world_size: Of how many.
        epochs: How often it goes through its share.
        batch: Records to a step.
        every: Steps from one saved state to the next.
    """

    shards: str
    manifest: str
    states: str
    rank: int
    world_size: int
    epochs: int = 2
    batch: int = 4
    every: int = 5

    def dataset(self, epochs: int) -> Dataset[Any]:
        records = TFRecordDataset(self.shards, num_parallel_reads=3).distribute(
            self.rank, self.world_size, even="pad", manifest=self.manifest
        )
        return records.shuffle(60, seed=5).repeat(epochs).batch(self.batch)


class Stepping(Protocol):
    """A loader that says where it stands."""

    def state_dict(self) -> dict[str, Any]: ...


def run_trainee(parent: Connection, job: Job) -> None:
    step, state = saved(job)
    with job.dataset(job.epochs).iterate(state) as batches:
        train(parent, job, step, batches, batches)


def train(parent: Connection, job: Job, step: int, loader: Stepping, batches: Iterator[Any]) -> None:
    for batch in batches:
        parent.recv_bytes()
        ids = b",".join(record[:8] for record in batch)
        parent.send_bytes(b"%d %s" % (step, ids))
        step += 1
        if step % job.every == 0:
            save(job, step, loader.state_dict())
    parent.recv_bytes()
    parent.send_bytes(END)


def saved(job: Job) -> tuple[int, dict[str, Any] | None]:
    """The step that comes next, and the state before it."""
    file = Path(job.states)
    if not file.exists():
        return 0, None
    found = json.loads(file.read_text())
    return found["step"], found["state"]


def save(job: Job, step: int, state: dict[str, Any]) -> None:
    """Puts a state in the place of the one before it, whole."""
    fresh = Path(job.states + ".new")
    fresh.write_text(json.dumps({"step": step, "state": state}))
    os.replace(fresh, job.states)
