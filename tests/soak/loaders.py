"""DataLoaders over S3: `python -m tests.soak.loaders [--combinations 200] [--repetitions 500] [--exits 50] [--seed 1]`.

- Combinations: numbers of ranks, workers, shards, records, batch sizes and parallel reads are drawn, with compressed
  shards and shuffling among them. All ranks together give each record exactly once an epoch.
- Repetitions: a DataLoader with two workers is read to its end, or left in the middle and dropped, or left with its
  iterator alive while the next one begins.
- Exits: a program of its own ends with a DataLoader open, by its end, an exception or `sys.exit`.

None of them may take longer than LIMIT seconds: then all stacks are printed and the soak ends with status 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from torch.utils.data import DataLoader

from streamrec import TFRecordDataset, TFRecordWriter
from streamrec.torch import IterableDataset
from tests.servers.real import Store, seaweedfs

__all__ = ["Combination", "check", "drawn", "exits", "put", "repetition"]

LIMIT: Final = 120.0
WAYS: Final = ("end", "raise", "exit")


@dataclass(frozen=True, slots=True)
class Combination:
    """One way to read.

    Attributes:
        ranks: How many processes train; each has its own DataLoader.
        workers: `num_workers` of each.
        counts: Records of each shard.
        compressed: Whether each shard is.
        batch: Records of a batch.
        parallel: `num_parallel_reads`.
        shuffle: Size of the shuffle buffer; 0 for none.
        persistent: Whether workers are kept for a second epoch.
    """

    ranks: int
    workers: int
    counts: tuple[int, ...]
    compressed: tuple[bool, ...]
    batch: int
    parallel: int
    shuffle: int
    persistent: bool


def drawn(seed: int, workers: int | None = None) -> Combination:
    """A combination.

    Args:
        seed: Which.
        workers: How many; None to draw that too.
    """
    choose = random.Random(seed)
    shards = choose.randint(1, 12)
    return Combination(
        ranks=choose.randint(1, 4),
        workers=choose.randint(0, 3) if workers is None else workers,
        counts=tuple(choose.choice([0, 1, choose.randint(2, 30), choose.randint(30, 400)]) for _ in range(shards)),
        compressed=tuple(choose.random() < 0.2 for _ in range(shards)),
        batch=choose.choice([1, choose.randint(2, 10), choose.randint(10, 200)]),
        parallel=choose.randint(1, 8),
        shuffle=choose.choice([0, 0, choose.randint(1, 100)]),
        persistent=choose.random() < 0.3,
    )


def check(store: Store, name: str, given: Combination) -> int:
    """Reads a combination, and holds it to each record once an epoch.

    Args:
        store: Where.
        name: A prefix of its own in the store.
        given: The combination.

    Returns:
        How many batches came.

    Raises:
        AssertionError: A record is missing or came twice.
    """
    records = [[b"%02d/%04d" % (shard, n) for n in range(count)] for shard, count in enumerate(given.counts)]
    put(store, name, records, given.compressed)
    dataset = TFRecordDataset(
        f"{store.url}/{name}/*", num_parallel_reads=given.parallel, storage_options=store.options
    ).distribute()
    if given.shuffle:
        dataset = dataset.shuffle(given.shuffle, seed=1)
    epochs: list[list[bytes]] = [[], []]
    batches = 0
    for rank in range(given.ranks):
        shared = IterableDataset(dataset.batch(given.batch).with_options(rank=rank, world_size=given.ranks))
        kept: dict[str, Any] = {"persistent_workers": True} if given.persistent and given.workers else {}
        loader: Any = DataLoader(shared, batch_size=None, num_workers=given.workers, **kept)
        for seen in epochs if kept else epochs[:1]:
            for batch in loader:
                seen += batch
                batches += 1
                assert 0 < len(batch) <= given.batch, given
    wanted = sorted(record for shard in records for record in shard)
    for seen in epochs if given.persistent and given.workers else epochs[:1]:
        assert sorted(seen) == wanted, f"{len(seen)} records where {len(wanted)} were wanted: {given}"
    return batches


def put(store: Store, name: str, shards: Sequence[Sequence[bytes]], compressed: Sequence[bool] = ()) -> None:
    for number, (records, zipped) in enumerate(zip_longest(shards, compressed)):
        url = f"{store.url}/{name}/{number:03d}"
        with TFRecordWriter(url, "GZIP" if zipped else None, storage_options=store.options) as writer:
            for record in records:
                writer.write(record)


def repetition(dataset: Any, number: int) -> None:
    """One DataLoader with two workers: read to its end, or left in the middle, in one of two ways."""
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2)
    batches: Iterator[Any] = iter(loader)
    if number % 3 == 0:
        for _ in batches:
            pass
        return
    for _ in range(number % 5):
        next(batches, None)
    if number % 3 == 1:
        del batches, loader
        return
    next(iter(loader), None)  # next to the first one


def leave(url: str, options: str, way: str) -> None:
    """The program that ends with a DataLoader open."""
    dataset = IterableDataset(TFRecordDataset(url, storage_options=json.loads(options)).distribute().batch(4))
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2)
    batches = iter(loader)
    next(batches)
    plain = iter(IterableDataset(TFRecordDataset(url, storage_options=json.loads(options))))
    next(plain)
    if way == "raise":
        raise RuntimeError("on purpose")
    if way == "exit":
        sys.exit(3)


def exits(store: Store, name: str, number: int) -> None:
    """Runs that program.

    Raises:
        AssertionError: It ended otherwise than it should.
        subprocess.TimeoutExpired: It did not end.
    """
    way = WAYS[number % len(WAYS)]
    command = [
        sys.executable,
        "-m",
        "tests.soak.loaders",
        "--leave",
        f"{store.url}/{name}/*",
        json.dumps(dict(store.options)),
        way,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == {"end": 0, "raise": 1, "exit": 3}[way], (way, done.returncode, done.stderr)
    assert ("on purpose" in done.stderr) == (way == "raise"), done.stderr


def timed(count: int, once: Callable[[int], object]) -> str:
    """Does it so often, each within the limit."""
    longest, began = 0.0, time.monotonic()
    for number in range(count):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        before = time.monotonic()
        once(number)
        longest = max(longest, time.monotonic() - before)
    faulthandler.cancel_dump_traceback_later()
    return f"{count} in {time.monotonic() - began:.0f} s, the longest took {longest:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--combinations", type=int, default=200)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--exits", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--leave", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than there are cores
    if given.leave:
        leave(*given.leave)
        return
    with seaweedfs() as store:
        first = given.seed * 1_000_003
        workers = [2, None]  # every other time as many as were drawn
        said = timed(given.combinations, lambda n: check(store, f"combination-{n}", drawn(first + n, workers[n % 2])))
        print(f"combinations: {said}", flush=True)
        put(store, "repeated", [[b"%d" % n for n in range(50)]] * 3)
        records = TFRecordDataset(f"{store.url}/repeated/*", storage_options=store.options)
        dataset = IterableDataset(records.distribute().batch(4))
        print(f"repetitions: {timed(given.repetitions, lambda n: repetition(dataset, n))}", flush=True)
        print(f"exits: {timed(given.exits, lambda n: exits(store, 'repeated', n))}", flush=True)


if __name__ == "__main__":
    main()
