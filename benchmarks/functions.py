"""Functions of the user's: elements a second through `map` and through `for`, over local records of
100 bytes.

    python -m benchmarks.functions [--rounds 5]

All records lie in one file in memory (/dev/shm). Each row is a pipeline of its own; rows take
turns, and medians count. "python" calls such a function in a loop of Python's own, over records
that are objects already: the limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import streamrec
from benchmarks.machine import describe, median, save
from benchmarks.writing import MEMORY

COUNT, SIZE, BATCH = 1_000_000, 100, 1000


def main() -> None:
    """Runs the rows in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "records"
        with streamrec.TFRecordWriter(path) as writer:
            for index in range(COUNT):
                writer.write(index.to_bytes(4, "little") * (SIZE // 4))
        rows = rows_over(path)
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name, row in rows.items():
                runs[name].append(timed(row))
    result = [
        {
            "row": name,
            "m_s": median(run[0] for run in taken),
            "cpu_us": median(run[1] for run in taken),
        }
        for name, taken in runs.items()
    ]
    for one in result:
        print(one, flush=True)
    save("functions", {"machine": describe("numpy"), "rounds": rounds, "rows": result})


def rows_over(path: Path) -> dict[str, Callable[[], int]]:
    """What is measured: each gives the number of its elements."""
    records = streamrec.TFRecordDataset(path)
    loaded = list(records)
    numbers = streamrec.Dataset.range(COUNT)
    return {
        "python": lambda: len([same(record) for record in loaded]),
        "map(same)": partial(in_batches, records.map(same)),
        "map(len)": partial(in_batches, records.map(len)),
        "range.map(same)": partial(in_batches, numbers.map(same)),
        "map(same), two calls": partial(in_batches, records.map(same, num_parallel_calls=2)),
        "for": lambda: sum(1 for _ in records),
    }


def same(element: Any) -> Any:
    """A function that does nothing."""
    return element


def in_batches(dataset: streamrec.Dataset[Any]) -> int:
    """Takes all batches of a dataset."""
    return sum(len(batch) for batch in dataset.batch(BATCH))


def timed(row: Callable[[], int]) -> tuple[float, float]:
    """Millions of elements a second, and microseconds of processor time an element."""
    began, cpu = time.perf_counter(), time.process_time()
    count = row()
    return count / (time.perf_counter() - began) / 1e6, (time.process_time() - cpu) / count * 1e6


if __name__ == "__main__":
    main()
