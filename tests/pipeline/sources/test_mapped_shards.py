"""memory_map: the same records as by reading, the same order and states, over the pages of the file.

And what happens when somebody writes to that file.
"""

import gc
import gzip
import os
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import trio

from streamrec import (
    Dataset,
    FixedLenFeature,
    Frames,
    ObjectChangedError,
    StorageError,
    TFRecordDataset,
    encode_example,
    encode_records,
    kernels,
    open_shard,
)
from streamrec.testing.resuming import assert_resumes_everywhere, plain
from tests.effort import THOROUGH

FEATURES = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], np.int64)}
SHARDS, RECORDS = 5, 40 if THOROUGH else 16


@pytest.fixture(autouse=True)
def no_file_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is short is read as it is opened, and not mapped."""
    monkeypatch.setattr("streamrec.storage.backends.local.short_files.SHORT_BYTES", 0)


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Shards of long records, and one of none."""
    paths = [tmp_path / f"{shard}.tfrecord" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        examples = [
            encode_example({"image": bytes([shard]) * (9000 + 17 * index), "label": shard * RECORDS + index})
            for index in range(RECORDS)
        ]
        path.write_bytes(encode_records(examples if shard else []))
    return [str(path) for path in paths]


def chain(paths: list[str], memory_map: bool | None, **options: Any) -> Dataset[Any]:
    records = TFRecordDataset(paths, num_parallel_reads=3, buffer_size=30_000, memory_map=memory_map, **options)
    return records.shuffle(30, seed=4).repeat(2).batch(7)


@pytest.mark.parametrize("string_columns", [False, True])
def test_elements_are_those_that_are_read(images: list[str], string_columns: bool) -> None:
    found, wanted = (
        [plain(batch) for batch in chain(images, mapped).parse_example(FEATURES, string_columns=string_columns)]
        for mapped in (True, False)
    )
    assert found == wanted
    assert sum(len(batch["label"][1]) for batch in found) == 2 * (SHARDS - 1) * RECORDS


def test_it_resumes_everywhere(images: list[str]) -> None:
    assert_resumes_everywhere(chain(images, True))


def test_states_of_either_go_on_in_the_other(images: list[str]) -> None:
    wanted = [plain(batch) for batch in chain(images, False)]
    for mapped in (False, True):
        batches = chain(images, mapped).iterate()
        first = [plain(next(batches)) for _ in range(9)]
        rest = chain(images, not mapped).iterate(batches.state_dict())
        assert first + [plain(batch) for batch in rest] == wanted


def test_long_records_are_never_copied(images: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the page cache to the batch."""

    def refuse(*_: object) -> None:
        raise AssertionError("copied")

    for name in ("pick", "gather", "interleave"):
        monkeypatch.setattr(f"streamrec.kernels.{name}", refuse)
    records = TFRecordDataset(images, num_parallel_reads=SHARDS, memory_map=True).shuffle(500, seed=1)
    for batch in records.batch(8).parse_example(FEATURES, string_columns=True):
        assert batch["image"].scattered
        assert all(buffer.readonly for buffer in batch["image"].buffers)


def test_what_cannot_be_mapped_is_read(images: list[str], tmp_path: Path) -> None:
    compressed = str(tmp_path / "x.tfrecord.gz")
    Path(compressed).write_bytes(gzip.compress(Path(images[1]).read_bytes()))
    remote = f"memory://{uuid.uuid4()}/x.tfrecord"
    with fsspec.open(remote, "wb") as file:
        file.write(Path(images[2]).read_bytes())
    paths = [compressed, remote, images[3]]
    assert list(TFRecordDataset(paths, memory_map=True)) == list(TFRecordDataset(paths))


def test_pieces_of_shards_are_read(images: list[str]) -> None:
    parts = [TFRecordDataset(images[1:2], memory_map=True).distribute(index, 3) for index in range(3)]
    assert [record for part in parts for record in part] == list(TFRecordDataset(images[1:2]))


def test_it_is_the_default_where_it_is_safe(images: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one file is a window of its pages, which nobody can write to, or of a block of ours."""

    def is_mapped(**options: Any) -> bool:
        return memoryview(next(iter(TFRecordDataset(images[1:2], **options).batch(2))).buffer).readonly

    with open(images[1], "rb") as file:
        safe = kernels.is_safe_to_map(file.fileno())
    assert safe or not kernels.NATIVE or os.uname().sysname != "Linux"
    assert (is_mapped(), is_mapped(memory_map=False), is_mapped(memory_map=True)) == (safe, False, True)
    monkeypatch.setattr("streamrec.storage.backends.local.backend.kernels.is_safe_to_map", lambda _: False)
    assert (is_mapped(), is_mapped(memory_map=True)) == (False, True)


def rewrite(path: Path) -> None:
    """In place, other records of the same size."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(encode_records([bytes(9000)]))
    os.utime(path, ns=(1, 1))
    assert path.stat().st_size == len(data)


def cut(path: Path) -> None:
    os.truncate(path, 5000)


@pytest.fixture(params=[1000, 10_000], ids=["short records", "long records"])
def shard(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Short records are copied when they are shuffled, long ones lie in the file until somebody takes them.

    The file is looked at before each element here.
    """
    monkeypatch.setattr("streamrec.storage.backends.local.mapped_files.REST_FOR_LOOK", 0)
    path = tmp_path / "train.tfrecord"
    path.write_bytes(encode_records([b"%04d" % index * (request.param // 4) for index in range(2000)]))
    return path


def reading(shard: Path, size: int) -> Dataset[Frames]:
    """Batches, a few to the chunk, out of a buffer of so many records."""
    records = TFRecordDataset(str(shard), memory_map=True, buffer_size=100_000).with_options(memory_budget=8_000_000)
    return records.shuffle(size, seed=1).batch(4)


@pytest.mark.parametrize("change", [rewrite, cut])
@pytest.mark.parametrize("size", [10_000, 20], ids=["whole shard held", "some of it read"])
def test_nothing_that_changed_is_handed_out(shard: Path, change: Callable[[Path], None], size: int) -> None:
    """What a shuffle buffer holds lies in the file, whether that was read to its end or not."""
    wanted = set(TFRecordDataset(str(shard), memory_map=False))
    batches = reading(shard, size).iterate()
    assert set(next(batches)) <= wanted
    change(shard)
    taken = 0
    with pytest.raises(ObjectChangedError, match="replaced while it was being read") as caught:
        for batch in batches:
            assert set(batch) <= wanted
            taken += 1
    assert caught.value.path == str(shard)
    assert taken < 450


def test_the_state_behind_a_change_is_that_of_what_was_handed_out(shard: Path) -> None:
    wanted, data = list(map(list, reading(shard, 100))), shard.read_bytes()
    stat = shard.stat()
    batches = reading(shard, 100).iterate()
    found = [list(next(batches)) for _ in range(5)]
    cut(shard)
    with pytest.raises(ObjectChangedError):
        found.extend(map(list, batches))
    state = batches.state_dict()
    with shard.open("r+b") as file:
        file.write(data)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert found + list(map(list, reading(shard, 100).iterate(state))) == wanted


async def test_nothing_that_changed_is_handed_out_in_a_loop(shard: Path) -> None:
    batches = reading(shard, 100).aiterate()
    await anext(batches)
    cut(shard)
    with pytest.raises(ObjectChangedError):
        async for _ in batches:
            pass
    assert batches._task.done()


def test_nothing_that_changed_is_handed_out_in_another_loop(shard: Path) -> None:
    async def read() -> None:
        batches = reading(shard, 100).aiterate()
        await anext(batches)
        cut(shard)
        with pytest.raises(ObjectChangedError):
            async for _ in batches:
                pass

    trio.run(read)


def test_a_name_that_goes_to_another_file_is_no_change(shard: Path) -> None:
    wanted = list(TFRecordDataset(str(shard)))
    records = iter(TFRecordDataset(str(shard), memory_map=True, buffer_size=100_000).shuffle(2000, seed=1))
    found = [next(records)]
    other = shard.with_suffix(".new")
    other.write_bytes(encode_records([b"new"] * 10))
    other.replace(shard)
    assert sorted([*found, *records]) == wanted
    records = iter(TFRecordDataset(str(shard), memory_map=True))
    found = [next(records)]
    shard.unlink()
    assert [*found, *records] == [b"new"] * 10


def test_a_disk_that_fails_is_told(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that could not be read, of a file that nobody changed."""
    batches = reading(shard, 100).iterate()
    next(batches)
    ((_, reference),) = batches._run.mappings._files.values()
    monkeypatch.setattr(
        "streamrec.storage.backends.local.mapped_files.kernels.lost_pages", lambda: [(None, 5), (reference(), 8192)]
    )
    with pytest.raises(StorageError, match="could not be read any more") as caught:
        list(batches)
    assert (caught.value.path, caught.value.offset) == (str(shard), 8192)


@pytest.mark.skipif(not kernels.NATIVE, reason="plain Python copies")
def test_files_are_noted_while_they_are_mapped(images: list[str]) -> None:
    batches = iter(TFRecordDataset(images, memory_map=True, num_parallel_reads=SHARDS).batch(8))
    mappings = batches._run.mappings
    first = next(batches)
    assert len(mappings._files) == SHARDS - 1, "one has no records"
    rest = list(batches)
    del batches
    gc.collect()
    assert mappings
    del first, rest
    gc.collect()
    assert not mappings._files
    mappings.check()
    assert not mappings


@pytest.fixture
def compressed(tmp_path: Path) -> Path:
    """Longer than what is viewed of it at a time."""
    path, draw = tmp_path / "train.tfrecord.gz", random.Random(1)
    path.write_bytes(gzip.compress(encode_records([draw.randbytes(30_000) for _ in range(300)]), 1))
    return path


@pytest.mark.parametrize("change", [rewrite, cut])
@pytest.mark.parametrize("on_error", ["raise", "resync"])
async def test_a_compressed_file_that_changes_is_not_damaged(
    compressed: Path, change: Callable[[Path], None], on_error: str
) -> None:
    """Neither where its pages are gone, nor where they show something else."""
    wanted, found = list(TFRecordDataset(str(compressed), memory_map=False)), list[bytes]()
    async with open_shard(compressed, on_error=on_error) as shard:
        with pytest.raises(ObjectChangedError) as caught:
            async for frames in shard.frames():
                found.extend(frames)
                if len(found) == len(frames):
                    change(compressed)
        assert not shard.losses
    assert caught.value.path == str(compressed)
    assert found == wanted[: len(found)]
    assert len(found) < len(wanted)


def test_a_compressed_file_may_change_when_it_was_read(compressed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was inflated is a copy: no run looks at the file any more."""
    monkeypatch.setattr("streamrec.storage.backends.local.mapped_files.REST_FOR_LOOK", 0)
    wanted = list(TFRecordDataset(str(compressed)))
    records = TFRecordDataset(str(compressed), memory_map=True).shuffle(1000, seed=1).iterate()
    found = [next(records)]
    assert not records._run.mappings
    cut(compressed)
    assert sorted([*found, *records]) == sorted(wanted)
