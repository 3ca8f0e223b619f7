"""What users see of the cache: bytes that are right whatever happens, and second epochs that ask
for nothing. Against a store in this process that counts what it is asked.
"""

import asyncio
import json
import logging
import os
import random
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import TFRecordDataset
from streamrec.storage import Storages
from streamrec.storage.cache import close_caches, open_cache
from streamrec.storage.cache.block_file import CHUNK
from streamrec.storage.cache.disk_cache import charge_of_name
from streamrec.storage.cache.eviction import LOCK_SECONDS
from streamrec.storage.cache.names import ObjectKey, parse_block
from streamrec.storage.cache.writer import Fill
from streamrec.storage.cache_settings import CacheSettings
from streamrec.storage.ledger import UnwrittenBytes
from streamrec.tfrecord import Framer
from tests.effort import drawn_examples
from tests.servers.answering import Answer, Asked
from tests.servers.small_store import SmallStore, small_store

RECORDS = 40

LONG = 300
"""So many records of 1 kB are longer than what is written into packs."""

LONG_BLOCKS = 3
"""How many blocks the tests make of a long object."""


def shard(seed: int, records: int = RECORDS, size: int = 1000) -> bytes:
    """A shard whose records begin with its seed."""
    random_bytes = random.Random(seed)
    return streamrec.encode_records(
        [b"%d:%d:" % (seed, index) + random_bytes.randbytes(size) for index in range(records)]
    )


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with small_store({f"d/s-{index}": shard(index) for index in range(3)}) as running:
        yield running
    close_caches()


@pytest.fixture
def options(store: SmallStore, tmp_path: Path) -> dict[str, Any]:
    return {**store.options("s3"), "cache_dir": tmp_path / "cache", "cache_bytes": "64MiB"}


def names(store: SmallStore, scheme: str = "s3") -> list[str]:
    return [store.url(scheme, name) for name in sorted(store.objects)]


def new_process() -> None:
    """What a new process sees of the cache: nothing in memory."""
    close_caches()


def asked_since(store: SmallStore, before: int) -> dict[str, int]:
    """How often each kind of request was sent."""
    kinds = [store.kind(asked) for asked in store.asked[before:]]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def blocks(directory: Path) -> list[Path]:
    """The files that hold bytes of objects: of blocks, and of packs of short objects."""
    return sorted(path for path in directory.rglob("*") if charge_of_name(path.name))


# Second epochs.


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_later_epochs_of_a_run_ask_for_nothing(
    store: SmallStore, tmp_path: Path, scheme: str
) -> None:
    plain = list(TFRecordDataset(names(store, scheme), storage_options=store.options(scheme)))
    options = store.options(scheme) | {"cache_dir": tmp_path / "c", "cache_bytes": 1 << 26}
    dataset = TFRecordDataset(names(store, scheme), storage_options=options)
    assert list(dataset) == plain
    before = len(store.asked)
    assert list(dataset.repeat(3)) == plain * 3
    assert asked_since(store, before) == {"stat": len(store.objects)}


def test_a_new_process_asks_for_one_listing(store: SmallStore, options: dict[str, Any]) -> None:
    pattern = store.url("s3", "d/s-*")
    first = list(TFRecordDataset(pattern, storage_options=options))
    new_process()
    before = len(store.asked)
    assert list(TFRecordDataset(pattern, storage_options=options)) == first
    assert asked_since(store, before) == {"list": 1}


