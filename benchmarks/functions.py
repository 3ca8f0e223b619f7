"""Functions of the user's: elements a second through `map` and through `for`, over local records of
100 bytes.

    python -m benchmarks.functions [--rounds 5]

All records lie in one file in memory (/dev/shm). Each row is a pipeline of its own; rows take
turns, and medians count. "python" calls such a function in a loop of Python's own, over records
that are objects already: the limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import streamrec
from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from benchmarks.writing import MEMORY

COUNT = 1_000_000
SIZE = 100
BATCH = 1000


def main(*, rounds: int = 5) -> None:
    """Runs the rows in turn."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "records"
        with streamrec.TFRecordWriter(path) as writer:
            for index in range(COUNT):
                writer.write(index.to_bytes(4, "little") * (SIZE // 4))
        sides = {name: partial(timed, row) for name, row in rows_over(path).items()}
        taken = in_turn(sides, rounds)
    rows = [{"row": name, **taken.medians(name)} for name in sides]
    for row in rows:
        print(row, flush=True)
    save("functions", ["numpy"], rounds=rounds, rows=rows)


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


def timed(row: Callable[[], int]) -> Figures:
    """Millions of elements a second, and microseconds of processor time an element."""
    with Meter() as meter:
        count = row()
    return {"m_s": count / meter.seconds / 1e6, "cpu_us": meter.each(count)["cpu_us"]}


if __name__ == "__main__":
    run(main)
