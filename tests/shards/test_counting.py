"""write_manifest: what ShardWriter would have written, for shards that are there already."""

import gzip
from itertools import pairwise
from pathlib import Path

import fsspec
import pytest

from streamrec import ShardWriter, encode_records, verify, verify_sync, write_manifest, write_manifest_sync
from streamrec.errors import ManifestError, TruncatedShardError
from streamrec.shards.manifest import MARK_BYTES, Manifest

RECORDS = [b"record %d" % number for number in range(100)]


async def test_it_is_the_writers_own_but_for_the_pattern() -> None:
    folder = "memory://counting-same"
    async with ShardWriter(f"{folder}/{{shard}}", max_shard_records=30, manifest=f"{folder}/own.json") as writer:
        await writer.write_batch(RECORDS)
    shards = await write_manifest(f"{folder}/?", f"{folder}/counted.json")
    assert shards == tuple(writer.shards)
    assert [shard.records for shard in shards] == [30, 30, 30, 10]
    assert (await verify(f"{folder}/counted.json")).ok


def test_compressed_shards(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(gzip.compress(encode_records(RECORDS)))
    shards = write_manifest_sync(f"{tmp_path}/?", f"{tmp_path}/manifest.json")
    assert [shard.records for shard in shards] == [100, 100]
    (tmp_path / "c").write_bytes(encode_records(RECORDS))
    with pytest.raises(ManifestError, match=r"compressed in different ways: .*b \(GZIP\), .*c \(not compressed\)"):
        write_manifest_sync(f"{tmp_path}/?", f"{tmp_path}/manifest.json")


async def test_marks_stand_where_records_begin(tmp_path: Path) -> None:
    records = [b"." * 700_000 for _ in range(60)]
    async with ShardWriter(str(tmp_path / "own"), manifest=str(tmp_path / "own.json")) as writer:
        await writer.write_batch(records)
    (shard,) = await write_manifest(str(tmp_path / "own"), str(tmp_path / "counted.json"))
    for marks in (shard.marks, writer.shards[0].marks):
        assert 4 <= len(marks) <= 5
        assert all(byte == record * 700_016 for record, byte in marks)
        assert all(MARK_BYTES <= b - a < MARK_BYTES + (3 << 20) for (_, a), (_, b) in pairwise(marks))
    written = Manifest.from_json("x", (tmp_path / "own.json").read_bytes())
    assert written.shards[0].marks == writer.shards[0].marks


@pytest.mark.parametrize(("length", "count"), [(9_000_000, 1), (3_000_000, 3), (84_000, 110), (70_000_000, 2)])
def test_the_end_of_a_shard_is_no_mark(tmp_path: Path, length: int, count: int) -> None:
    (tmp_path / "a").write_bytes(encode_records([bytes(length)] * count))
    (shard,) = write_manifest_sync(str(tmp_path / "a"), str(tmp_path / "manifest.json"))
    assert shard.records == count
    assert all(0 < record < count and byte == record * (length + 16) for record, byte in shard.marks)
    assert verify_sync(str(tmp_path / "manifest.json")).ok


async def test_a_damaged_shard_has_no_count() -> None:
    with fsspec.open("memory://counting-cut/a", "wb") as file:
        file.write(encode_records(RECORDS)[:-3])
    with pytest.raises(TruncatedShardError):
        await write_manifest("memory://counting-cut/a", "memory://counting-cut/manifest.json")
    assert not fsspec.filesystem("memory").exists("/counting-cut/manifest.json")
