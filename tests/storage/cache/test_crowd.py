"""Several processes that read the same objects at the same time fetch each of them once."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import streamrec
from streamrec import TFRecordDataset
from streamrec.storage.cache import close_caches, open_cache, runs
from streamrec.storage.cache.block_file import Checksums
from streamrec.storage.cache.disk_cache import CacheMode, DiskCache, Lock
from streamrec.storage.cache.names import ObjectKey
from streamrec.storage.cache.opening import OpenCache
from streamrec.storage.cache.packs import ShortBlock
from streamrec.storage.cache.set_index import SetIndex
from streamrec.storage.cache.spans import Span
from streamrec.storage.cache.writer import Fill
from streamrec.storage.cache_settings import CacheSettings
from streamrec.storage.ledger import UnwrittenBytes
from tests.effort import thorough
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.crowd import run_crowd

SHARDS = 3


@pytest.fixture
def store() -> Iterator[SmallStore]:
    shard = streamrec.encode_records([bytes(1000)] * 40)
    with small_store({f"d/s-{index}": shard for index in range(SHARDS)}) as running:
        yield running
    close_caches()


@pytest.mark.parametrize("processes", [12, *thorough(200)])
@pytest.mark.timeout(600)
def test_many_processes_at_once_fetch_each_shard_once(processes: int, tmp_path: Path) -> None:
    crowd = run_crowd(processes, tmp_path / "cache")
    assert crowd.problems(processes) == []
    # On a busy machine, a process that has no turn for two seconds is taken for dead, and its shard
    # is fetched by another one, too. Without locks, all would be fetched by each process. The
    # program `crowd` prints the figure, which is 1.0 on a machine that does nothing else.
    assert 1 <= crowd.sent < 3


@pytest.mark.timeout(600)
def test_many_processes_at_once_have_files_that_short_objects_share(tmp_path: Path) -> None:
    crowd = run_crowd(4, tmp_path / "cache", shards=120, records=1)
    assert crowd.problems(4) == []
    assert 1 <= crowd.sent < 3  # as above
    assert crowd.files < 60  # one for each object would be 120


OTHER_PROCESS = """
import sys
from streamrec.storage.cache import open_cache
from streamrec.storage.cache_settings import CacheSettings
from streamrec.storage.ledger import UnwrittenBytes
assert open_cache(CacheSettings(sys.argv[1], 64 << 20)) is not None
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def other_process(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that uses the cache, until the end."""
    command = [sys.executable, "-c", OTHER_PROCESS, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        yield other
        other.stdin.close()


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("is_young", [False, True])
def test_versions_are_asked_for_first_if_other_processes_may_fetch_the_same_bytes(
    store: SmallStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: bool,
    is_young: bool,
) -> None:
    """A GET that is given up, because another process fetches the object, has cost its bytes.

    In the first second of a process, the others of its job may not be there yet.
    """
    monkeypatch.setattr(runs, "YOUNG_SECONDS", 3600 if is_young else 0)
    directory = tmp_path / "cache"
    options = {**store.options("s3"), "cache_dir": directory, "cache_bytes": 64 << 20}
    urls = [store.url("s3", f"d/s-{index}") for index in range(SHARDS)]
    with other_process(directory) as other:
        if not others:
            other.kill()
            other.wait()
        assert len(list(TFRecordDataset(urls, storage_options=options))) == 40 * SHARDS
    kinds = [store.kind(asked) for asked in store.asked]
    asks = others or is_young
    assert sorted(kinds) == ["read"] * SHARDS + ["stat"] * SHARDS * asks
    if asks:
        assert kinds[0] == "stat"


def test_short_objects_are_locked_as_soon_as_another_process_is_there(
    store: SmallStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is alone needs no locks for them: each costs as much as half of its GET."""
    locked: list[int] = []
    lock = DiskCache.lock
    monkeypatch.setattr(
        DiskCache, "lock", lambda cache, *at: locked.append(at[1]) or lock(cache, *at)
    )
    directory = tmp_path / "cache"
    options = {**store.options("s3"), "cache_dir": directory, "cache_bytes": 64 << 20}
    urls = [store.url("s3", f"d/s-{index}") for index in range(SHARDS)]
    half = SHARDS // 2
    assert len(list(TFRecordDataset(urls[:half], storage_options=options))) == 40 * half
    assert locked == []
    with other_process(directory):
        later = TFRecordDataset(urls[half:], storage_options=options)
        assert len(list(later)) == 40 * (SHARDS - half)
    assert locked == [0] * (SHARDS - half)


@dataclass(frozen=True, kw_only=True)
class TwoProcesses:
    """Two processes at one cache, which have listed it while it was empty."""

    key: ObjectKey
    writer: OpenCache
    reader: DiskCache

    def write(self, key: ObjectKey, *parts: int) -> None:
        """The writer fills a block, which it has locked, with so many bytes at a time."""
        assert self.writer.disk.lock(key, 0) is Lock.HELD
        fill = Fill(
            self.writer.writer,
            key,
            0,
            key.size,
            unwritten=UnwrittenBytes(64 << 20),
            on_refused=lambda _: None,
            locked=True,
        )
        for count in parts:
            fill.add(memoryview(bytes(count)), lasting=True)
        fill.end()

    def found(self, key: ObjectKey) -> Span | None:
        """The block that the reader knows when it has got the lock."""
        while self.reader.lock(key, 0) is not Lock.HELD:
            time.sleep(0.001)
        self.reader.follow(key)
        self.reader.unlock(key, 0)
        index = self.reader.index(key)
        assert index is not None
        return index.covering(key, 0)


@pytest.fixture
def two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoProcesses]:
    settings = CacheSettings(str(tmp_path / "cache"), 64 << 20)
    writer = open_cache(settings)
    assert writer is not None
    key = ObjectKey("store", "s3://b/d/x", "v", 1 << 20)
    two = TwoProcesses(key=key, writer=writer, reader=DiskCache(settings))
    for cache in (two.writer.disk, two.reader):
        assert cache.index(key) is not None
    yield two
    two.reader.close()
    close_caches()