def test_many_shards_of_one_directory_cost_few_requests(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects |= {f"d/s-{index}": shard(index, 2) for index in range(60)}
    first = list(TFRecordDataset(names(store), storage_options=options))
    before = len(store.asked)
    assert list(TFRecordDataset(names(store), storage_options=options)) == first
    asked = asked_since(store, before)
    assert asked.get("read", 0) == 0
    assert asked["list"] == 1
    assert asked["stat"] < 30


def test_short_shards_are_read_from_the_disk_many_at_a_time(
    store: SmallStore, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.objects |= {f"d/s-{index:03d}": shard(index, 3) for index in range(200)}
    first = list(TFRecordDataset(store.url("s3", "d/*"), storage_options=options))
    new_process()
    threads = []
    to_thread = asyncio.to_thread
    monkeypatch.setattr(
        "streamrec.storage.cache.store.asyncio.to_thread",
        lambda *call: threads.append(call) or to_thread(*call),  # type: ignore[func-returns-value]
    )
    before = len(store.asked)
    records = TFRecordDataset(store.url("s3", "d/*"), storage_options=options).iterate()
    assert list(records) == first
    assert records.stats().storage.backends["cache"].requests == len(store.objects)
    assert asked_since(store, before) == {"list": 1}
    assert len(threads) < 60


def test_a_gateway_that_lists_other_versions_than_it_answers_with_is_cached(
    store: SmallStore, options: dict[str, Any]
) -> None:
    def other_tag(asked: Asked, answer: Answer) -> Answer:
        if "ETag" in answer.headers:
            answer.headers["ETag"] = '"other"'
        return answer

    store.replace = other_tag
    store.objects |= {f"d/s-{index:03d}": shard(index, 3) for index in range(40)}
    pattern = store.url("s3", "d/*")
    plain = list(TFRecordDataset(pattern, storage_options=store.options("s3")))
    for _ in range(2):
        dataset = TFRecordDataset(pattern, storage_options=options).repeat(2)
        assert list(dataset) == plain * 2
        new_process()


def test_everything_that_reads_takes_it(store: SmallStore, options: dict[str, Any]) -> None:
    url = store.url("s3", "d/s-1")

    async def read() -> list[bytes]:
        async with streamrec.open_shard(url, storage_options=options) as reader:
            return [record async for record in reader]

    first = asyncio.run(read())
    before = len(store.asked)
    assert asyncio.run(read()) == first
    assert asked_since(store, before) == {"stat": 1}


def test_random_reads_and_global_shuffles_come_from_the_cache(
    store: SmallStore, options: dict[str, Any]
) -> None:
    index = store.url("s3", "d/index")
    streamrec.write_index_sync(names(store), index, storage_options=store.options("s3"))
    shards = store.url("s3", "d/s-*")

    def read(stores: dict[str, Any]) -> list[bytes]:
        with streamrec.RecordSource(index, storage_options=stores) as source:
            some = list(source.__getitems__([3, 77, 40, 119, 3]))
        dataset = TFRecordDataset(shards, storage_options=stores)
        return [*some, *dataset.global_shuffle(seed=3, index=index)]

    expected = read(store.options("s3"))
    assert len(expected) == 125
    for _ in range(2):
        assert read(options) == expected
    before = len(store.asked)
    assert read(options) == expected
    assert "read" not in asked_since(store, before)


def test_compressed_shards_are_cached_as_they_are_stored(
    store: SmallStore, options: dict[str, Any], tmp_path: Path
) -> None:
    local = tmp_path / "x.gz"
    with streamrec.TFRecordWriter(local, "GZIP") as writer:
        for index in range(2000):
            writer.write(b"%d" % index)
    store.objects["d/x.gz"] = local.read_bytes()
    dataset = TFRecordDataset(store.url("s3", "d/x.gz"), storage_options=options)
    first = list(dataset)
    assert len(first) == 2000
    before = len(store.asked)
    assert list(dataset) == first
    assert asked_since(store, before) == {"stat": 1}


def test_byte_ranges_and_random_reads_come_from_the_cache(
    store: SmallStore, options: dict[str, Any]
) -> None:
    url = store.url("s3", "d/s-1")
    data = store.objects["d/s-1"]

    async def read(ranges: list[tuple[int, int]]) -> list[bytes]:
        async with Storages(options, cached=True) as storages:
            storage = await storages.at(url)
            return [await storage.read_range(url, *each) for each in ranges]

    some = [(100, 5000), (0, 300), (4000, 9000), (len(data) - 10, len(data) + 50), (7, 8)]
    expected = [data[start:end] for start, end in some]
    assert asyncio.run(read(some)) == expected
    before = len(store.asked)
    assert asyncio.run(read(some)) == expected
    assert asked_since(store, before) == {"stat": 1}
    # only what is missing is asked for
    before = len(store.asked)
    assert asyncio.run(read([(0, len(data))])) == [data]
    sent = [asked.headers["range"] for asked in store.asked[before:] if store.kind(asked) == "read"]
    assert sent == ["bytes=9000-" + str(len(data) - 11)]


async def cache_in_blocks(options: dict[str, Any], url: str, size: int) -> None:
    """Reads an object in ranges, so that each of them is a block."""
    async with Storages(options, cached=True) as storages:
        storage = await storages.at(url)
        for start in range(0, LONG_BLOCKS * size, size):
            await storage.read_range(url, start, start + size)


async def read_in_two(
    options: dict[str, Any], url: str, between: Callable[[], object], step: int = 1 << 20
) -> bytes:
    """Reads an object; `between` is called when some of its first block was delivered."""
    async with Storages(options, cached=True) as storages:
        storage = await storages.at(url)
        stream = await storage.stream(url)
        buffer = bytearray(step)
        found = bytearray(buffer[: await stream.readinto(memoryview(buffer)[:10])])
        between()
        while count := await stream.readinto(memoryview(buffer)):
            found += buffer[:count]
        await stream.aclose()
        return bytes(found)


def test_blocks_that_go_while_their_object_is_read_are_read_to_its_end(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects["long"] = shard(7, LONG)
    size = -(-len(store.objects["long"]) // LONG_BLOCKS)
    url = store.url("s3", "long")
    asyncio.run(cache_in_blocks(options, url, size))

    def remove_all() -> None:
        assert len(blocks(options["cache_dir"])) == LONG_BLOCKS
        for path in blocks(options["cache_dir"]):
            path.unlink()

    before = len(store.asked)
    assert asyncio.run(read_in_two(options, url, remove_all)) == store.objects["long"]
    assert asked_since(store, before) == {"stat": 1}


@pytest.mark.parametrize("step", [1000, 70_000, 1 << 20])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_damaged_block_of_a_long_object_costs_its_own_bytes(
    store: SmallStore,
    options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    step: int,
    damaged: int,
) -> None:
    data = store.objects["long"] = shard(7, LONG)
    size = -(-len(data) // LONG_BLOCKS)
    url = store.url("s3", "long")
    asyncio.run(cache_in_blocks(options, url, size))

    def damage_last_bytes() -> None:
        [path] = [path for path in blocks(options["cache_dir"]) if starts_at(path, damaged * size)]
        content = bytearray(path.read_bytes())
        content[min(size, len(data) - damaged * size) - 1] ^= 1
        path.write_bytes(content)

    before = len(store.asked)
    assert asyncio.run(read_in_two(options, url, damage_last_bytes, step)) == data
    # What was checked in an earlier call is not asked for again.
    checked = CHUNK if step < CHUNK or damaged == 0 else 0
    end = f"{(damaged + 1) * size - 1}" if damaged < LONG_BLOCKS - 1 else ""
    sent = [asked.headers["range"] for asked in store.asked[before:] if store.kind(asked) == "read"]
    assert sent == [f"bytes={damaged * size + checked}-{end}"]
    assert sum("damaged block" in record.getMessage() for record in caplog.records) == 1


def starts_at(path: Path, start: int) -> bool:
    """Whether a file has the block that begins there."""
    block = parse_block(path.name)
    return block is not None and block.start == start


# Right, whatever happens.


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_a_rewritten_shard_is_read_again(store: SmallStore, tmp_path: Path, scheme: str) -> None:
    directory = tmp_path / "c"
    options = store.options(scheme) | {"cache_dir": directory, "cache_bytes": 1 << 26}
    store.objects = {f"d/s-{index}": shard(index, LONG) for index in range(3)}
    dataset = TFRecordDataset(names(store, scheme), storage_options=options)
    old = list(dataset)
    store.objects["d/s-1"] = shard(77, LONG)
    new = list(dataset)
    assert new == [*old[:LONG], *records_of(store.objects["d/s-1"]), *old[-LONG:]]
    assert list(dataset) == new
    close_caches()
    assert len(blocks(directory)) == 3  # the old version is gone


def test_rewritten_short_shards_are_read_again_and_their_old_versions_go(
    store: SmallStore, options: dict[str, Any]
) -> None:
    dataset = TFRecordDataset(names(store), storage_options=options)
    old = list(dataset)
    [first_pack] = blocks(options["cache_dir"])
    for rewritten in ("d/s-1", "d/s-0"):
        store.objects[rewritten] = shard(77 + len(rewritten), RECORDS + 1)
        new = list(TFRecordDataset(names(store), storage_options=options))
        assert new == [record for data in store.objects.values() for record in records_of(data)]
        assert first_pack.exists()  # one block of it is still wanted
    assert new[-RECORDS:] == old[-RECORDS:]
    new_process()
    before = len(store.asked)
    assert list(TFRecordDataset(names(store), storage_options=options)) == new
    # two of three blocks were of old versions: the third one was read from the store again
    assert not first_pack.exists()
    assert asked_since(store, before)["read"] == 1
    new_process()
    before = len(store.asked)
    assert list(TFRecordDataset(store.url("s3", "d/*"), storage_options=options)) == new
    assert asked_since(store, before) == {"list": 1}


def test_a_shard_that_was_rewritten_under_a_manifest_is_read_again(
    store: SmallStore, options: dict[str, Any]
) -> None:
    """A manifest has no versions: a run over one asks for them, and reads nothing again."""
    manifest = store.url("s3", "d/manifest.json")
    streamrec.write_manifest_sync(names(store), manifest, storage_options=store.options("s3"))
    dataset = TFRecordDataset(manifest, storage_options=options)
    first = list(dataset)
    new_process()
    before = len(store.asked)
    assert list(dataset) == first
    asked = asked_since(store, before)
    assert "read" not in asked  # not even for the manifest
    assert sum(asked.values()) <= 1 + len(first) // RECORDS
    store.objects["d/s-1"] = shard(9)  # of the same size
    assert len(store.objects["d/s-1"]) == len(store.objects["d/s-2"])
    for _ in range(2):
        expected = [*first[:RECORDS], *records_of(store.objects["d/s-1"]), *first[-RECORDS:]]
        assert list(dataset) == expected
        new_process()


def test_a_version_that_a_state_names_is_compared_with_the_store(
    store: SmallStore, options: dict[str, Any]
) -> None:
    dataset = TFRecordDataset(names(store), storage_options=options)
    batches = dataset.iterate()
    for _ in range(RECORDS + 3):
        next(batches)
    state = batches.state_dict()
    batches.close()
    list(dataset)  # all of it is cached
    store.objects["d/s-1"] = shard(77)
    with pytest.raises(streamrec.StreamrecError, match="was replaced"):
        list(dataset.iterate(state))


def test_a_store_without_versions_is_not_cached_and_says_so_once(
    store: SmallStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def without_tag(asked: Asked, answer: Answer) -> Answer:
        answer.headers.pop("ETag", None)
        return answer

    store.replace = without_tag
    directory = tmp_path / "c"
    options = {"cache_dir": directory, "cache_bytes": 1 << 26}
    dataset = TFRecordDataset(names(store, "http"), storage_options=options)
    assert list(dataset) == list(dataset)
    assert blocks(directory) == []
    assert [record.message for record in caplog.records if "ETags" in record.message] == [
        f"{store.endpoint} gives its objects no ETags and no generations, so that the cache could "
        "not tell when one was replaced: they are not cached"
    ]


@given(seed=st.integers(0, 1 << 32))
@drawn_examples(60)
def test_damage_on_the_disk_is_a_miss(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    chance = random.Random(seed)
    directory = tmp_path_factory.mktemp("c")
    lengths = {"d/s-0": 90, "d/s-1": 90, "d/s-2": LONG, "d/s-3": LONG}  # a pack, and two blocks
    with small_store(
        {name: shard(ord(name[-1]), count) for name, count in lengths.items()}
    ) as store:
        options = store.options("s3") | {"cache_dir": directory, "cache_bytes": 1 << 26}
        dataset = TFRecordDataset(names(store), storage_options=options)
        first = list(dataset)
        for path in blocks(directory):
            damage(path, chance)
        if chance.random() < 0.5:
            new_process()
        assert list(dataset) == first
        assert list(dataset) == first  # what came from a block before its damage is cached now
        before = len(store.asked)
        assert list(dataset) == first
        # What is in the way of a block stays as it is; a new pack has another name.
        foreign = [path for path in blocks(directory) if path.is_dir() and parse_block(path.name)]
        assert asked_since(store, before).get("read", 0) == len(foreign)  # all else is mended
    close_caches()


def damage(path: Path, chance: random.Random) -> None:
    """Damages a file in one of the ways in which disks do, or leaves it."""
    data = bytearray(path.read_bytes())
    if not data:  # it was damaged before
        return
    way = chance.choice(["flip", "cut", "zero", "empty", "gone", "directory", "none"])
    if way == "flip":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif way == "cut":
        del data[chance.randrange(len(data)) :]
    elif way == "zero":
        at = chance.randrange(len(data))
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    elif way == "empty":
        data.clear()
    if way in ("gone", "directory"):
        path.unlink()
    if way == "gone":
        return
    if way == "directory":
        path.mkdir()
        return
    path.write_bytes(data)


def test_damage_is_one_line_in_the_log_that_says_where(
    store: SmallStore, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = TFRecordDataset(store.url("s3", "d/s-0"), storage_options=options)
    first = list(dataset)
    [path] = blocks(options["cache_dir"])
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    assert list(dataset) == first
    [line] = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    assert "d/s-0, bytes 0 to " in line
    assert str(options["cache_dir"]) in line


def test_bytes_that_change_before_they_are_written_are_damage_and_never_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_cache(CacheSettings(str(tmp_path / "c"), 64 << 20))
    assert cache is not None
    key = ObjectKey("store", "s3://b/d/x", "v", 100_000)
    assert cache.disk.index(key) is not None
    data = bytearray(random.Random(0).randbytes(100_000))
    may_write = threading.Event()
    cache.writer.submit(lambda: may_write.wait(10) and None)
    refused: list[int] = []
    unwritten = UnwrittenBytes(1 << 20)
    fill = Fill(cache.writer, key, 0, key.size, unwritten=unwritten, on_refused=refused.append)
    fill.add(memoryview(data), lasting=True)
    fill.end()
    data[70_000] ^= 1  # the caller breaks its promise
    may_write.set()
    assert cache.writer.flush(10)
    assert refused == []
    assert cache.disk.read_whole([key]) == [None]
    assert ["damaged" in line for line in warnings_in(caplog)] == [True]
    assert unwritten.take(1 << 20)  # all is given back
    close_caches()


def test_blocks_that_wait_to_be_written_have_a_share_of_the_memory_budget(
    store: SmallStore, options: dict[str, Any]
) -> None:
    dataset = TFRecordDataset(names(store), storage_options=options)
    records = dataset.with_options(memory_budget=32 << 20).iterate()
    next(records)
    ledger = records._run.ledger  # type: ignore[attr-defined]
    assert [(share.name, share.nbytes) for share in ledger.shares] == [("cache", 4 << 20)]
    assert ledger.account.budget - ledger.account.limit == 4 << 20
    records.close()


def test_blocks_that_cannot_be_written_in_time_are_not_cached(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects = many_shards("d")
    total = sum(map(len, store.objects.values()))
    cache = open_cache(CacheSettings(str(options["cache_dir"]), 64 << 20))
    assert cache is not None
    may_write = threading.Event()
    cache.writer.submit(lambda: may_write.wait(60) and None)
    dataset = TFRecordDataset(store.url("s3", "d/*"), storage_options=options)
    try:
        records = dataset.with_options(memory_budget=32 << 20).iterate()
        assert sum(1 for _, _ in zip(range(MANY * 10), records, strict=False)) == MANY * 10
        refused = records.stats().storage.backends["cache"].bytes_not_admitted
        assert total - (4 << 20) <= refused <= total
    finally:
        may_write.set()
    records.close()
    assert on_disk(options["cache_dir"]) <= 4 << 20


def test_streams_that_gather_bytes_for_the_disk_never_take_all_of_their_room(
    tmp_path: Path,
) -> None:
    """The disk is idle: each of many blocks waits for its next bytes, to be written with them."""
    cache = open_cache(CacheSettings(str(tmp_path / "c"), 64 << 20))
    assert cache is not None
    keys = [ObjectKey("store", f"s3://b/d/{number}", "v", 600_000) for number in range(20)]
    assert cache.disk.index(keys[0]) is not None
    refused: list[int] = []
    unwritten = UnwrittenBytes(4 << 20)
    fills = [
        Fill(cache.writer, key, 0, key.size, unwritten=unwritten, on_refused=refused.append)
        for key in keys
    ]
    for _ in range(6):
        for fill in fills:
            fill.add(memoryview(bytes(100_000)), lasting=True)
            assert cache.writer.flush(10)
    for fill in fills:
        fill.end()
    assert cache.writer.flush(10)
    assert refused == []
    assert len(blocks(tmp_path)) == len(keys)
    close_caches()


def test_nothing_that_the_cache_did_not_write_is_removed(
    store: SmallStore, options: dict[str, Any]
) -> None:
    directory = options["cache_dir"]
    (directory / "sets" / "mine").mkdir(parents=True)
    mine = [directory / "notes.txt", directory / "sets" / "mine" / "x.block"]
    list(TFRecordDataset(names(store), storage_options=options))
    close_caches()
    [some_set] = {path.parent for path in blocks(directory)}
    mine += [some_set / "x.block", some_set / "model.tmp", some_set / "my.lock"]
    for path in mine:
        path.write_bytes(b"mine")
    smaller = options | {"cache_bytes": "8MiB"}
    store.objects |= {f"e/s-{index}": shard(index, 2000) for index in range(8)}
    for name in ("d", "e"):
        list(TFRecordDataset(store.url("s3", f"{name}/*"), storage_options=smaller))
        new_process()
    assert [path.read_bytes() for path in mine] == [b"mine"] * len(mine)


def test_files_are_private(store: SmallStore, options: dict[str, Any]) -> None:
    old = os.umask(0)
    try:
        list(TFRecordDataset(names(store), storage_options=options))
    finally:
        os.umask(old)
    directory = options["cache_dir"]
    for path in [directory, *directory.rglob("*")]:
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("part", ["", "sets", "runs", "usage", "streamrec-cache.json"])
def test_symbolic_links_are_not_followed(
    store: SmallStore,
    options: dict[str, Any],
    tmp_path: Path,
    part: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    victim = tmp_path / "victim"
    directory = options["cache_dir"]
    if part == "":
        victim.mkdir()
    else:
        directory.mkdir()
        victim.mkdir() if part in ("sets", "runs") else victim.write_bytes(b"mine")
    (directory / part).symlink_to(victim)
    plain = [record for data in store.objects.values() for record in records_of(data)]
    dataset = TFRecordDataset(names(store), storage_options=options)
    assert list(dataset) == plain
    assert list(dataset) == plain
    assert victim.read_bytes() == b"mine" if victim.is_file() else os.listdir(victim) == []
    assert len(warnings_in(caplog)) == 1


def test_a_block_that_is_a_link_is_not_read(store: SmallStore, options: dict[str, Any]) -> None:
    dataset = TFRecordDataset(names(store), storage_options=options)
    first = list(dataset)
    for path in blocks(options["cache_dir"]):
        moved = path.with_name("moved")
        path.rename(moved)
        path.symlink_to(moved)
        break
    assert list(dataset) == first


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_directory_of_another_user_is_not_used(
    store: SmallStore, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    directory = options["cache_dir"]
    directory.mkdir()
    os.chown(directory, 4321, 4321)
    dataset = TFRecordDataset(names(store), storage_options=options)
    assert list(dataset) == list(dataset)
    assert os.listdir(directory) == []
    assert ["belongs to another user" in line for line in warnings_in(caplog)] == [True]


def test_a_cache_of_another_version_is_not_used(
    store: SmallStore, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    directory = options["cache_dir"]
    directory.mkdir()
    (directory / "streamrec-cache.json").write_text('{"format": 99}')
    dataset = TFRecordDataset(names(store), storage_options=options)
    assert list(dataset) == list(dataset)
    assert os.listdir(directory) == ["streamrec-cache.json"]
    assert ["another version of streamrec" in line for line in warnings_in(caplog)] == [True]


def test_a_cache_of_the_first_format_goes_on_as_one_of_this_format(
    store: SmallStore, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store.objects = {"d/s-0": shard(0, LONG)}
    first = list(TFRecordDataset(names(store), storage_options=options))
    close_caches()
    marker = options["cache_dir"] / "streamrec-cache.json"
    now = marker.read_text()
    marker.write_text('{"format": 1}')
    store.objects["d/s-1"] = shard(1)
    records = TFRecordDataset(names(store), storage_options=options).iterate()
    assert list(records)[:LONG] == first
    assert records.stats().storage.backends["s3"].bytes == len(store.objects["d/s-1"])
    assert marker.read_text() == now
    assert warnings_in(caplog) == []


def test_a_directory_that_is_deleted_under_a_running_job_is_one_warning(
    store: SmallStore, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    store.objects |= {f"d/s-{index}": shard(index, 5) for index in range(30)}
    dataset = TFRecordDataset(names(store), storage_options=options)
    first = list(dataset)
    records = iter(dataset.repeat(3))
    found = [next(records) for _ in range(20)]
    shutil.rmtree(options["cache_dir"])
    found += records
    assert found == first * 3
    assert list(dataset) == first  # the run before may have read ahead to its end
    assert len(warnings_in(caplog)) == 1


def test_a_parent_that_cannot_be_made_is_one_warning(
    store: SmallStore, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    options["cache_dir"] = tmp_path / "file" / "cache"
    dataset = TFRecordDataset(names(store), storage_options=options)
    assert list(dataset) == list(dataset)
    assert len(warnings_in(caplog)) == 1


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "streamrec" and record.levelno >= logging.WARNING
    ]


def records_of(data: bytes) -> list[bytes]:
    return [bytes(record) for record in Framer().feed(data)]


# Does not thrash.


MANY = 24


def many_shards(folder: str) -> dict[str, bytes]:
    return {f"{folder}/s-{index:02d}": shard(index, 10, 100_000) for index in range(MANY)}


@pytest.mark.parametrize("fraction", [0.4, 0.8])
@pytest.mark.parametrize("order", ["files", "shuffled"])
def test_a_pass_that_is_larger_than_the_cache_reads_only_the_rest(
    store: SmallStore, options: dict[str, Any], fraction: float, order: str
) -> None:
    store.objects = many_shards("d")
    total = sum(map(len, store.objects.values()))
    options["cache_bytes"] = int(total * fraction)
    urls = names(store)
    for epoch in range(4):
        if order == "shuffled":
            random.Random(epoch).shuffle(urls)
        records = TFRecordDataset(urls, storage_options=options).iterate()
        assert sum(1 for _ in records) == MANY * 10
        counts = records.stats().storage.backends
        asked = counts["s3"].bytes
        assert asked + counts["cache"].bytes == total
        if epoch:
            # one shard is the block that may not fit
            assert asked <= (1 - fraction + 0.02) * total + total / MANY
        assert on_disk(options["cache_dir"]) <= options["cache_bytes"]
        if epoch == 2:
            new_process()


def on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in blocks(directory))


def test_a_new_data_set_gets_the_room_of_one_that_no_job_uses(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects = many_shards("d") | many_shards("e") | many_shards("f")
    options["cache_bytes"] = int(sum(map(len, store.objects.values())) * 0.7)
    for folder in "defd":
        list(TFRecordDataset(store.url("s3", f"{folder}/*"), storage_options=options))
        age_sets(options["cache_dir"])
        new_process()
    before = len(store.asked)
    for folder in "df":
        list(TFRecordDataset(store.url("s3", f"{folder}/*"), storage_options=options))
    # "e" was used longest ago when "d" was read again
    assert asked_since(store, before) == {"list": 2}


def age_sets(directory: Path) -> None:
    """Makes all data sets a minute older."""
    for path in directory.glob("sets/*/about.json"):
        before = path.stat().st_mtime - 60
        os.utime(path, (before, before))


def test_a_job_never_loses_blocks_to_its_own_other_data(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects = many_shards("train") | many_shards("valid")
    options["cache_bytes"] = sum(map(len, many_shards("x").values())) * 11 // 10
    for epoch in range(3):
        for folder in ("train", "valid"):
            records = TFRecordDataset(
                store.url("s3", f"{folder}/*"), storage_options=options
            ).iterate()
            assert sum(1 for _ in records) == MANY * 10
            if epoch and folder == "train":
                assert records.stats().storage.backends["s3"].bytes == 0


def test_a_smaller_limit_is_kept_from_the_start(store: SmallStore, options: dict[str, Any]) -> None:
    store.objects = many_shards("d")
    pattern = store.url("s3", "d/*")
    list(TFRecordDataset(pattern, storage_options=options))
    new_process()
    assert on_disk(options["cache_dir"]) > 10 << 20
    options["cache_bytes"] = 10 << 20
    for record in TFRecordDataset(pattern, storage_options=options):
        assert record
        assert on_disk(options["cache_dir"]) <= options["cache_bytes"]


def test_a_limit_below_one_block_is_an_error_at_once(
    store: SmallStore, options: dict[str, Any]
) -> None:
    options["cache_bytes"] = (8 << 20) - 1
    with pytest.raises(ValueError, match="a cache holds at least one block of 8,388,608 bytes"):
        TFRecordDataset(names(store), storage_options=options)


# Shared.


def test_a_dead_holder_of_a_lock_delays_a_read_by_its_patience(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects["d/long"] = shard(5, 30, 100_000)
    url = store.url("s3", "d/long")
    asyncio.run(leave_locks(url, options))
    began = time.monotonic()
    assert len(list(TFRecordDataset(url, storage_options=options))) == 30
    waited = time.monotonic() - began
    assert 0.5 * LOCK_SECONDS < waited < 5 * LOCK_SECONDS
    assert len(blocks(options["cache_dir"])) == 1


async def leave_locks(url: str, options: dict[str, Any]) -> None:
    """Leaves the lock of an object's first block, as a process that is killed does."""
    async with Storages(options, cached=True) as storages:
        storage: Any = await storages.at(url)
        key = storage._objects.key_of(await storage.stat(url))
        await storage._objects.find_index(key)
        storage._place.cache.disk.lock(key, 0)


def test_runs_that_want_the_same_bytes_at_once_fetch_them_once(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects = {"d/long": shard(5, 90, 100_000)}

    async def read() -> list[bytes]:
        pattern = store.url("s3", "d/*")
        return [record async for record in TFRecordDataset(pattern, storage_options=options)]

    async def read_all() -> list[list[bytes]]:
        return await asyncio.gather(*(read() for _ in range(6)))

    one, *others = asyncio.run(read_all())
    assert len(one) == 90
    assert others == [one] * 5
    assert asked_since(store, 0)["read"] == 1


def test_threads_that_want_the_same_bytes_at_once_fetch_them_once(
    store: SmallStore, options: dict[str, Any]
) -> None:
    store.objects = {"d/long": shard(5, 90, 100_000)}
    dataset = TFRecordDataset(store.url("s3", "d/*"), storage_options=options)
    with ThreadPoolExecutor(5) as pool:
        one, *others = pool.map(lambda _: list(dataset), range(5))
    assert len(one) == 90
    assert others == [one] * 4
    assert asked_since(store, 0)["read"] == 1


# Order does not depend on it.


@given(data=st.data())
@drawn_examples(60)
def test_records_and_states_are_the_same_with_any_cache(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("c")
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=6))
    objects = {f"d/s-{index}": shard(index, count, 50_000) for index, count in enumerate(sizes)}
    cycle = data.draw(st.integers(1, 4))
    batch = data.draw(st.integers(1, 7))
    with small_store(objects) as store:

        def dataset() -> Any:
            options = store.options("s3")
            if data.draw(st.booleans(), "cache"):
                limit = data.draw(st.integers(8 << 20, 20 << 20), "limit")
                options |= {"cache_dir": directory, "cache_bytes": limit}
            made = TFRecordDataset(
                names(store),
                storage_options=options,
                num_parallel_reads=cycle,
            )
            return made.shuffle(10, seed=3).repeat(2).batch(batch)

        expected = [list(found) for found in plain(store, cycle, batch)]
        found: list[list[bytes]] = []
        state = None
        while True:
            run = dataset().iterate(state)
            steps = data.draw(st.integers(1, 30), "steps")
            taken = [list(each) for _, each in zip(range(steps), run, strict=False)]
            found += taken
            state = json.loads(json.dumps(run.state_dict()))
            run.close()
            if len(taken) < steps:
                break
            if data.draw(st.booleans(), "damage"):
                chance = random.Random(data.draw(st.integers(0, 99)))
                for path in filter(Path.is_file, blocks(directory)):
                    damage(path, chance)
            if data.draw(st.booleans(), "new process"):
                new_process()
        assert found == expected
    close_caches()


def plain(store: SmallStore, cycle: int, batch: int) -> Any:
    made = TFRecordDataset(
        names(store),
        storage_options=store.options("s3"),
        num_parallel_reads=cycle,
    )
    return made.shuffle(10, seed=3).repeat(2).batch(batch)


def test_verify_reads_the_store_and_not_the_cache(
    store: SmallStore, options: dict[str, Any]
) -> None:
    url = store.url("s3", "d/s-1")
    list(TFRecordDataset(url, storage_options=options))
    before = len(store.asked)
    assert streamrec.verify_sync(url, storage_options=options).problems == ()
    assert asked_since(store, before)["read"] >= 1


def test_writers_take_the_options_of_the_cache_and_do_not_cache(
    store: SmallStore, options: dict[str, Any]
) -> None:
    with streamrec.TFRecordWriter(store.url("s3", "d/new"), storage_options=options) as writer:
        writer.write(b"x")
    assert not options["cache_dir"].exists()
