"""What a stream of 300 MB/s costs the training loop that reads it, on the main thread.

    python -m benchmarks.training [--rounds 5] [--sides alone,streamrec,store,tf.data,DataLoader]

A step of the loop has ten layers. A layer holds the interpreter lock for half of its time (a loop
in Python) and works without it for the other half (a matrix product of NumPy's on one thread). Each
step takes a batch of 32 images of 110 kB, 3.5 MB. One process measures how much work makes a step
that takes 300 MB/s; every process of every side then does exactly that work.

- alone: the batch is there already, in both halves of each pair: the noise of the clock.
- streamrec, tf.data, DataLoader: the way of `benchmarks.contenders` over 16 local files in the
  page cache, without shuffle, for ever; the DataLoader has two workers.
- store: streamrec over the same files from nginx as S3, which has the same two cores.

All have the same two cores, a process each, in turn. Within a process the loop runs half a second
alone, while the loader's queues are full and it rests, and then with the loader, and so on: the
speed of this machine changes by a tenth from one process to the next, and hardly within a second.

- `asked_mb_s`: what the steps alone would take, on this machine at that time.
- `mb_s`: what was delivered.
- `speed`: steps/s, divided by those alone just before: a loader that delivers too little shows
  here too. `met` says whether it is at least `BAR`.
- `waited`: the share of the time spent in `next`.
- `slowed`: how much longer the step itself took than alone, because locks and memory were busy.

A round's figure is the median of its calmest pairs (`benchmarks.harness.calm`); a row has the
median of the rounds, and the lowest and highest of `speed` and `mb_s`. Rows may be compared only
where `same_load` says so: otherwise the machine changed while they were measured.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"  # before NumPy is imported: its products take one thread

import numpy as np  # noqa: E402

import streamrec  # noqa: E402
from benchmarks.contenders import ways  # noqa: E402
from benchmarks.harness.calm import calmest  # noqa: E402
from benchmarks.harness.meter import Meter, peak_mb, pin  # noqa: E402
from benchmarks.harness.process import in_own_process, sides_of  # noqa: E402
from benchmarks.harness.program import Names, run  # noqa: E402
from benchmarks.harness.results import save  # noqa: E402
from benchmarks.harness.rounds import in_turn  # noqa: E402
from benchmarks.shards import KINDS, SHARDS, write  # noqa: E402
from benchmarks.training_rows import BAR, figures, row_of, same_load  # noqa: E402
from tests.servers.real import nginx  # noqa: E402

KIND = KINDS["images"]
BYTES_PER_SECOND = 300e6
LAYERS = 10
WARM_SECONDS, SETTLE_SECONDS = 1.0, 0.3
ALONE_SECONDS, BESIDE_SECONDS = 0.5, 0.7
PAIRS = 8
CORES = (0, 1)
SIDES = ("alone", "streamrec", "store", "tf.data", "DataLoader")
WAYS = {
    "streamrec": "parse_example, string_columns",
    "tf.data": "deterministic, block_length=16",
    "DataLoader": "2 workers",
}
WIDTH = 192


def main(*, rounds: int = 5, sides: Names = SIDES) -> None:
    """All sides in turn."""
    with nginx() as store:
        folder = store.directory / "data"
        folder.mkdir()
        paths = write(KIND, folder)
        size = sum(map(os.path.getsize, paths)) / KIND.records * KIND.batch
        # measured once: each side would come to another length of a step, and so another load
        work = in_own_process(calibrated, seconds=size / BYTES_PER_SECOND)
        task = {"paths": paths, "endpoint": store.endpoint, "work": work, "size": size}
        rows = compared(task, sides, rounds)
    if not same_load(rows):
        print("the sides did not carry the same load: these rows must not be compared")
    packages = {"tf.data": ["tensorflow-cpu"], "DataLoader": ["torch", "tfrecord"]}
    save(
        "training",
        ["numpy", *(name for side in sides for name in packages.get(side, ()))],
        rounds=rounds,
        mb_s_wanted=BYTES_PER_SECOND / 1e6,
        work=work,
        bar=BAR,
        same_load=same_load(rows),
        rows=rows,
    )


def compared(task: dict[str, Any], sides: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """A row a side, from all rounds."""
    taken = in_turn(sides_of(measured, sides, **task), rounds)
    rows = [row_of(side, [each[side] for each in taken.taken]) for side in sides]
    for row in rows:
        line = (
            "{side:<10} {mb_s} MB/s {mb_s_range} of {asked_mb_s} asked; x{speed} {speed_range} of "
            "the steps/s alone; {waited} of it waited, steps {slowed} longer"
        )
        print(line.format(**row), flush=True)
    return rows


def measured(
    side: str, work: list[int], paths: list[str], endpoint: str, size: float
) -> dict[str, float]:
    """The loop with one loader, each step of which does this work; `size` is that of a batch in
    bytes.
    """
    pin(CORES)
    batches, ready = iter(batches_of(side, paths, endpoint)), repeat(None)
    trained(batches, work, WARM_SECONDS)

    def pair(number: int) -> tuple[dict[str, float], dict[str, float]]:
        trained(ready, work, SETTLE_SECONDS)
        alone = trained(ready, work, ALONE_SECONDS)
        trained(batches, work, SETTLE_SECONDS)
        return alone, trained(batches, work, BESIDE_SECONDS)

    found = calmest(pair, PAIRS)
    return figures({"pairs": found.results, "peak_mb": peak_mb(), **found.figures}, size)


def batches_of(side: str, paths: Sequence[str], endpoint: str) -> Iterator[Any]:
    """What the loop takes its batches from, for ever."""
    if side == "alone":
        return repeat(None)
    if side == "store":
        return iter(from_store(paths, endpoint))
    made = ways(side, KIND, paths, shuffled=False, endless=True)
    return made[WAYS[side]]()


def from_store(paths: Sequence[str], endpoint: str) -> streamrec.Dataset[Any]:
    """Streamrec's batches from nginx, as S3."""
    urls = [f"s3://data/{Path(path).name}" for path in paths]
    options = {"endpoint_url": endpoint, "anon": True}
    records = streamrec.TFRecordDataset(urls, num_parallel_reads=SHARDS, storage_options=options)
    return records.repeat().batch(KIND.batch).parse_example(KIND.features, string_columns=True)