def test_a_block_is_known_as_soon_as_its_lock_is_free(two_processes: TwoProcesses) -> None:
    two = two_processes
    two.write(two.key, two.key.size)
    assert two.found(two.key) == (0, two.key.size)


def test_a_part_of_a_block_is_known_as_soon_as_its_lock_is_free(
    two_processes: TwoProcesses,
) -> None:
    """Its reader ended, or its bytes could not be written in time: no one can know its name."""
    two = two_processes
    two.write(two.key, 700_000)
    assert two.found(two.key) == (0, 700_000)


def test_short_objects_share_files_while_other_processes_wait_for_them(
    two_processes: TwoProcesses, tmp_path: Path
) -> None:
    two = two_processes
    keys = [ObjectKey("store", f"s3://b/d/s-{number}", "v", 10_000) for number in range(30)]
    for key in keys:
        two.write(key, key.size)
    assert [two.found(key) for key in keys] == [(0, 10_000)] * 30
    assert two.reader.read_whole(keys) == [bytearray(10_000)] * 30
    assert len(list(tmp_path.rglob("*.pack"))) < 10
    assert list(tmp_path.rglob("*.block")) == []
    assert two.writer.disk.state is two.reader.state is CacheMode.ON


def test_packs_of_a_lone_process_are_known_when_it_completes_them(
    two_processes: TwoProcesses,
) -> None:
    """A pack of many megabytes may be open when other processes come."""
    two = two_processes
    key = ObjectKey("store", "s3://b/d/short", "v", 10_000)
    checksums = Checksums()
    data = memoryview(bytes(key.size))
    checksums.add(data)
    block = ShortBlock(
        key=key, pieces=[data], checksums=checksums, locked=False, done=lambda _: None
    )
    two.writer.writer.add_short(block)
    assert two.found(key) is None
    assert two.writer.writer.flush(10)
    assert two.found(key) == (0, key.size)


def test_a_process_that_is_behind_reads_many_blocks_of_the_journal_at_once(
    two_processes: TwoProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is listed again, whatever is in the directory."""
    two = two_processes
    keys = [ObjectKey("store", f"s3://b/d/l-{number}", "v", 300_000) for number in range(20)]
    monkeypatch.setattr(SetIndex, "list_directory", lambda *_: pytest.fail("it was listed"))
    for key in keys:
        two.write(key, key.size)
    assert two.writer.writer.flush(10)
    assert [two.found(key) for key in keys[-1:]] == [(0, 300_000)]
    index = two.reader.index(two.key)
    assert index is not None
    assert [index.covering(key, 0) for key in keys] == [(0, 300_000)] * 20
