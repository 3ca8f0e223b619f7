"""The reading half: streams shards from S3 into a training loop, and fetches ahead."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import streamrec
from examples.demo.model import Classifier
from examples.demo.records import Tally, parse
from examples.demo.show import Show

__all__ = ["BUDGET", "Trained", "evaluate", "train"]

BATCH = 512
PARALLEL_READS = 16
RETRY = streamrec.RetryPolicy(
    patience=10
)  # the store is on this machine: once it is gone, it stays away
BUDGET = (
    96 << 20
)  # bytes that may be under way: fetched, waiting for their turn, or waiting for the loop
RECENT = 0.9  # how much of the accuracy that is shown is older than the last batch


@dataclass(slots=True)
class Trained:
    """The measurements of a training run. Times are in seconds.

    Attributes:
        tally: The records that were read, in all epochs.
        wall: The time from the first request to the last step.
        waited: The part of it for which the loop waited for data.
        cpu: Processor time of the whole process: fetching, verifying, batching, and the loop's own.
        checking_cpu, parsing_cpu, learning_cpu: The loop's own, by task.
        memory_before, memory: The peak resident memory of the process, in bytes, before the run and
            after it.
    """

    tally: Tally = field(default_factory=Tally)
    wall: float = 0.0
    waited: float = 0.0
    cpu: float = 0.0
    checking_cpu: float = 0.0
    parsing_cpu: float = 0.0
    learning_cpu: float = 0.0
    memory_before: int = 0
    memory: int = 0

    @property
    def streaming_cpu(self) -> float:
        """Processor time of streaming alone: from the socket to verified batches of records."""
        return self.cpu - self.checking_cpu - self.parsing_cpu - self.learning_cpu


def records_of(url: str, storage_options: Mapping[str, Any]) -> streamrec.Dataset[bytes]:
    """Returns the records of all shards that match, sixteen shards at a time, always in the same
    order.
    """
    dataset = streamrec.TFRecordDataset(
        url, num_parallel_reads=PARALLEL_READS, storage_options=storage_options, retry=RETRY
    )
    return dataset.with_options(memory_budget=BUDGET)


def train(
    classifier: Classifier, url: str, storage_options: Mapping[str, Any], epochs: int, show: Show
) -> Trained:
    """Trains for `epochs` epochs; calls `show` with the bytes so far and the accuracy after each
    batch.
    """
    dataset = records_of(url, storage_options).repeat(epochs).batch(BATCH)
    run = Trained(memory_before=peak_memory())
    accuracy = 0.0
    started, cpu_started = time.perf_counter(), time.process_time()
    with dataset.iterate() as batches:
        for frames in batches:
            accuracy += (1 - RECENT) * (learn(classifier, frames, run) - accuracy)
            show(run.tally.size, f"accuracy {accuracy:.2f}")
        run.waited = batches.waited
    run.wall, run.cpu = time.perf_counter() - started, time.process_time() - cpu_started
    run.memory = peak_memory()
    return run


def learn(classifier: Classifier, frames: streamrec.Frames, run: Trained) -> float:
    """Counts, parses and learns one batch; returns the share of it that was right before."""
    begun = time.thread_time()
    run.tally.add(frames)
    checked = time.thread_time()
    images, labels = parse(frames)
    parsed = time.thread_time()
    right = classifier.learn(images, labels)
    run.checking_cpu += checked - begun
    run.parsing_cpu += parsed - checked
    run.learning_cpu += time.thread_time() - parsed
    return right


def evaluate(
    classifier: Classifier, url: str, storage_options: Mapping[str, Any]
) -> tuple[float, Tally]:
    """Returns the classifier's accuracy on the held-out images, and the tally of the records
    read.
    """
    tally, right = Tally(), 0
    for frames in records_of(url, storage_options).batch(BATCH):
        tally.add(frames)
        images, labels = parse(frames)
        right += int((classifier.predict(images) == labels).sum())
    return right / max(tally.records, 1), tally


def peak_memory() -> int:
    """Returns the peak resident memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if (
        status.exists()
    ):  # Linux: `ru_maxrss` would begin with that of the process which started this one
        return int(status.read_text().partition("VmHWM:")[2].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
