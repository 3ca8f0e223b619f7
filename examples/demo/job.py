"""What is to be written, and having it written by a process of its own.

The memory and the processor time that are measured for the training are then the training's alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

from examples.demo.interrupts import without_interrupts
from examples.demo.records import SIDE, Tally
from examples.demo.show import Show

__all__ = ["HELD_OUT_SHARDS", "Job", "JobError", "planned", "run_job"]

HELD_OUT_SHARDS = 2
HELD_OUT_SHARE = 0.05
RECORD_BYTES = SIDE * SIDE + 64  # the image, the label, the id, the features' names, the framing


class JobError(Exception):
    """The shards could not be written, or some are missing."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to write, and where.

    Attributes:
        url: The directory of the shards, as `s3://bucket/images`.
        storage_options: Endpoint and credentials, as s3fs takes them.
        shards: How many shards to train on.
        shard_records: Records in each.
        held_out_records: Records in each of the two shards that are kept for the test.
    """

    url: str
    storage_options: Mapping[str, Any]
    shards: int
    shard_records: int
    held_out_records: int

    @property
    def size(self) -> int:
        """About how many bytes it is."""
        records = self.shards * self.shard_records + HELD_OUT_SHARDS * self.held_out_records
        return records * RECORD_BYTES


def planned(url: str, storage_options: Mapping[str, Any], size: int, shards: int) -> Job:
    """A job of about `size` bytes, the held-out shards included."""
    records = size // RECORD_BYTES
    held_out = max(1, int(records * HELD_OUT_SHARE) // HELD_OUT_SHARDS)
    shard_records = max(1, (records - held_out * HELD_OUT_SHARDS) // shards)
    return Job(url, dict(storage_options), shards, shard_records, held_out)


def run_job(job: Job, show: Show) -> dict[str, Tally]:
    """Has it all written; returns what was written into each set, "train" and "test".

    Raises:
        JobError: The writing process failed, or wrote another number of shards than it was to.
    """
    tallies: dict[str, Tally] = {}
    done = 0
    with ExitStack() as stack:
        with without_interrupts():
            writer = stack.enter_context(running_writer(job))
        assert writer.stdout is not None
        for line in map(json.loads, writer.stdout):
            if "failed" in line:
                raise JobError(f"writing: {line['failed']}")
            if "set" in line:
                tallies[line["set"]] = Tally(**line["tally"])
                check_shards(job, line["set"], line["shards"])
            else:
                done += line["bytes"]
                show(done, "")
        if writer.wait() != 0:
            raise JobError(f"the writing process ended with status {writer.returncode}; what it said stands above")
    return tallies


@contextmanager
def running_writer(job: Job) -> Iterator[subprocess.Popen[str]]:
    """The process of write.py at work on the job; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo.write"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which ends the other
    ) as writer:
        try:
            assert writer.stdin is not None
            with suppress(BrokenPipeError), writer.stdin as stdin:  # its exit status tells of a process that died
                json.dump(asdict(job), stdin)
            yield writer
        finally:
            writer.terminate()


def check_shards(job: Job, name: str, shards: int) -> None:
    """Every shard that was to be written is there."""
    wanted = job.shards if name == "train" else HELD_OUT_SHARDS
    if shards != wanted:
        raise JobError(f"{shards} shards were written for {job.url}/{name}-*, where {wanted} were to be")