def calibrated(seconds: float) -> tuple[int, int]:
    """The work of a step that takes so long: turns of the loop in Python, and matrix products, of
    each layer.
    """
    pin(CORES)
    half = seconds / LAYERS / 2
    turns, products = 1_000, 4
    for _ in range(8):
        turns = max(1, round(turns * half / usual(partial(held, turns))))
        products = max(1, round(products * half / usual(partial(free, products))))
    return turns, products


def usual(work: Callable[[], None]) -> float:
    """Seconds of a call: the median of 50."""
    taken = []
    for _ in range(50):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def held(turns: int) -> None:
    """Python: other threads wait, or take the lock after `sys.getswitchinterval()`."""
    state = 1
    for _ in range(turns):
        state = (state * 48_271) % 0x7FFFFFFF


LEFT, RIGHT = (
    np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    for seed in (0, 1)
)
OUT = np.empty_like(LEFT)


def free(products: int) -> None:
    """NumPy: the lock is given away for each product."""
    for _ in range(products):
        np.matmul(LEFT, RIGHT, out=OUT)


def trained(batches: Iterator[Any], work: Sequence[int], seconds: float) -> dict[str, float]:
    """Steps for so long."""
    turns, products = work
    steps, stepping = 0, 0.0
    began = time.perf_counter()
    with Meter() as meter:
        while (now := time.perf_counter()) - began < seconds:
            batch = next(batches)
            taken = time.perf_counter()
            for _ in range(LAYERS):
                held(turns)
                free(products)
            stepping += time.perf_counter() - taken
            steps += 1
            del batch
    whole = now - began
    return {
        "steps_s": steps / whole,
        "step_seconds": stepping / steps,
        "waited": 1 - stepping / whole,
        "cpu_cores": meter.cpu_seconds / whole,
    }


if __name__ == "__main__":
    run(main)
