"""The source over a store: what is asked for, how far ahead, what is kept; and how many elements
there are.
"""

import io
import operator
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Dataset, NotFoundError, TFRecordDataset
from streamrec.pipeline import UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.distribute import Distribute
from streamrec.pipeline.sources.shards.open_ahead import BLOCKS_TOGETHER, QUEUE_BYTES
from streamrec.pipeline.sources.shards.shard_queue import ShardQueue
from streamrec.storage import RetryPolicy
from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.connections import MAX_OPEN
from streamrec.tfrecord import Frames
from tests.pipeline.sources.test_shards_interleave import LENGTHS, PLANS, Arriving, all_records
from tests.pipeline.stored_shards import Indexed, folder_of, indexed, numbered, shares_of_rank
from tests.runs import until_error, write_shards
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore
from tests.servers.requestlog import Entry
from tests.servers.resuming import stop_after

SMALL = 150
MEDIUM = 14
LARGE = [b"%d." % index + b"x" * 999_000 for index in range(24)]


def small_records(shard: int) -> list[bytes]:
    return [b"%d.%d" % (shard, index) for index in range(3)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("store")
    write_shards(root / "small", map(small_records, range(SMALL)), "{:03d}")
    [first] = write_shards(root / "medium", [LARGE[:9]], "{:02d}")
    for shard in range(1, MEDIUM):
        (root / "medium" / f"{shard:02d}").hardlink_to(first)
    write_shards(root / "large", [LARGE] * 2)
    return root


@pytest.fixture
def store(root: Path) -> Iterator[ObjectStore]:
    with ObjectStore(root) as store:
        yield store


WITHOUT_HEDGING = RetryPolicy(hedge_share=0)
"""Requests are counted here: none is sent a second time because a busy machine made the first one
late."""


def dataset_of(
    store: ObjectStore, names: str | list[str], retry: RetryPolicy = WITHOUT_HEDGING, **options: Any
) -> Dataset[bytes]:
    return TFRecordDataset(names, storage_options=store.options(), retry=retry, **options)


def requests_of_kind(store: ObjectStore, kind: str) -> list[Entry]:
    return [entry for entry in store.log if entry.kind == kind]


def most_at_once(entries: list[Entry]) -> int:
    """How many requests waited for their first byte at the same time."""
    return max(
        sum(one.began <= entry.began < one.began + one.delay for one in entries)
        for entry in entries
    )


def test_shards_of_medium_size_are_opened_ahead_as_far_as_the_budget_goes(
    store: ObjectStore,
) -> None:
    """One at a time they are over before their own connections flow: others must be under way
    meanwhile.
    """
    store.faults = Faults(first_byte=0.25, jitter=0)
    dataset = dataset_of(store, "s3://medium/*")
    records = list(dataset.with_options(memory_budget=150 << 20))
    assert records == LARGE[:9] * MEDIUM
    assert most_at_once(requests_of_kind(store, "read")) > 6


def test_epochs_share_one_listing_and_one_set_of_connections(store: ObjectStore) -> None:
    names = ["s3://small/00?", "s3://small/010"]
    found = list(dataset_of(store, names).repeat(3))
    assert found == [record for shard in range(11) for record in small_records(shard)] * 3
    assert len(requests_of_kind(store, "list")) == 1
    assert len(requests_of_kind(store, "read")) == 33
    assert len({entry.connection for entry in store.log}) < 15


def test_epochs_after_a_prefetch_share_them_too(store: ObjectStore) -> None:
    assert len(list(dataset_of(store, "s3://small/00?").prefetch().repeat(3))) == 90
    assert len(requests_of_kind(store, "list")) == 1


async def test_a_run_that_ends_halfway_holds_nothing(store: ObjectStore) -> None:
    """Queues and ranges ahead of their turn are in the run's ledger while it reads."""
    store.faults = Faults(first_byte=0.01, jitter=0)
    dataset = dataset_of(store, "s3://large/*", num_parallel_reads=2)
    async with dataset.aiterate() as records:
        ledger = records._run.ledger
        names = set()
        for _ in range(len(LARGE)):
            await anext(records)
            names |= {account.name for account in ledger.accounts if account.held}
            assert ledger.account.nbytes <= records.memory_budget
    assert names == {"queues", "ranges"}
    assert (ledger.account.held, ledger.account.promised) == (0, 0)


def test_a_listing_that_fails_comes_after_the_shards_before_it(store: ObjectStore) -> None:
    dataset = dataset_of(store, ["s3://small/00[01]", "s3://small/x*", "s3://small/002"])
    found, _ = until_error(dataset, NotFoundError, r"s3://small/x\*")
    assert found == small_records(0) + small_records(1)


@pytest.mark.parametrize("cycle", [1, 4])
def test_small_shards_are_opened_further_ahead_in_the_same_order(
    store: ObjectStore, cycle: int
) -> None:
    dataset = dataset_of(store, "s3://small/*", num_parallel_reads=cycle)
    expected = list(dataset)
    store.faults = Faults(first_byte=0.4, jitter=0)
    before = len(requests_of_kind(store, "read"))
    assert list(dataset) == expected
    ahead = most_at_once(requests_of_kind(store, "read")[before:])
    assert 20 < ahead <= MAX_OPEN + 2


def test_a_small_budget_opens_fewer(store: ObjectStore) -> None:
    store.faults = Faults(first_byte=0.1, jitter=0)
    dataset = dataset_of(store, "s3://small/0[0-3]?").with_options(memory_budget=4 << 20)
    assert list(dataset) == [record for shard in range(40) for record in small_records(shard)]
    assert most_at_once(requests_of_kind(store, "read")) <= 4


def test_a_large_shard_is_read_by_ranges(store: ObjectStore) -> None:
    store.faults = Faults(first_byte=0.01, jitter=0.02, rate=100e6)
    assert list(dataset_of(store, "s3://large/s-0")) == LARGE
    assert len(requests_of_kind(store, "read")) > 3
    store.faults = NO_FAULTS
    assert list(dataset_of(store, ["s3://large/s-0", "s3://large/s-1"])) == LARGE * 2


def test_a_consumer_that_rests_finds_its_next_record_there(tmp_path: Path) -> None:
    """Each shard was once the only one that moved, and asked for ranges; then no one's turn had a
    connection left.
    """
    [first] = write_shards(tmp_path / "bucket", [[bytes(100_000)] * 500])
    for shard in range(1, 16):
        (tmp_path / "bucket" / f"s-{shard}").hardlink_to(first)
    with ObjectStore(tmp_path, faults=Faults(first_byte=0.01, jitter=0)) as store:
        retry = RetryPolicy(attempts=1, connect_timeout=20, first_byte_timeout=20)
        dataset = dataset_of(store, "s3://bucket/*", num_parallel_reads=16, retry=retry)
        batches = iter(dataset.with_options(memory_budget=512 << 20).batch(32))
        for _ in range(8):
            assert sum(map(len, islice(batches, 20))) == 20 * 32
            store.wait_idle(0.3)
        batches.close()


@pytest.mark.parametrize("place", ["local files", "store"])
def test_only_blocks_that_need_not_be_waited_for_are_read_together(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer of a store gets the first 64 KiB when they are there; local files are faster in
    large blocks.
    """
    block = 64 << 10
    records = [b"%06d" % index + bytes(994) for index in range(4000)]
    [path] = write_shards(tmp_path / "bucket", [records])
    blocks: list[int] = []
    push = ShardQueue.push

    def spy(queue: ShardQueue, frames: Frames, record: int) -> None:
        blocks.append(frames.nbytes)
        push(queue, frames, record)

    monkeypatch.setattr(ShardQueue, "push", spy)
    with ObjectStore(tmp_path) as store:
        if place == "store":
            dataset = dataset_of(store, "s3://bucket/*", buffer_size=block)
        else:
            dataset = TFRecordDataset(str(path), buffer_size=block)
        head, state = stop_after(dataset, 1234)
        assert head == records[:1234]
        assert list(dataset.iterate(state)) == records[1234:]
    if place == "store":
        assert max(blocks) <= block
    else:
        assert 4 * block < max(blocks) <= BLOCKS_TOGETHER * block


def test_resuming_in_the_middle_of_parallel_ranges(store: ObjectStore) -> None:
    dataset = dataset_of(store, ["s3://large/s-0", "s3://large/s-1"])
    head, state = stop_after(dataset, 30)
    assert head + list(dataset.iterate(state)) == LARGE * 2


@given(lengths=LENGTHS, plan=PLANS, deterministic=st.booleans(), seed=st.integers(0, 9))
def test_shards_that_become_known_late_change_nothing(
    lengths: list[int], plan: Plan, deterministic: bool, seed: int
) -> None:
    plan, draw = replace(plan, deterministic=deterministic), random.Random(seed)
    arriving, known = Arriving(lengths, plan, seed), 0
    found: list[bytes] = []
    while known < len(lengths) or not arriving.interleave.finished:
        least = min(arriving.interleave.coming.next + plan.cycle_length + 3, len(lengths))
        known = max(known, draw.randint(least, len(lengths)))
        arriving.interleave.coming.known = known
        pulled = arriving.interleave.pull()
        if pulled is not None:
            found += list(pulled.elements)  # type: ignore[arg-type]
        elif not arriving.interleave.finished:
            arriving.arrive()
    expected = all_records(lengths, plan)
    assert found == expected if deterministic else sorted(found) == sorted(expected)


COUNTS = [7, 0, 9, 5]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    path: Path = tmp_path_factory.mktemp("data")
    return indexed(path, numbered(COUNTS))


@pytest.mark.parametrize("even", ["pad", "drop", "cycle"])
@pytest.mark.parametrize("world", [1, 4, 30])
def test_cardinality_of_even_shares(even: Any, world: int) -> None:
    folder = folder_of(COUNTS)
    for rank in (0, world - 1):
        dataset = shares_of_rank(folder, rank, world, even=even, manifest=f"{folder}/manifest.json")
        assert len(dataset) == len(list(dataset))
        assert len(dataset.batch(2)) == len(list(dataset.batch(2)))


def test_cardinality_of_all_shards_comes_from_the_manifest() -> None:
    folder = folder_of(COUNTS)
    manifest = f"{folder}/manifest.json"
    assert len(shares_of_rank(folder, 0, 1, manifest=manifest).batch(4)) == 6
    assert (
        len(TFRecordDataset(f"{folder}/train-000").distribute(manifest=manifest, even="drop")) == 7
    )
    shares = TFRecordDataset(f"{folder}/*-*").distribute(even="drop", manifest=manifest)
    assert len(shares.with_options(rank=1, world_size=4)) == 5


def test_cardinality_is_unknown_where_shares_are_not_even() -> None:
    folder = folder_of(COUNTS)
    assert (
        shares_of_rank(folder, 0, 2, manifest=f"{folder}/manifest.json").cardinality()
        == UNKNOWN_CARDINALITY
    )
    with pytest.raises(TypeError, match="depends on its data"):
        len(shares_of_rank(folder, 0, 1))
    with pytest.raises(NotFoundError, match=r"none\.json"):
        len(shares_of_rank(folder, 0, 1, manifest=f"{folder}/none.json"))


def test_the_manifest_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`list()` asks for the length of what it is given: each time."""
    folder = folder_of(COUNTS)
    dataset = shares_of_rank(folder, 0, 1, even="drop", manifest=f"{folder}/manifest.json")
    asked: list[Any] = []
    count = Distribute.count
    monkeypatch.setattr(
        Distribute, "count", lambda *arguments: asked.append(1) or count(*arguments)
    )
    for _ in range(3):
        assert len(list(dataset)) == len(dataset) == len(dataset.batch(1)) == sum(COUNTS)
    assert len(asked) == 1


async def test_a_length_that_cannot_be_had_on_the_thread_that_reads_is_refused() -> None:
    """A function of a run may ask for the length of another dataset: it is told where that cannot
    be had there.
    """
    folder = folder_of(COUNTS)
    other = shares_of_rank(folder, 0, 1, even="drop", manifest=f"{folder}/manifest.json")

    async def length(number: Any) -> int:
        return operator.length_hint(other, -1)

    async def refused(number: Any) -> int:
        return len(other)

    assert list(Dataset.range(2).map(length)) == [-1, -1]
    with pytest.raises(
        TypeError, match=r"this is the thread that reads: call len.. before the run begins"
    ):
        list(Dataset.range(2).map(refused))
    assert len(other) == sum(COUNTS)
    assert list(Dataset.range(2).map(length)) == [sum(COUNTS)] * 2


@pytest.mark.parametrize("even", [None, "pad", "drop", "cycle"])
@pytest.mark.parametrize("batch", [None, 4, 16, 40])
@pytest.mark.parametrize("world", [1, 4])
def test_cardinality_of_a_global_shuffle(
    data: Indexed, even: Any, batch: int | None, world: int
) -> None:
    for rank in range(world):
        dataset = data.shuffled(even=even, global_batch_size=batch).with_options(
            rank=rank, world_size=world
        )
        assert len(dataset) == len(list(dataset))


READS = 4
RECORD_BYTES = 1 << 20


def record(shard: int, index: int) -> bytes:
    return (b"%d.%d." % (shard, index)).ljust(RECORD_BYTES, b"x")


class Gated(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Files of which one gives nothing until a gate opens; how much was read of each is known."""

    protocol = "gated"
    cachable = False

    def __init__(self, folder: Path, slow: str) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.read = dict.fromkeys((path.name for path in folder.iterdir()), 0)
        self.changed = threading.Condition()
        self._folder = folder
        self._slow = slow

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": (self._folder / path).stat().st_size, "type": "file"}

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BufferedReader:
        return io.BufferedReader(GatedFile(self, path, self._folder / path))

    def wait(self, name: str) -> None:
        """Until this file may be read."""
        if name == self._slow:
            assert self.gate.wait(timeout=60)

    def has_read(self, name: str, count: int) -> None:
        with self.changed:
            self.read[name] += count
            self.changed.notify_all()


class GatedFile(io.FileIO):
    def __init__(self, gated: Gated, name: str, path: Path) -> None:
        super().__init__(path)
        self._gated, self._called = gated, name

    def readinto(self, buffer: Any) -> int | None:
        self._gated.wait(self._called)
        count = super().readinto(buffer)
        self._gated.has_read(self._called, count or 0)
        return count


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(
        tmp_path, [[record(shard, index) for index in range(20)] for shard in range(READS)], "{}"
    )
    return tmp_path


@pytest.mark.parametrize("slow", range(READS))
def test_a_slow_shard_idles_no_other_and_the_order_stays(folder: Path, slow: int) -> None:
    filesystem = Gated(folder, slow=str(slow))
    names = [f"gated://{shard}" for shard in range(READS)]
    dataset = TFRecordDataset(names, num_parallel_reads=READS, filesystem=filesystem)
    with dataset.iterate() as elements:
        others = [name for name in filesystem.read if name != str(slow)]
        full = QUEUE_BYTES - BLOCK_BYTES  # the next block does not fit
        with filesystem.changed:
            assert filesystem.changed.wait_for(
                lambda: all(filesystem.read[name] >= full for name in others), 60
            )
        assert filesystem.read[str(slow)] == 0
        filesystem.gate.set()
        expected = [record(shard, index) for index in range(20) for shard in range(READS)]
        assert [element[:8] for element in elements] == [element[:8] for element in expected]


def test_a_slow_shard_lets_no_other_run_away(folder: Path) -> None:
    filesystem = Gated(folder, slow="0")
    names = [f"gated://{shard}" for shard in range(READS)]
    budget = 10 << 20
    dataset = TFRecordDataset(names, num_parallel_reads=READS, filesystem=filesystem)
    with dataset.with_options(memory_budget=budget).iterate() as elements:
        with filesystem.changed:
            assert filesystem.changed.wait_for(
                lambda: all(filesystem.read[name] for name in "123"), 60
            )
        filesystem.gate.set()
        for taken, element in enumerate(elements):
            in_hands = READS * (BLOCK_BYTES + RECORD_BYTES)  # what is read and not yet framed
            assert sum(filesystem.read.values()) <= taken * len(element) + budget + in_hands
