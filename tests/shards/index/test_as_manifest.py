"""An index says what a manifest says: ShardWriter writes one, verify and distribute take one, in any store."""

from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

import streamrec
from streamrec import (
    RecordSource,
    ShardWriter,
    TFRecordDataset,
    encode_records,
    verify,
    verify_sync,
    write_index,
    write_index_sync,
)
from streamrec.errors import ObjectChangedError
from tests.servers.real import Store

RECORDS = [b"%d" % number * (number % 50) for number in range(5000)]


async def test_a_writer_writes_the_index_of_what_it_writes() -> None:
    folder = f"memory://as-manifest-{uuid4()}"
    pattern = f"{folder}/train-{{shard:03d}}.tfrecord"
    async with ShardWriter(pattern, max_shard_records=1800, index=f"{folder}/own.index") as writer:
        for record in RECORDS[:50]:
            await writer.write(record)
        await writer.write_batch(streamrec.Frames.of(RECORDS[50:]))
    counted = await write_index(f"{folder}/train-*.tfrecord", f"{folder}/counted.index")
    source = await RecordSource.open(f"{folder}/own.index")
    assert source.index.digest == counted.digest
    assert source.index.shards == tuple(writer.shards)
    assert source.index.pattern == pattern
    assert list(await source.get(range(5000))) == RECORDS


@pytest.mark.parametrize("kind", ["s3_store", "gcs_store"])
def test_versions_are_those_that_readers_see(kind: str, request: pytest.FixtureRequest) -> None:
    """In a real store: of a writer's index and of one made later; and a shard that is written anew is refused."""
    store: Store = request.getfixturevalue(kind)
    folder = f"{store.url}/{uuid4()}"
    options = dict(store.options)
    with streamrec.TFRecordWriter(f"{folder}/other", storage_options=options) as writer:
        writer.write(b"other")

    async def write(order: int) -> None:
        pattern = f"{folder}/s-{{shard}}"
        async with ShardWriter(
            pattern, max_shard_records=3000, index=f"{folder}/own.index", storage_options=options
        ) as writer:
            await writer.write_batch(RECORDS[::order])

    streamrec.bridge.run(write, 1)
    counted = write_index_sync(f"{folder}/s-*", f"{folder}/counted.index", storage_options=options)
    assert all(shard.version for shard in counted.shards)
    for name in ("own", "counted"):
        source = RecordSource(f"{folder}/{name}.index", storage_options=options)
        assert list(source.__getitems__([4999, 0, 2500])) == [RECORDS[4999], RECORDS[0], RECORDS[2500]]
    own = RecordSource(f"{folder}/own.index", storage_options=options).index
    assert {shard.version for shard in own.shards} <= {*(shard.version for shard in counted.shards), None}
    streamrec.bridge.run(write, -1)
    with pytest.raises(ObjectChangedError, match=r"s-0.*streamrec index --update"):
        source[0]


def test_compressed_shards_have_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.index: compressed shards have no index"):
        ShardWriter(f"{tmp_path}/s", "GZIP", index=f"{tmp_path}/x.index")


@pytest.mark.parametrize("crc", [True, False])
async def test_verify_takes_an_index(tmp_path: Path, crc: bool) -> None:
    """Sizes, numbers of records, missing shards; and checksums: of all bytes where it has them, else of each record."""
    folder = f"memory://as-manifest-{uuid4()}" if crc else str(tmp_path)
    for name in ("s-0", "s-1", "s-2"):
        with fsspec.open(f"{folder}/{name}", "wb") as file:
            file.write(encode_records(RECORDS))
    await write_index(f"{folder}/s-*", f"{folder}/x.index")
    report = await verify(f"{folder}/x.index")
    assert report.ok
    assert report.shards == 3
    data = encode_records(RECORDS)
    for name, other in (("s-0", data[:-1] + b"?"), ("s-1", data + encode_records([b"one more"]))):
        with fsspec.open(f"{folder}/{name}", "wb") as file:
            file.write(other)
    report = await verify(f"{folder}/x.index")
    kinds = [problem.kind for problem in report.problems]
    assert kinds == ["crc32c" if crc else "records", "bytes"]


def test_distribute_takes_an_index(tmp_path: Path) -> None:
    """The numbers of records come from it, and where some of them lie."""
    for number in range(3):
        (tmp_path / f"s-{number}").write_bytes(encode_records(RECORDS[number * 1000 : (number + 1) * 1000] * 4))
    write_index_sync(f"{tmp_path}/s-*", f"{tmp_path}/x.index")
    everything = list(TFRecordDataset(f"{tmp_path}/s-*"))
    found = []
    for rank in range(5):
        dataset = TFRecordDataset(f"{tmp_path}/s-*").distribute(
            rank=rank, world_size=5, even="drop", manifest=f"{tmp_path}/x.index"
        )
        found.append(list(dataset))
    assert {len(part) for part in found} == {len(everything) // 5}
    assert sorted(record for part in found for record in part) == sorted(everything)


def test_a_large_manifest_is_still_a_manifest(tmp_path: Path) -> None:
    """One that is longer than what is read of an index at first."""
    names = [f"{tmp_path}/s-{number:04d}-{'x' * 100}" for number in range(2000)]
    for name in names:
        Path(name).write_bytes(encode_records([b"a"]))
    streamrec.write_manifest_sync(names, f"{tmp_path}/manifest.json")
    assert (tmp_path / "manifest.json").stat().st_size > 256 << 10
    assert verify_sync(f"{tmp_path}/manifest.json").shards == 2000
