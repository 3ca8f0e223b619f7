"""Describes the shards to write, and writes them in a separate process.

The memory and the processor time that the demo measures are then those of the training alone.
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
    """The shards to write.

    Attributes:
        url: The directory of the shards, as `s3://bucket/images`.
        storage_options: Endpoint and credentials, as for s3fs.
        shards: The number of shards for training.
        shard_records: Records in each.
        held_out_records: Records in each of the two shards for the test.
    """

    url: str
    storage_options: Mapping[str, Any]
    shards: int
    shard_records: int
    held_out_records: int

    @property
    def size(self) -> int:
        """The size in bytes, approximately."""
        records = self.shards * self.shard_records + HELD_OUT_SHARDS * self.held_out_records
        return records * RECORD_BYTES


def planned(url: str, storage_options: Mapping[str, Any], size: int, shards: int) -> Job:
    """Returns a job of about `size` bytes, including the held-out shards."""
    records = size // RECORD_BYTES
    held_out = max(1, int(records * HELD_OUT_SHARE) // HELD_OUT_SHARDS)
    shard_records = max(1, (records - held_out * HELD_OUT_SHARDS) // shards)
    return Job(url, dict(storage_options), shards, shard_records, held_out)


def run_job(job: Job, show: Show) -> dict[str, Tally]:
    """Writes all shards; returns what was written for each set, "train" and "test".

    Raises:
        JobError: The writing process failed, or wrote the wrong number of shards.
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
            raise JobError(
                f"the writing process ended with status {writer.returncode}; its output is above"
            )
    return tallies


@contextmanager
def running_writer(job: Job) -> Iterator[subprocess.Popen[str]]:
    """Runs write.py on the job in a process, which ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo.write"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process, which ends the other
    ) as writer:
        try:
            assert writer.stdin is not None
            with (
                suppress(BrokenPipeError),
                writer.stdin as stdin,
            ):  # its exit status tells of a process that died
                json.dump(asdict(job), stdin)
            yield writer
        finally:
            writer.terminate()


def check_shards(job: Job, name: str, shards: int) -> None:
    """Checks that every shard exists."""
    wanted = job.shards if name == "train" else HELD_OUT_SHARDS
    if shards != wanted:
        raise JobError(
            f"{shards} shards were written for {job.url}/{name}-*, where {wanted} were to be"
        )
