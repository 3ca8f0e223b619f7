"""The limit of the cache: what a larger pass asks the store for, as the store counts it, and what
counts when a run starts.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamrec
from streamrec import RetryPolicy, TFRecordDataset
from streamrec.storage.cache import close_caches
from streamrec.storage.cache.names import USAGE
from streamrec.storage.cache.writer import WRITE_BYTES
from tests.effort import thorough
from tests.servers.answering import Answer, Asked
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.test_cached_reads import blocks, on_disk

NO_HEDGES = RetryPolicy(hedge_share=0.0)

LEAST = 8 << 20
"""The least limit that a cache may have."""


class CountedBytes:
    """What a store sends of its objects.

    Attributes:
        nbytes: The bytes of all answers so far.
    """

    def __init__(self, store: SmallStore) -> None:
        self.nbytes = 0
        self._store = store
        store.replace = self._count

    def _count(self, asked: Asked, answer: Answer) -> Answer:
        if self._store.kind(asked) == "read":
            self.nbytes += len(answer.body)
        return answer


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with small_store() as running:
        yield running
    close_caches()


def fill(store: SmallStore, total: int, size: int) -> int:
    """Gives a store shards of one record each, of this size; returns the bytes of all of them."""
    for index in range(total // size):
        data = random.Random(index).randbytes(size - 16)
        store.objects[f"d/s-{index:04d}"] = streamrec.encode_records([data])
    return sum(map(len, store.objects.values()))


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("size", [100_000, *thorough(400_000)])
@pytest.mark.parametrize("order", ["files", *thorough("shuffled")])
@pytest.mark.timeout(120)
def test_an_epoch_asks_for_what_does_not_fit_and_two_percent(
    store: SmallStore, tmp_path: Path, fraction: float, size: int, order: str
) -> None:
    """Of short objects, which share files, and of longer ones. With the usual rule, which removes
    what was used longest ago, it would ask for everything.
    """
    total = fill(store, int(LEAST * 1.05 / min(fraction, 0.5)), size)
    counted = CountedBytes(store)
    limit = int(total * fraction)
    options = {**store.options("s3"), "cache_dir": tmp_path / "c", "cache_bytes": limit}
    urls = [store.url("s3", name) for name in store.objects]
    for epoch in range(3):
        if order == "shuffled":
            random.Random(epoch).shuffle(urls)
        before = counted.nbytes
        dataset = TFRecordDataset(urls, storage_options=options, retry=NO_HEDGES)
        assert sum(1 for _ in dataset) == len(urls)
        sent = counted.nbytes - before
        assert on_disk(tmp_path / "c") <= limit
        # What is written at once is admitted as a whole. That is more than 2 % of little data only.
        more = max(0.02 * total, WRITE_BYTES + size)
        wanted = total if epoch == 0 else (1 - fraction) * total
        assert sent <= wanted + more, f"epoch {epoch}"
        if epoch == 1:
            close_caches()  # the last epoch is that of another process


@pytest.mark.parametrize("content", [b"", b"x", b"SRusage1" + b"\xff" * 7 + b"\x7f"])
def test_a_wrong_count_is_mended_when_a_run_starts(
    store: SmallStore, tmp_path: Path, content: bytes
) -> None:
    """After a crash of the machine, the file may have anything in it."""
    total = fill(store, 2 * LEAST, 300_000)
    directory = tmp_path / "c"
    options = {**store.options("s3"), "cache_dir": directory, "cache_bytes": LEAST}
    pattern = store.url("s3", "d/*")
    list(TFRecordDataset(pattern, storage_options=options))
    close_caches()
    full = on_disk(directory)
    assert full > LEAST // 2
    for path in blocks(directory)[1:]:
        path.unlink()
    (directory / USAGE).write_bytes(content)
    list(TFRecordDataset(pattern, storage_options=options))
    close_caches()
    assert LEAST // 2 < on_disk(directory) <= LEAST
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    assert sum(1 for _ in records) == len(store.objects)
    assert records.stats().storage.backends["s3"].bytes <= total - LEAST // 2


def test_what_another_job_left_counts_from_the_start(store: SmallStore, tmp_path: Path) -> None:
    """Also if it was written under a larger limit, and its count was lost."""
    fill(store, 2 * LEAST, 400_000)
    directory = tmp_path / "c"
    options = {**store.options("s3"), "cache_dir": directory, "cache_bytes": 1 << 30}
    list(TFRecordDataset(store.url("s3", "d/*"), storage_options=options))
    close_caches()
    assert on_disk(directory) > LEAST
    os.unlink(directory / USAGE)
    smaller = options | {"cache_bytes": LEAST}
    store.objects |= {"e/s": streamrec.encode_records([bytes(400_000)])}
    for record in TFRecordDataset(store.url("s3", "e/*"), storage_options=smaller):
        assert record
        assert on_disk(directory) <= LEAST


NODES = 3


@pytest.mark.parametrize("way", ["distribute", "global_shuffle"])
def test_the_caches_of_several_nodes_hold_what_their_pages_say(
    store: SmallStore, tmp_path: Path, way: str
) -> None:
    """With `distribute`, a node reads its own shards in each epoch. A global shuffle gives it other
    records: it has what it read before, about one of so many parts as there are nodes.
    """
    for index in range(60):
        records = [b"%d.%d" % (index, number) + bytes(2_000) for number in range(10)]
        store.objects[f"d/s-{index:04d}"] = streamrec.encode_records(records)
    total = sum(map(len, store.objects.values()))
    index_url = store.url("s3", "index/d")
    pattern = store.url("s3", "d/*")
    streamrec.write_index_sync(pattern, index_url, storage_options=store.options("s3"))
    counted = CountedBytes(store)
    sent = []
    seen: set[bytes] = set()
    epochs = [
        TFRecordDataset(
            pattern,
            storage_options=store.options("s3")
            | {"cache_dir": tmp_path / str(node), "cache_bytes": LEAST},
        )
        for node in range(NODES)
    ]
    for epoch in range(2):
        before = counted.nbytes
        for node, dataset in enumerate(epochs):
            if way == "distribute":
                share = dataset.distribute(node, NODES)
            else:
                share = dataset.global_shuffle(
                    epoch, index=index_url, rank=node, world_size=NODES, block_bytes=20_000
                )
            seen.update(share)
            close_caches()
        sent.append((counted.nbytes - before) / total)
    assert len(seen) == 600
    assert sent[0] >= 1
    if way == "distribute":
        assert sent[1] == 0
    else:
        assert 0.4 < sent[1] < 0.95  # 1 - 1 / NODES, by chance
