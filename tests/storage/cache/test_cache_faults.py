"""The cache with a fault at each of its system calls, and with processes that are killed: the
records are right, nothing hangs, and there is one warning.
"""

import asyncio
import errno
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

import pytest

from streamrec import TFRecordDataset
from streamrec.storage import Storages
from streamrec.storage.cache import (
    block_file,
    close_caches,
    directories,
    disk_cache,
    files,
    journal,
    open_cache,
    opening,
    packs,
    preallocation,
    runs,
    set_index,
    usage,
)
from streamrec.storage.cache.names import writer_of
from streamrec.storage.cache_settings import CacheSettings
from tests.effort import THOROUGH
from tests.servers.real import Store
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.test_cached_reads import (
    LONG,
    blocks,
    many_shards,
    names,
    on_disk,
    records_of,
    shard,
)

CALLS = (
    *(
        "open",
        "write",
        "writev",
        "pwrite",
        "pread",
        "preadv",
        "mkdir",
        "makedirs",
        "rename",
        "unlink",
    ),
    *("utime", "listdir", "stat", "fstat", "rmdir", "posix_fallocate", "ftruncate"),
)
MODULES = (
    block_file,
    directories,
    disk_cache,
    files,
    journal,
    packs,
    preallocation,
    runs,
    set_index,
    usage,
)


class Disk:
    """`os` as the cache sees it: each call is counted, and those that `fails` chooses fail."""

    def __init__(self, fails: Callable[[int, str], int | None]) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            number = self._fails(len(self.calls), name)
            self.calls.append(name)
            if number is not None:
                raise OSError(number, os.strerror(number))
            return real(*args, **kwargs)

        return call


