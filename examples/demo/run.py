"""Runs the demo: starts a server, writes, trains, tests, and prints the results.

Nothing is left at the end: the server and its files end with the `with` block that started them, or
with this process if it is killed. Ctrl-C, SIGTERM and SIGHUP all unwind in the same way.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console
from threadpoolctl import threadpool_limits

from examples.demo.interrupts import without_interrupts
from examples.demo.job import Job, JobError, planned, run_job
from examples.demo.model import Classifier
from examples.demo.records import Tally
from examples.demo.report import LostRecordsError, Result, check_all_came_back, rows
from examples.demo.show import progress, show_table
from examples.demo.train import evaluate, train
from streamrec import StreamrecError
from tests.servers.real import ServerError, seaweedfs

__all__ = ["main"]

SPARE_BYTES = 500_000_000
SPARE_SHARE = 0.02  # SeaweedFS writes nothing where less than 1 % of the disk is free


class SpaceError(Exception):
    """The disk has no room for the images."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo.

    Args:
        arguments: The command line; None for that of this process.

    Returns:
        The exit status: 0 if every record was read back, 1 after an error, 130 after Ctrl-C.
    """
    asked = parsed(arguments)
    console = Console()
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
    ):  # the others end it as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    try:
        check_space(asked.megabytes * 1_000_000)
        show_table(
            console, rows(demo(console, asked.megabytes * 1_000_000, asked.shards, asked.epochs))
        )
    except (SpaceError, ServerError, JobError, LostRecordsError, StreamrecError) as error:
        print(f"the demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the server is down and its files are gone", file=sys.stderr)
        return 128 + signal.SIGINT
    return 0


def demo(console: Console, size: int, shards: int, epochs: int) -> Result:
    """Runs everything from the start of the server to its end."""
    with ExitStack() as stack:
        with without_interrupts():
            store = stack.enter_context(seaweedfs("demo"))
        console.print(f"SeaweedFS serves S3 at {store.endpoint}", soft_wrap=True)
        job = planned(f"{store.url}/images", store.options, size, shards)
        title = f"writing {shards} shards of {job.shard_records:,} images"
        with progress(console, title, job.size) as show:
            written = run_job(job, show)
        return learnt(console, job, written, epochs)


def learnt(console: Console, job: Job, written: dict[str, Tally], epochs: int) -> Result:
    """Trains and tests, and checks that everything that was written was read."""
    classifier = Classifier()
    expected = written["train"].times(epochs)
    title = f"training on them, {epochs} times over"
    with (
        progress(console, title, expected.size) as show,
        threadpool_limits(1),
    ):  # one core for the arithmetic
        trained = train(
            classifier, f"{job.url}/train-*.tfrecord", job.storage_options, epochs, show
        )
    check_all_came_back("training", expected, trained.tally)
    accuracy, tested = evaluate(classifier, f"{job.url}/test-*.tfrecord", job.storage_options)
    check_all_came_back("testing", written["test"], tested)
    return Result(job.shards, epochs, trained, tested, accuracy)


def check_space(size: int) -> None:
    """Checks that the images fit on the server's disk."""
    directory = tempfile.gettempdir()
    disk = shutil.disk_usage(directory)
    needed = size + max(SPARE_BYTES, int(disk.total * SPARE_SHARE))
    if disk.free < needed:
        raise SpaceError(
            f"{directory} has {disk.free / 1e9:.1f} GB free where {needed / 1e9:.1f} GB are "
            "needed; "
            "make room, set TMPDIR to another disk, or write less with --megabytes"
        )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description=(
            "TFRecord shards written to a real S3 server on loopback, and streamed back into "
            "training."
        ),
    )
    parser.add_argument(
        "--megabytes", type=positive, default=360, help="images to write (default %(default)s)"
    )
    parser.add_argument(
        "--shards", type=positive, default=24, help="shards to train on (default %(default)s)"
    )
    parser.add_argument(
        "--epochs", type=positive, default=5, help="times to read them (default %(default)s)"
    )
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """Converts an argument to a number of at least 1, or raises argparse's error."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return number
