"""DataLoaders over S3:
`python -m tests.soak.loaders [--combinations 200] [--repetitions 500] [--exits 50] [--seed 1]`.

- Combinations: numbers of ranks, workers, shards, records, batch sizes and parallel reads are
  drawn, with compressed shards and shuffling among them. All ranks together give each record
  exactly once an epoch.
- Repetitions: a DataLoader with two workers is read to its end, or left in the middle and dropped,
  or left with its iterator alive while the next one begins.
- Exits: a program of its own ends with a DataLoader open, by its end, an exception or `sys.exit`.

None of them may take longer than LIMIT seconds: then all stacks are printed and the soak ends with
status 1.
"""

import argparse
import faulthandler
import json
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from torch.utils.data import DataLoader

from streamrec import TFRecordDataset, TFRecordWriter
from streamrec.torch import IterableDataset
from tests.servers.real import Store, seaweedfs

LIMIT: Final = 120.0
WAYS: Final = {"end": 0, "raise": 1, "exit": 3}
"""How a program ends, and its exit code."""


def check(store: Store, name: str, seed: int, workers: int | None = None) -> None:
    """Reads in a way that is drawn from the seed, under a prefix of its own: each record comes once
    an epoch.

    Args:
        store: Where.
        name: The prefix.
        seed: Of all that is drawn.
        workers: Workers of each rank's DataLoader; None to draw that too.
    """
    draw = random.Random(seed)
    counts = [
        draw.choice([0, 1, draw.randint(2, 30), draw.randint(30, 400)])
        for _ in range(draw.randint(1, 12))
    ]
    records = [
        [b"%02d/%04d" % (shard, n) for n in range(count)] for shard, count in enumerate(counts)
    ]
    put(store, name, records, [draw.random() < 0.2 for _ in counts])
    dataset = TFRecordDataset(
        f"{store.url}/{name}/*",
        num_parallel_reads=draw.randint(1, 8),
        storage_options=store.options,
    ).distribute()
    if shuffle := draw.choice([0, 0, draw.randint(1, 100)]):
        dataset = dataset.shuffle(shuffle, seed=1)
    ranks, batch_size = (
        draw.randint(1, 4),
        draw.choice([1, draw.randint(2, 10), draw.randint(10, 200)]),
    )
    workers = draw.randint(0, 3) if workers is None else workers
    kept: dict[str, Any] = {"persistent_workers": True} if workers and draw.random() < 0.3 else {}
    epochs: list[list[bytes]] = [[], []] if kept else [[]]
    for rank in range(ranks):
        shared = IterableDataset(
            dataset.batch(batch_size).with_options(rank=rank, world_size=ranks)
        )
        loader: Any = DataLoader(shared, batch_size=None, num_workers=workers, **kept)
        for seen in epochs:
            for batch in loader:
                seen += batch
                assert 0 < len(batch) <= batch_size, seed
    wanted = sorted(record for shard in records for record in shard)
    for seen in epochs:
        assert sorted(seen) == wanted, (
            f"seed {seed}: {len(seen)} records where {len(wanted)} were wanted"
        )


def put(
    store: Store, name: str, shards: Sequence[Sequence[bytes]], compressed: Sequence[bool] = ()
) -> None:
    for number, (records, zipped) in enumerate(zip_longest(shards, compressed)):
        url = f"{store.url}/{name}/{number:03d}"
        with TFRecordWriter(
            url, "GZIP" if zipped else None, storage_options=store.options
        ) as writer:
            for record in records:
                writer.write(record)


def repetition(dataset: Any, number: int) -> None:
    """One DataLoader with two workers: read to its end, or left in the middle, in one of two
    ways.
    """
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
    records = TFRecordDataset(url, storage_options=json.loads(options))
    loader: Any = DataLoader(
        IterableDataset(records.distribute().batch(4)), batch_size=None, num_workers=2
    )
    batches, plain = iter(loader), iter(IterableDataset(records))
    next(batches)
    next(plain)
    if way == "raise":
        raise RuntimeError("on purpose")
    if way == "exit":
        sys.exit(3)


def exits(store: Store, name: str, number: int) -> None:
    """Runs that program: it ends in time, with its exit code."""
    way = list(WAYS)[number % len(WAYS)]
    command = [sys.executable, "-m", "tests.soak.loaders", "--leave", f"{store.url}/{name}/*"]
    command += [json.dumps(dict(store.options)), way]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == WAYS[way], (way, done.returncode, done.stderr)
    assert ("on purpose" in done.stderr) == (way == "raise"), done.stderr


def timed(count: int, once: Callable[[int], object]) -> str:
    """Calls `once` that many times, each within the limit."""
    longest, began = 0.0, time.monotonic()
    for number in range(count):
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        before = time.monotonic()
        once(number)
        longest = max(longest, time.monotonic() - before)
    faulthandler.cancel_dump_traceback_later()
    return f"{count} in {time.monotonic() - began:.0f} s, the longest took {longest:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, count in (("combinations", 200), ("repetitions", 500), ("exits", 50), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--leave", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.filterwarnings(
        "ignore", "This DataLoader will create"
    )  # more workers than there are cores
    if given.leave:
        leave(*given.leave)
        return
    with seaweedfs() as store:
        first = given.seed * 1_000_003
        workers = [2, None]  # every other time as many as were drawn
        said = timed(
            given.combinations,
            lambda n: check(store, f"combination-{n}", first + n, workers[n % 2]),
        )
        print(f"combinations: {said}", flush=True)
        put(store, "repeated", [[b"%d" % n for n in range(50)]] * 3)
        records = TFRecordDataset(f"{store.url}/repeated/*", storage_options=store.options)
        dataset = IterableDataset(records.distribute().batch(4))
        print(
            f"repetitions: {timed(given.repetitions, lambda n: repetition(dataset, n))}", flush=True
        )
        print(f"exits: {timed(given.exits, lambda n: exits(store, 'repeated', n))}", flush=True)


if __name__ == "__main__":
    main()
