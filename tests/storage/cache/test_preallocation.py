"""Blocks get their space at once, where that helps, and take no more than they need."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamrec import TFRecordDataset
from streamrec.storage.cache import close_caches
from streamrec.storage.cache.disk_cache import charge_of_name
from streamrec.storage.cache.names import writer_of
from streamrec.storage.cache.preallocation import LEAST_BYTES, Preallocation
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.test_cached_reads import blocks, records_of, shard

pytestmark = pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="this system reserves no space for files"
)

RECORDS = 3000


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with small_store({"d/s": shard(1, RECORDS)}) as running:
        yield running
    close_caches()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each request for space."""
    return ask_by(monkeypatch, os.posix_fallocate)


def ask_by(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., None]) -> list[int]:
    """Has requests for space answered; returns their bytes, as they come."""
    found: list[int] = []

    def ask(file: int, offset: int, nbytes: int) -> None:
        found.append(nbytes)
        answer(file, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", ask)
    return found


def refuse(number: int) -> Callable[..., None]:
    def answer(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    return answer


def options_of(store: SmallStore, directory: Path) -> dict[str, Any]:
    return store.options("s3") | {"cache_dir": directory, "cache_bytes": 64 << 20}


def cached(store: SmallStore, directory: Path) -> TFRecordDataset:
    options = options_of(store, directory)
    return TFRecordDataset(store.url("s3", "d/s"), storage_options=options)


def test_a_long_block_gets_its_space_by_one_call(
    store: SmallStore, tmp_path: Path, asked: list[int]
) -> None:
    data = store.objects["d/s"]
    dataset = cached(store, tmp_path / "c")
    assert list(dataset) == records_of(data)
    [block] = blocks(tmp_path / "c")
    assert asked == [block.stat().st_size]
    assert list(dataset) == records_of(data)


def test_a_block_that_ends_early_takes_no_more_than_its_bytes(
    store: SmallStore, tmp_path: Path, asked: list[int]
) -> None:
    data = store.objects["d/s"]
    dataset = cached(store, tmp_path / "c")
    # a range ends within the object, or the reader has left before the object's end
    assert list(dataset.take(1)) == records_of(data)[:1]
    close_caches()
    for block in blocks(tmp_path / "c"):
        taken = block.stat()
        charge = charge_of_name(block.name)
        assert charge is not None
        assert max(taken.st_size, 512 * taken.st_blocks) <= charge
        assert block.read_bytes()[: 1 << 10] == data[: 1 << 10]
    assert list(dataset) == records_of(data)


def test_a_filesystem_that_cannot_is_asked_once(
    store: SmallStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store.objects = {f"d/s-{index}": shard(index, RECORDS) for index in range(3)}
    asked = ask_by(monkeypatch, refuse(errno.EOPNOTSUPP))
    urls = [store.url("s3", name) for name in store.objects]
    dataset = TFRecordDataset(urls, storage_options=options_of(store, tmp_path / "c"))
    expected = [record for data in store.objects.values() for record in records_of(data)]
    assert list(dataset) == expected
    assert len(asked) == 1
    assert len(blocks(tmp_path / "c")) == len(store.objects)
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


def test_a_disk_without_space_for_a_block_leaves_nothing_of_it(
    store: SmallStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ask_by(monkeypatch, refuse(errno.ENOSPC))
    dataset = TFRecordDataset(
        store.url("s3", "d/s"), storage_options=options_of(store, tmp_path / "c")
    )
    assert list(dataset) == records_of(store.objects["d/s"])
    warnings = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
    assert ["without adding to it" in line for line in warnings] == [True]
    assert not [path for path in (tmp_path / "c").rglob("*") if writer_of(path.name)]
    assert blocks(tmp_path / "c") == []


def test_space_that_costs_much_processor_time_is_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.005])
    space = Preallocation()
    with (tmp_path / "f").open("wb") as file:
        with monkeypatch.context() as patched:
            patched.setattr(time, "thread_time", lambda: next(clock))
            assert space.extend(file.fileno(), LEAST_BYTES)
        assert os.fstat(file.fileno()).st_size == LEAST_BYTES
        assert not space.is_on
        assert not space.extend(file.fileno(), 2 * LEAST_BYTES)
        assert os.fstat(file.fileno()).st_size == LEAST_BYTES


def test_short_blocks_are_written_without_asking(tmp_path: Path, asked: list[int]) -> None:
    with (tmp_path / "f").open("wb") as file:
        assert not Preallocation().extend(file.fileno(), LEAST_BYTES - 1)
    assert asked == []
