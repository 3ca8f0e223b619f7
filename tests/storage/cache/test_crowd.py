"""Several processes that read the same objects at the same time fetch each of them once."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import streamrec
from streamrec import TFRecordDataset
from streamrec.storage.cache import close_caches, runs, set_index
from streamrec.storage.cache.block_file import Checksums
from streamrec.storage.cache.disk_cache import DiskCache, Lock
from streamrec.storage.cache.names import ObjectKey
from streamrec.storage.cache.spans import Span
from streamrec.storage.cache_settings import CacheSettings
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


OTHER_PROCESS = """
import sys
from streamrec.storage.cache import open_cache
from streamrec.storage.cache_settings import CacheSettings
assert open_cache(CacheSettings(sys.argv[1], 64 << 20)) is not None
print(flush=True)
sys.stdin.read()
"""


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
    command = [sys.executable, "-c", OTHER_PROCESS, str(directory)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdin is not None
    assert other.stdout is not None
    with other:
        assert other.stdout.readline() == b"\n"
        if not others:
            other.kill()
            other.wait()
        assert len(list(TFRecordDataset(urls, storage_options=options))) == 40 * SHARDS
        other.stdin.close()
    kinds = [store.kind(asked) for asked in store.asked]
    asks = others or is_young
    assert sorted(kinds) == ["read"] * SHARDS + ["stat"] * SHARDS * asks
    if asks:
        assert kinds[0] == "stat"


@dataclass(frozen=True, kw_only=True)
class TwoProcesses:
    """Two processes at one cache, of which the reader lists nothing again unless it must."""

    key: ObjectKey
    writer: DiskCache
    reader: DiskCache

    def write(self, count: int) -> None:
        """The writer writes a block with so many bytes of the object."""
        block = self.writer.admit(self.key, 0, self.key.size)
        assert block is not None
        checksums = Checksums()
        data = memoryview(bytes(count))
        checksums.add(data)
        self.writer.commit(block, checksums, [data])

    def found(self) -> Span | None:
        """The block that the reader knows."""
        index = self.reader.index(self.key)
        assert index is not None
        return index.covering(self.key, 0)


@pytest.fixture
def two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoProcesses]:
    settings = CacheSettings(str(tmp_path / "cache"), 64 << 20)
    key = ObjectKey("store", "s3://b/d/x", "v", 1000)
    two = TwoProcesses(key=key, writer=DiskCache(settings), reader=DiskCache(settings))
    for cache in (two.writer, two.reader):
        assert cache.index(key) is not None
    monkeypatch.setattr(set_index, "should_rescan", lambda *_: False)
    yield two
    two.writer.close()
    two.reader.close()


def test_a_part_of_a_block_that_a_lock_was_waited_for_is_found_by_a_listing(
    two_processes: TwoProcesses,
) -> None:
    """The other process could not write all bytes in time, so the block's name is not known."""
    key, reader = two_processes.key, two_processes.reader
    two_processes.write(700)
    assert reader.lock(key, 0) is Lock.HELD
    reader.look_for_block(key, 0, waited=False)
    assert two_processes.found() is None
    reader.look_for_block(key, 0, waited=True)
    assert two_processes.found() == (0, 700)


def test_a_block_that_a_lock_was_waited_for_is_found_without_a_new_listing(
    two_processes: TwoProcesses,
) -> None:
    """Listings that take long are rare, and the block is there as soon as its lock is free."""
    key, reader = two_processes.key, two_processes.reader
    assert two_processes.writer.lock(key, 0) is Lock.HELD
    assert reader.lock(key, 0) is Lock.BUSY
    two_processes.write(key.size)
    two_processes.writer.unlock(key, 0)
    assert reader.lock(key, 0) is Lock.HELD
    reader.refresh(key)
    assert two_processes.found() is None
    reader.look_for_block(key, 0, waited=False)
    assert two_processes.found() == (0, key.size)
