"""Fetching is decoupled from emitting: a slow shard idles no other connection, although the order stays."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem

from streamrec import TFRecordDataset, encode_records
from streamrec.pipeline.sources.shards.source import QUEUE_BYTES
from streamrec.storage.backend import BLOCK_BYTES

SHARDS = 4
RECORDS = 20
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
    for shard in range(SHARDS):
        (tmp_path / str(shard)).write_bytes(encode_records([record(shard, index) for index in range(RECORDS)]))
    return tmp_path


@pytest.mark.parametrize("slow", range(SHARDS))
def test_a_slow_shard_idles_no_other_and_the_order_stays(folder: Path, slow: int) -> None:
    filesystem = Gated(folder, slow=str(slow))
    names = [f"gated://{shard}" for shard in range(SHARDS)]
    dataset = TFRecordDataset(names, num_parallel_reads=SHARDS, filesystem=filesystem)
    with dataset.iterate() as elements:
        others = [name for name in filesystem.read if name != str(slow)]
        full = QUEUE_BYTES - BLOCK_BYTES  # the next block does not fit
        with filesystem.changed:
            assert filesystem.changed.wait_for(lambda: all(filesystem.read[name] >= full for name in others), 60)
        assert filesystem.read[str(slow)] == 0
        filesystem.gate.set()
        expected = [record(shard, index) for index in range(RECORDS) for shard in range(SHARDS)]
        assert [element[:8] for element in elements] == [element[:8] for element in expected]


def test_a_slow_shard_lets_no_other_run_away(folder: Path) -> None:
    filesystem = Gated(folder, slow="0")
    names = [f"gated://{shard}" for shard in range(SHARDS)]
    budget = 10 << 20
    dataset = TFRecordDataset(names, num_parallel_reads=SHARDS, filesystem=filesystem)
    with dataset.with_options(memory_budget=budget).iterate() as elements:
        with filesystem.changed:
            assert filesystem.changed.wait_for(lambda: all(filesystem.read[name] for name in "123"), 60)
        filesystem.gate.set()
        for taken, element in enumerate(elements):
            in_hands = SHARDS * (BLOCK_BYTES + RECORD_BYTES)  # what is read and not yet framed
            assert sum(filesystem.read.values()) <= taken * len(element) + budget + in_hands
