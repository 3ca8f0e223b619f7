"""The results of the demo, and their table."""

from __future__ import annotations

from dataclasses import dataclass

from examples.demo.records import Tally
from examples.demo.train import BUDGET, Trained

__all__ = ["LostRecordsError", "Result", "check_all_came_back", "rows"]

CRCS_PER_RECORD = 2  # of the length and of the payload


class LostRecordsError(Exception):
    """The records that were read are not those that were written."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of the whole demo."""

    shards: int
    epochs: int
    trained: Trained
    tested: Tally
    accuracy: float


def check_all_came_back(what: str, written: Tally, read: Tally) -> None:
    """Checks that every record was read as often as expected, and no other record was.

    Raises:
        LostRecordsError: This is not so; the message says what was found.
    """
    if read.records != written.records:
        raise LostRecordsError(
            f"{what}: {read.records:,} records were read where {written.records:,} were written"
        )
    if read != written:
        raise LostRecordsError(
            f"{what}: all {read.records:,} records were read, but not as they were written: "
            "checksum "
            f"{read.checksum:x} of {read.size:,} bytes where {written.checksum:x} of "
            f"{written.size:,} was wanted"
        )


def rows(result: Result) -> list[tuple[str, str]]:
    """Returns the rows of the table. MB and GB are powers of ten."""
    run = result.trained
    gigabytes = run.tally.size / 1e9
    records = run.tally.records + result.tested.records

    def per_gigabyte(seconds: float) -> str:
        return f"{seconds / gigabytes:.2f}"

    return [
        (
            "records",
            f"{run.tally.records:,} in {result.epochs} epochs of {result.shards} shards, all as "
            "written",
        ),
        (
            "MB/s",
            f"{run.tally.size / 1e6 / run.wall:,.0f}  ({gigabytes:.2f} GB in {run.wall:.1f} s)",
        ),
        ("CPU-s per GB", f"{per_gigabyte(run.streaming_cpu)} to stream and verify"),
        (
            "",
            f"{per_gigabyte(run.parsing_cpu)} to parse, {per_gigabyte(run.learning_cpu)} to learn, "
            f"{per_gigabyte(run.checking_cpu)} for checksums",
        ),
        (
            "peak memory",
            f"{megabytes(run.memory)}  ({megabytes(run.memory_before)} before, budget "
            f"{megabytes(BUDGET)})",
        ),
        ("waited for data", f"{run.waited / run.wall:.0%} of the training loop's time"),
        ("CRCs checked", f"{records * CRCS_PER_RECORD:,}"),
        ("accuracy", f"{result.accuracy:.1%} of {result.tested.records:,} held-out images"),
    ]


def megabytes(size: int) -> str:
    """Formats a number of bytes in millions."""
    return f"{size / 1e6:,.0f} MB"