def install(monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
    module: ModuleType
    for module in MODULES:
        monkeypatch.setattr(module, "os", disk)


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with store_of_three() as running:
        yield running
    close_caches()


def store_of_three() -> AbstractContextManager[SmallStore]:
    """A store of two short objects, which share a pack, and one with a file of its own."""
    lengths = (6, 6, LONG)
    return small_store({f"d/s-{index}": shard(index, each) for index, each in enumerate(lengths)})


def read_three_times(store: SmallStore, directory: Path) -> None:
    """Reads with a full life of a cache: a new one, one that is full, and a new process."""
    options = store.options("s3") | {"cache_dir": directory, "cache_bytes": 8 << 20}
    expected = [record for data in store.objects.values() for record in records_of(data)]
    for epoch in range(3):
        dataset = TFRecordDataset(names(store), storage_options=options)
        assert list(dataset) == expected
        if epoch == 1:
            close_caches()
    close_caches()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT]
)
def test_a_fault_at_any_call_costs_nothing_but_the_cache(
    store: SmallStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    monkeypatch.setattr(preallocation, "LEAST_BYTES", 1)
    counting = Disk(lambda at, name: None)
    install(monkeypatch, counting)
    read_three_times(store, tmp_path / "whole")
    assert ("posix_fallocate" in counting.calls) == hasattr(os, "posix_fallocate")
    total = len(counting.calls)
    assert {"open", "writev", "pwrite", "mkdir", "rename", "unlink", "listdir"} <= {*counting.calls}
    assert warned(caplog) == []
    step = (1 if THOROUGH else 3) if number == errno.EIO else 7
    for begin in range(number % step, total, step):
        for lasts in (False, True) if number == errno.EIO else (True,):
            failing = Disk(
                lambda at, name, begin=begin, lasts=lasts: (  # type: ignore[misc]
                    number if at == begin or (lasts and at > begin) else None
                )
            )
            install(monkeypatch, failing)
            read_three_times(store, tmp_path / f"{begin}-{lasts}")
            # one for each of the two processes; a fault that matters to none is not told
            assert len(warned(caplog)) <= 2, (begin, counting.calls[begin])


def test_a_full_disk_stops_writing_and_not_reading(
    store: SmallStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = store.options("s3") | {"cache_dir": tmp_path / "c", "cache_bytes": 8 << 20}
    first = list(TFRecordDataset(store.url("s3", "d/s-0"), storage_options=options))
    install(monkeypatch, Disk(lambda at, name: errno.ENOSPC if name == "writev" else None))
    everything = TFRecordDataset(names(store), storage_options=options)
    found = list(everything)
    assert found[: len(first)] == first
    assert ["without adding to it" in line for line in warned(caplog)] == [True]
    records = everything.iterate()
    assert list(records) == found
    assert records.stats().storage.backends["cache"].bytes == len(store.objects["d/s-0"])
    assert not [path for path in (tmp_path / "c").rglob("*") if writer_of(path.name)]


def test_too_many_open_files_for_the_next_blocks_turn_no_cache_off(
    store: SmallStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Only the block that is read needs a file; those after it are opened when their turn comes."""
    options = store.options("s3") | {"cache_dir": tmp_path / "c", "cache_bytes": 64 << 20}
    data = store.objects["long"] = random.Random(3).randbytes(900_000)
    url = store.url("s3", "long")

    async def read(ranges: list[tuple[int, int]]) -> list[bytes]:
        async with Storages(options, cached=True) as storages:
            storage = await storages.at(url)
            return [await storage.read_range(url, *each) for each in ranges]

    asyncio.run(read([(0, 300_000), (300_000, 600_000), (600_000, 900_000)]))
    opened = 0

    def fails(at: int, name: str) -> int | None:
        """Every second file that is opened is one too many."""
        nonlocal opened
        opened += name == "open"
        return errno.EMFILE if name == "open" and opened % 2 == 0 else None

    install(monkeypatch, Disk(fails))
    before = len(store.asked)
    assert asyncio.run(read([(0, 900_000)])) == [data]
    assert opened == 5
    assert [store.kind(asked) for asked in store.asked[before:]] == ["stat"]
    assert not warned(caplog)


READ = """
import json, resource, sys
from streamrec import TFRecordDataset

pattern, options, epochs, most = json.loads(sys.argv[1])
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
print("ready", flush=True)
for _ in range(epochs):
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    count = sum(map(len, records))
    backends = records.stats().storage.backends
    read = {name: counts.bytes for name, counts in backends.items()}
    print(json.dumps([count, read]), flush=True)
"""


def start_reading(
    pattern: str, options: dict[str, Any], epochs: int = 1, most: int = 0
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READ, json.dumps([pattern, options, epochs, most])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def results(process: subprocess.Popen[str]) -> tuple[list[tuple[int, dict[str, int]]], str]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    ready, *lines = out.splitlines()
    assert ready == "ready"
    return [tuple(json.loads(line)) for line in lines], err  # type: ignore[misc]


def test_a_disk_that_takes_no_more_bytes_is_one_warning(store: SmallStore, tmp_path: Path) -> None:
    store.objects = many_shards("d")
    options = store.options("s3") | {"cache_dir": str(tmp_path / "c"), "cache_bytes": 1 << 30}
    pattern = store.url("s3", "d/*")
    found, err = results(start_reading(pattern, options, epochs=2, most=600_000))
    assert found[0][0] == found[1][0]
    assert err.count("the cache in ") == 1


@pytest.mark.timeout(60)
def test_a_killed_process_leaves_a_cache_that_is_right(store: SmallStore, tmp_path: Path) -> None:
    store.objects = many_shards("d")
    total = sum(map(len, store.objects.values()))
    directory = tmp_path / "c"
    options = store.options("s3") | {"cache_dir": str(directory), "cache_bytes": total * 2}
    pattern = store.url("s3", "d/*")
    expected = list(TFRecordDataset(pattern, storage_options=store.options("s3")))
    for blocks_before in (1, 9):
        process = start_reading(pattern, options, epochs=50)
        while len(blocks(directory)) < blocks_before and process.poll() is None:
            os.sched_yield()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert list(TFRecordDataset(pattern, storage_options=options)) == expected
        close_caches()
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    assert list(records) == expected
    assert records.stats().storage.backends["s3"].bytes == 0
    left = [path for path in directory.rglob("*") if writer_of(path.name)]
    assert left == []
    assert on_disk(directory) <= 2 * total


@pytest.mark.timeout(60)
def test_a_killed_process_leaves_packs_that_are_right(store: SmallStore, tmp_path: Path) -> None:
    store.objects = {f"d/s-{index:03d}": shard(index, 10, 10_000) for index in range(180)}
    total = sum(map(len, store.objects.values()))
    directory = tmp_path / "c"
    options = store.options("s3") | {"cache_dir": str(directory), "cache_bytes": total * 2}
    pattern = store.url("s3", "d/*")
    expected = [record for data in store.objects.values() for record in records_of(data)]
    process = start_reading(pattern, options, epochs=50)
    while not blocks(directory) and process.poll() is None:
        os.sched_yield()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    assert list(records) == expected
    # the pack that had its name was found
    assert records.stats().storage.backends["s3"].bytes < total
    left = [path for path in directory.rglob("*") if writer_of(path.name)]
    assert left == []
    assert on_disk(directory) <= 2 * total
    close_caches()
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    assert list(records) == expected
    assert records.stats().storage.backends["s3"].bytes == 0


@pytest.mark.parametrize("count", [4, pytest.param(20, marks=pytest.mark.thorough)])
@pytest.mark.timeout(300)
def test_processes_that_start_together_fetch_each_block_once_and_keep_the_limit(
    store: SmallStore, tmp_path: Path, count: int
) -> None:
    store.objects = {f"d/s-{index:02d}": shard(index, 32, 20_000) for index in range(16)}
    pattern = store.url("s3", "d/*")
    total = sum(map(len, store.objects.values()))
    for limit in (2 * total, 8 << 20):
        directory = tmp_path / str(limit)
        options = store.options("s3") | {"cache_dir": directory, "cache_bytes": limit}
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        gate = context.Event()
        processes = [
            context.Process(target=count_after, args=(gate, pattern, options, answers))
            for _ in range(count)
        ]
        for process in processes:
            process.start()
        gate.set()
        read = 0
        for _ in processes:
            records, nbytes = answers.get()
            assert records == 16 * 32
            assert on_disk(directory) <= limit
            read += nbytes
        for process in processes:
            process.join()
        # a holder that gets no processor for seconds is overtaken
        assert limit < total or total <= read <= 2 * total
        assert sum(1 for _ in TFRecordDataset(pattern, storage_options=options)) == 16 * 32
        close_caches()
        assert not [path for path in directory.rglob("*") if writer_of(path.name)]


def count_after(gate: Any, pattern: str, options: dict[str, Any], answers: Any) -> None:
    gate.wait()
    count_records(pattern, options, answers)


@pytest.mark.timeout(60)
def test_blocks_that_a_running_job_uses_are_never_removed(
    store: SmallStore, tmp_path: Path
) -> None:
    store.objects = many_shards("d") | many_shards("e")
    total = sum(map(len, many_shards("d").values()))
    directory = tmp_path / "c"
    options = store.options("s3") | {"cache_dir": str(directory), "cache_bytes": total * 11 // 10}
    running = start_reading(store.url("s3", "d/*"), options, epochs=1000)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.stdout.readline()
        before = blocks(directory)
        for _ in range(2):
            list(TFRecordDataset(store.url("s3", "e/*"), storage_options=options))
            close_caches()
        assert {*before} <= {*blocks(directory)}
        assert on_disk(directory) <= options["cache_bytes"]
    finally:
        running.kill()
        running.communicate()
    list(TFRecordDataset(store.url("s3", "e/*"), storage_options=options))
    records = TFRecordDataset(store.url("s3", "e/*"), storage_options=options).iterate()
    list(records)
    assert records.stats().storage.backends["s3"].bytes == 0


def count_records(pattern: str, options: dict[str, Any], answers: Any) -> None:
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    count = sum(1 for _ in records)
    answers.put((count, records.stats().storage.backends["s3"].bytes))


@pytest.mark.timeout(60)
def test_a_forked_child_uses_the_cache_as_a_process_of_its_own(
    store: SmallStore, tmp_path: Path
) -> None:
    options = store.options("s3") | {"cache_dir": tmp_path / "c", "cache_bytes": 1 << 26}
    pattern = store.url("s3", "d/*")
    count = len(list(TFRecordDataset(pattern, storage_options=options)))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=count_records, args=(pattern, options, answers))
    child.start()
    assert answers.get() == (count, 0)
    child.join()
    store.objects["d/s-3"] = shard(3)
    records = TFRecordDataset(pattern, storage_options=options).iterate()
    assert sum(1 for _ in records) == count + 40
    assert len(blocks(tmp_path / "c")) == 3  # the pack, the block, and what the last run wrote


@pytest.mark.timeout(60)
def test_a_child_that_is_forked_while_the_count_changes_does_not_wait(
    store: SmallStore, tmp_path: Path
) -> None:
    options = store.options("s3") | {"cache_dir": tmp_path / "c", "cache_bytes": 1 << 26}
    pattern = store.url("s3", "d/*")
    count = len(list(TFRecordDataset(pattern, storage_options=options)))
    cache = open_cache(CacheSettings(str(tmp_path / "c"), 1 << 26))
    assert cache is not None
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    with cache.disk.usage._threads:
        child = context.Process(target=count_records, args=(pattern, options, answers))
        child.start()
        assert answers.get() == (count, 0)
        child.join()


@pytest.mark.timeout(60)
def test_the_count_is_that_of_the_files_after_each_run(store: SmallStore, tmp_path: Path) -> None:
    options = store.options("s3") | {"cache_dir": tmp_path / "c", "cache_bytes": 1 << 26}
    pattern = store.url("s3", "d/*")
    settings = CacheSettings(str(tmp_path / "c"), 1 << 26)
    context = multiprocessing.get_context("fork")
    for index in range(4, 7):
        store.objects[f"d/s-{index}"] = shard(index)
        answers = context.SimpleQueue()
        worker = context.Process(target=count_records, args=(pattern, options, answers))
        worker.start()
        answers.get()
        worker.join()
        cache = open_cache(settings)
        assert cache is not None
        on_disk = [block.charge for each in cache.disk.stored_sets() for block in each.blocks]
        assert cache.disk.usage.used() == sum(on_disk) > 0


def test_a_writer_that_is_late_keeps_its_files_when_the_caches_are_closed(
    store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers of files would be those of other files, which it would write to."""
    options = store.options("s3") | {"cache_dir": tmp_path / "c", "cache_bytes": 1 << 26}
    pattern = store.url("s3", "d/*")
    expected = list(TFRecordDataset(pattern, storage_options=options))
    cache = open_cache(CacheSettings(str(tmp_path / "c"), 1 << 26))
    assert cache is not None
    goes_on = threading.Event()
    files_of_writer = SimpleQueue[int]()

    def be_late() -> None:
        goes_on.wait()
        files_of_writer.put(os.fstat(cache.disk._directories.sets).st_ino)

    cache.writer.submit(be_late)
    monkeypatch.setattr(opening, "END_SECONDS", 0.01)
    close_caches()
    goes_on.set()
    assert files_of_writer.get(timeout=60) == (tmp_path / "c" / "sets").stat().st_ino
    assert list(TFRecordDataset(pattern, storage_options=options)) == expected


def test_blocks_that_a_worker_used_stay_in_use_while_its_job_runs(tmp_path: Path) -> None:
    """A DataLoader starts other workers for each epoch: between two of them, none lives."""
    directory = files.open_directory(str(tmp_path))
    try:
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=use_a_set, args=(str(tmp_path),))
        worker.start()
        worker.join()
        assert runs.Runs(directory).in_use() == {"a" * 32}
        assert not runs.is_running({"pid": os.getpid(), "started": "0", "system": runs.system()})
    finally:
        os.close(directory)


def use_a_set(path: str) -> None:
    runs.Runs(files.open_directory(path)).use("a" * 32)
    os._exit(0)


# Real servers.


def check_epochs(store: Store, prefix: str, directory: Path) -> None:
    """Blocks longer than one, parallel requests, three epochs, and half a cache."""
    objects = {f"{store.url}/{prefix}/s-{index}": shard(index, 120, 100_000) for index in range(3)}
    store.put(objects)
    total = sum(map(len, objects.values()))
    pattern = f"{store.url}/{prefix}/*"
    plain = list(TFRecordDataset(pattern, storage_options=store.options))
    for fraction in (1.1, 0.5):
        options = dict(store.options) | {
            "cache_dir": directory / str(fraction),
            "cache_bytes": int(total * fraction),
        }
        for epoch in range(3):
            records = TFRecordDataset(pattern, storage_options=options).iterate()
            assert list(records) == plain
            backends = records.stats().storage.backends
            read = sum(counts.bytes for name, counts in backends.items() if name != "cache")
            assert read + backends["cache"].bytes == total
            if epoch:
                assert read <= max(0, 1 - fraction + 0.02) * total + (8 << 20) * (fraction < 1)
        close_caches()


def test_epochs_from_seaweedfs(s3_store: Store, tmp_path: Path) -> None:
    check_epochs(s3_store, "disk-cache", tmp_path)


def test_epochs_from_fake_gcs(gcs_store: Store, tmp_path: Path) -> None:
    check_epochs(gcs_store, "disk-cache", tmp_path)
