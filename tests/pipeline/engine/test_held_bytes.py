"""What a process holds of long records, or for many iterators; and that records come that do not fit."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamrec import AUTOTUNE, Dataset, TFRecordDataset, encode_records
from streamrec.pipeline.engine.budget import HeldBytes

MB = 1_000_000
READ = """
import re, sys
from pathlib import Path
import streamrec

def high_water_mark():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

pattern, reads, budget, iterators, records = sys.argv[1], *map(int, sys.argv[2:])
dataset = streamrec.TFRecordDataset(pattern, num_parallel_reads=reads).repeat().batch(1)
dataset = dataset.with_options(memory_budget=budget)
before, runs = high_water_mark(), [dataset.iterate() for _ in range(iterators)]
for run in runs:
    next(run)
for _ in range(records):
    next(runs[-1])
print(high_water_mark() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's peak of memory in /proc")
@pytest.mark.parametrize(
    ("size", "reads", "budget", "iterators", "records", "most"),
    [
        (40 * MB, 16, 20 * MB, 1, 6, 100 * MB),  # one at a time, and the one that the consumer has
        (40 * MB, 1, 100 * MB, 1, 6, 160 * MB),
        (4 * MB, 64, 60 * MB, 1, 80, 120 * MB),
        (MB // 10, 8, 64 * MB, 16, 200, 200 * MB),  # all of them together: twice the budget, and a 64th each
    ],
)
def test_a_process_stays_within_the_budget(
    tmp_path: Path, size: int, reads: int, budget: int, iterators: int, records: int, most: int
) -> None:
    shard = tmp_path / "00"
    shard.write_bytes(encode_records([bytes(size)]) * max(2, 40 * MB // size))
    for number in range(1, reads):
        (tmp_path / f"{number:02}").hardlink_to(shard)
    numbers = map(str, (reads, budget, iterators, records))
    command = [sys.executable, "-c", READ, f"{tmp_path}/*", *numbers]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert int(done.stdout) < most


CHAINS: dict[str, Callable[[Dataset[Any]], Dataset[Any]]] = {
    "batches": lambda shards: shards.batch(3).unbatch(),
    "a shuffle": lambda shards: shards.shuffle(5, seed=1),
    "a prefetch and a map": lambda shards: shards.prefetch(2).map(len, AUTOTUNE).map(lambda size: size),
    "zipped": lambda shards: Dataset.zip(shards, shards).map(lambda one, other: one),
    "nested": lambda shards: Dataset.range(3).interleave(lambda _: shards, cycle_length=3),
}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", CHAINS)
def test_records_that_are_larger_than_the_budget_still_come(tmp_path: Path, name: str, deterministic: bool) -> None:
    """Also while another iterator is idle, and holds all that both may."""
    for number in range(7):
        records = [bytes([number, row]) + bytes(200_000 if row % 3 else 90_000) for row in range(5)]
        (tmp_path / str(number)).write_bytes(encode_records(records))
    shards = TFRecordDataset(f"{tmp_path}/*", num_parallel_reads=4, deterministic=deterministic)
    dataset = CHAINS[name](shards)
    expected = list(dataset)
    small = dataset.with_options(memory_budget=100_000)
    with small.iterate() as idle, small.iterate() as run:
        first = next(idle)
        found, rest = list(run), [first, *idle]
    assert sorted(found) == sorted(rest) == sorted(expected)
    if deterministic and name != "a shuffle":  # which holds fewer
        assert found == expected


def test_asking_costs_the_same_next_to_thousands_of_runs() -> None:
    counted = 0

    def queued() -> int:
        nonlocal counted
        counted += 1
        return 0

    runs = [HeldBytes(1 << 20, queued) for _ in range(2000)]
    for number in range(2000):
        runs[number % 10].fits(1 << 16)
    assert counted < 100 * 2000  # 2,000 times 2,000 if each call counted all runs
