"""How long a training step on a GPU waits for data from a store on the same machine.

    python -m benchmarks.gpu [--rates 0.5,1,2,4] [--seconds 5] [--device cuda]

A step multiplies matrices on the GPU for as long as its batch takes at the wanted rate: at 2 GB/s,
a batch of 64 records of 600 kB takes 19 ms. A loader that delivers this rate is not waited for.

- Loader: `streamrec.torch.Loader(device="cuda")` over shards from nginx as S3.
- DataLoader: the same shards by `streamrec.torch.IterableDataset` in torch's DataLoader, with four
  workers and `pin_memory=True`, copied by `.to("cuda", non_blocking=True)`.

`waited` is the share of a step's time that the loop spends in `next`; the step ends with a
synchronization, so that a copy that is late counts, too. `gb_s` is what was delivered. Each figure
is one run of `--seconds`, after two steps that are not counted.

Without a CUDA device it says so in a line, and measures nothing. `--device cpu` tries the program
without one; the step then sleeps, and nothing is saved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import streamrec
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save
from streamrec.torch import IterableDataset, Loader
from tests.servers.real import nginx

SHARDS = 16
RECORDS = 64
BATCH = 64
VALUES = 150_000  # of four bytes each, in a record
FEATURES = {"x": streamrec.FixedLenFeature([VALUES], "float32")}
BATCH_BYTES = BATCH * VALUES * 4
WORKERS = 4
WIDTH = 4096
WARM_STEPS = 2


def main(
    *, rates: Names = ("0.5", "1", "2", "4"), seconds: float = 5.0, device: str = "cuda"
) -> None:
    """Measures each loader at each rate, in GB/s."""
    if device == "cuda" and not torch.cuda.is_available():
        print("benchmarks.gpu measures nothing: torch finds no CUDA device here")
        return
    with nginx() as store:
        folder = store.directory / "data"
        folder.mkdir()
        write(f"{folder}/train-{{shard:02d}}")
        options = {"endpoint_url": store.endpoint, "anon": True}
        records = streamrec.TFRecordDataset(
            "s3://data/train-{00..15}", num_parallel_reads=SHARDS, storage_options=options
        )
        batches = records.distribute().repeat().batch(BATCH, drop_remainder=True)
        dataset = batches.parse_example(FEATURES)
        rows = []
        for rate in map(float, rates):
            step = step_of(BATCH_BYTES / rate / 1e9, device)
            for side, loader in (("Loader", by_loader), ("DataLoader", by_dataloader)):
                row = measured(loader(dataset, device), step, seconds)
                rows.append({"side": side, "asked_gb_s": rate, **row})
                print(rows[-1], flush=True)
    if device == "cuda":
        save("gpu", ["torch", "numpy"], gpu=torch.cuda.get_device_name(), rows=rows)


def write(pattern: str) -> None:
    """Shards of random numbers."""

    def example(number: int) -> dict[str, Any]:
        random = np.random.default_rng(number)
        return {"x": random.random(VALUES, np.float32)}

    examples = streamrec.Dataset.range(SHARDS * RECORDS).map(example)
    examples.write_sync(pattern, num_shards=SHARDS, batched=False)


def by_loader(dataset: Any, device: str) -> Iterator[Any]:
    """Batches on the device, copied ahead."""
    return iter(Loader(dataset, device=device))


def by_dataloader(dataset: Any, device: str) -> Iterator[Any]:
    """Batches of workers, copied from memory that a thread of the DataLoader pinned."""
    loader = DataLoader(
        IterableDataset(dataset),
        batch_size=None,
        num_workers=WORKERS,
        pin_memory=device == "cuda",
    )
    for batch in loader:
        yield {name: column.to(device, non_blocking=True) for name, column in batch.items()}


def step_of(seconds: float, device: str) -> Callable[[Any], None]:
    """A step that takes so long, and uses its batch."""
    if device == "cpu":
        return lambda batch: time.sleep(seconds)
    matrix = torch.full((WIDTH, WIDTH), 1 / WIDTH, device=device)

    def multiplied(times: int) -> None:
        product = matrix
        for _ in range(times):
            product = product @ matrix
        torch.cuda.synchronize()

    multiplied(10)
    began = time.perf_counter()
    multiplied(100)
    times = max(1, round(100 * seconds / (time.perf_counter() - began)))

    def step(batch: Any) -> None:
        batch["x"].sum()  # waits on the device for the copy
        multiplied(times)

    return step


def measured(
    batches: Iterator[Any], step: Callable[[Any], None], seconds: float
) -> dict[str, float]:
    """The share of the time that was waited for batches, and what they delivered."""
    for _ in range(WARM_STEPS):
        step(next(batches))
    began = time.perf_counter()
    waited, steps = 0.0, 0
    while (now := time.perf_counter()) - began < seconds:
        batch = next(batches)
        waited += time.perf_counter() - now
        step(batch)
        steps += 1
    whole = time.perf_counter() - began
    return {"waited": round(waited / whole, 3), "gb_s": round(steps * BATCH_BYTES / whole / 1e9, 2)}


if __name__ == "__main__":
    run(main)
