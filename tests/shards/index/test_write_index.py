"""write_index: the same index from any source and any number of processes; an index serves as a
manifest.
"""

import gzip
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import streamrec
from streamrec import RecordSource, ShardWriter, encode_records, write_index, write_index_sync
from streamrec.errors import ManifestError, ObjectChangedError, TruncatedShardError
from streamrec.shards import join_index, join_index_sync, part_of
from streamrec.shards.index import IndexedShard
from streamrec.shards.indexing import scan_shard
from streamrec.storage import Storages
from tests.servers.real import Store
from tests.shards.test_reader import put
from tests.tfrecord.damage import starts_of

COUNTS = [1500, 0, 3, 2048]


def records_of(counts: Sequence[int], largest: int = 900) -> list[list[bytes]]:
    random = np.random.default_rng(7)
    return [
        [random.bytes(int(size)) for size in random.integers(0, largest, count)] for count in counts
    ]


RECORDS = records_of(COUNTS)
ALL = [record for part in RECORDS for record in part]


def write_shards_of(folder: Path | str, records: Sequence[Sequence[bytes]] = RECORDS) -> str:
    for number, part in enumerate(records):
        put(f"{folder}/s-{number}", encode_records(part))
    return f"{folder}/s-*"


def all_records_of(index: str) -> list[bytes]:
    return list(RecordSource(index)[:])


async def test_an_index_from_headers_equals_one_from_all_bytes(tmp_path: Path) -> None:
    """Local shards are not read, so their CRC32C is unknown; all else is the same."""
    on_disk = await write_index(write_shards_of(tmp_path), f"{tmp_path}/x.index")
    in_store = await write_index(
        write_shards_of("memory://write-index"), "memory://write-index/x.index"
    )
    assert [shard.crc32c for shard in on_disk.shards] == [None] * 4
    assert all(shard.crc32c is not None and shard.version for shard in in_store.shards)
    assert on_disk.digest == in_store.digest
    assert len(on_disk) == len(ALL)
    assert [shard.records for shard in on_disk.shards] == COUNTS
    source = await RecordSource.open(f"{tmp_path}/x.index")
    assert list(await source.get(range(len(ALL)))) == ALL


@pytest.mark.parametrize(
    "sizes", [[20_000] * 40, [5] * 9 + [200_000] * 9 + [3] * 20_000, [1 << 21] * 3, [0] * 5]
)
def test_headers_give_the_lengths_of_short_and_long_records(
    tmp_path: Path, sizes: list[int]
) -> None:
    """Long records are skipped one by one, short ones are read together."""
    records = [[bytes([number % 251]) * size for number, size in enumerate(sizes)]]
    index = write_index_sync(write_shards_of(tmp_path, records), f"{tmp_path}/x.index")
    assert (len(index), index.shards[0].bytes) == (len(sizes), sum(sizes) + 16 * len(sizes))
    assert all_records_of(f"{tmp_path}/x.index") == records[0]


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("size", [100, 50_000])
def test_damaged_shards_have_no_index(tmp_path: Path, where: str, size: int) -> None:
    folder = str(tmp_path) if where == "disk" else f"memory://write-damaged-{size}"
    data = encode_records([bytes(size)] * 50)
    damaged = 40 * (size + 16)
    for name, broken, error in (
        ("cut", data[:-5], TruncatedShardError),
        ("header cut", data[: damaged + 5], TruncatedShardError),
        ("length", data[:damaged] + b"\x01" + data[damaged + 1 :], streamrec.CorruptRecordError),
    ):
        put(f"{folder}/{name}/s", broken)
        with pytest.raises(error) as caught:
            write_index_sync(f"{folder}/{name}/s", f"{folder}/{name}/x.index")
        assert caught.value.path is not None
        assert caught.value.path.endswith(f"{name}/s")
        assert caught.value.offset == (damaged if name != "cut" else 49 * (size + 16))
        with pytest.raises(streamrec.NotFoundError):
            RecordSource(f"{folder}/{name}/x.index")


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_compressed_shards_are_refused_with_advice(tmp_path: Path, where: str) -> None:
    folder = str(tmp_path) if where == "disk" else "memory://write-compressed"
    put(f"{folder}/s", gzip.compress(encode_records(ALL)))
    with pytest.raises(ManifestError, match=r"compressed \(GZIP\).*streamrec reshard"):
        write_index_sync(f"{folder}/s", f"{folder}/x.index")


@pytest.mark.parametrize("parts", [1, 3, 7])
def test_many_processes_may_index_a_part_each(parts: int) -> None:
    folder = f"memory://write-parts-{parts}"
    whole = write_index_sync(write_shards_of(folder), f"{folder}/whole.index")
    for number in reversed(range(parts)):
        write_index_sync(f"{folder}/s-*", f"{folder}/x.index", part=(number, parts))
    joined = join_index_sync(f"{folder}/x.index.part-*", f"{folder}/x.index")
    assert joined.digest == whole.digest
    assert joined.shards == whole.shards
    assert all_records_of(f"{folder}/x.index") == ALL


async def test_a_missing_part_is_named() -> None:
    folder = "memory://write-missing-part"
    names = write_shards_of(folder)
    for number in (0, 2):
        await write_index(names, f"{folder}/x.index", part=(number, 3))
    with pytest.raises(ManifestError, match="missing: 1: write them with write_index"):
        await join_index(f"{folder}/x.index.part-*", f"{folder}/x.index")
    for part in ((3, 3), (-1, 3), (0, 0)):
        with pytest.raises(ValueError, match="part"):
            await write_index(names, f"{folder}/x.index", part=part)
    assert part_of("x", 2, 3) == "x.part-00002-of-00003"


def test_an_update_reads_only_changed_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, url = write_shards_of(tmp_path), f"{tmp_path}/x.index"
    write_index_sync(names, url)
    (tmp_path / "s-2").write_bytes(encode_records([b"new", b"newer"]))
    write_shards_of(tmp_path / "more", [[b"more"]])
    read: list[str] = []

    async def scan(storages: Storages, path: str, *how: Any) -> IndexedShard:
        read.append(Path(path).name)
        return await scan_shard(storages, path, *how)

    monkeypatch.setattr("streamrec.shards.indexing.scan_shard", scan)
    index = write_index_sync([names, f"{tmp_path}/more/s-0"], url, update=True)
    assert sorted(read) == ["s-0", "s-2"]
    assert [shard.records for shard in index.shards] == [1500, 0, 2, 2048, 1]
    assert all_records_of(url) == [*RECORDS[0], b"new", b"newer", *RECORDS[3], b"more"]


def idx_of(records: list[bytes]) -> bytes:
    """The output of tfrecord2idx."""
    return b"".join(b"%d %d\n" % (at, end - at) for at, end in pairwise(starts_of(records)))


def test_an_index_from_the_files_of_tfrecord2idx_is_the_same() -> None:
    folder = "memory://write-idx"
    whole = write_index_sync(write_shards_of(folder), f"{folder}/whole.index")
    for number, part in enumerate(RECORDS):
        put(f"{folder}/idx/s-{number}.idx", idx_of(part))
    index = write_index_sync(f"{folder}/s-*", f"{folder}/x.index", idx_files=f"{folder}/idx/*.idx")
    assert index.digest == whole.digest
    assert [shard.crc32c for shard in index.shards] == [None] * 4
    assert all_records_of(f"{folder}/x.index") == ALL


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (b"not numbers\n", "not a file of tfrecord2idx"),
        (b"0 19\n19\n", "not a file of tfrecord2idx"),
        (b"0 19\n19 99999999999999999999\n", "not a file of tfrecord2idx"),
        (b"0 19\n19 1e5\n", "not a file of tfrecord2idx"),
        (b"0 19\n19 -19\n", "line 2: a frame at byte 19 of -19 bytes"),
        (
            b"0 9223372036854775807\n9223372036854775807 16\n",
            "line 1: a frame at byte 0 of 9,223,372,036,854,775,807",
        ),
        (
            b"0 19\n20 19\n",
            "line 2: a frame at byte 20 of 19 bytes, and the one before ends at byte 19",
        ),
        (b"0 19\n", "the last record ends at byte 19"),
        (b"0 18\n18 20\n", "has no record of 4 bytes at byte 18"),
        (b"0 38\n", "has no record of 22 bytes at byte 0"),
        (b"", "the last record ends at byte 0"),
    ],
)
def test_idx_files_of_other_shards_are_refused(tmp_path: Path, idx: bytes, message: str) -> None:
    names = write_shards_of(tmp_path, [[b"cat", b"dog"]])
    (tmp_path / "x.idx").write_bytes(idx)
    with pytest.raises(ManifestError, match=message):
        write_index_sync(names, f"{tmp_path}/x.index", idx_files=f"{tmp_path}/x.idx")


def test_each_shard_needs_an_idx_file(tmp_path: Path) -> None:
    (tmp_path / "x.idx").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"4 shards and 1 \.idx files"):
        write_index_sync(
            write_shards_of(tmp_path), f"{tmp_path}/x.index", idx_files=f"{tmp_path}/x.idx"
        )


def test_names_are_relative_to_the_index_or_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards below the directory of the index move with it; the others keep their full path."""
    monkeypatch.chdir(tmp_path)
    write_shards_of("below")
    for index, root in (("x.index", None), ("elsewhere/x.index", "below")):
        write_index_sync("below/s-*", index)
        assert list(RecordSource(index, shard_root=root)[:]) == ALL
    Path("x.index").rename("moved.index")
    (tmp_path / "new").mkdir()
    Path("below").rename("new/below")
    Path("moved.index").rename("new/x.index")
    # the files are the same ones, so their versions are too
    assert all_records_of("new/x.index") == ALL


def test_no_index_or_manifest_is_written_over_a_shard(tmp_path: Path) -> None:
    names = write_shards_of(tmp_path)
    shard, link = tmp_path / "s-0", tmp_path / "link"
    link.symlink_to(shard)
    before = shard.read_bytes()
    for name in (str(shard), f"{tmp_path}/./s-0", f"file://{shard}", str(link)):
        with pytest.raises(
            streamrec.StorageError, match="is read, and would be overwritten: choose another name"
        ):
            write_index_sync(names, name)
        with pytest.raises(
            streamrec.StorageError, match="is read, and would be overwritten: choose another name"
        ):
            streamrec.write_manifest_sync(names, name)
    assert shard.read_bytes() == before
    write_index_sync(names, f"{tmp_path}/x.index")
    with pytest.raises(FileExistsError):
        write_index_sync(names, f"{tmp_path}/x.index", overwrite=False)


SHORT_RECORDS = [b"%d" % number * (number % 50) for number in range(5000)]


async def test_a_writer_writes_the_same_index() -> None:
    folder = f"memory://as-manifest-{uuid4()}"
    pattern = f"{folder}/train-{{shard:03d}}.tfrecord"
    async with ShardWriter(pattern, max_shard_records=1800, index=f"{folder}/own.index") as writer:
        for record in SHORT_RECORDS[:50]:
            await writer.write(record)
        await writer.write_batch(streamrec.Frames.of(SHORT_RECORDS[50:]))
    counted = await write_index(f"{folder}/train-*.tfrecord", f"{folder}/counted.index")
    source = await RecordSource.open(f"{folder}/own.index")
    assert source.index.digest == counted.digest
    assert source.index.shards == tuple(writer.shards)
    assert source.index.pattern == pattern
    assert list(await source.get(range(5000))) == SHORT_RECORDS


@pytest.mark.parametrize("kind", ["s3_store", "gcs_store"])
def test_versions_are_those_that_readers_see(kind: str, request: pytest.FixtureRequest) -> None:
    """In a real store, for a writer's index and one made later; a shard that is written again is
    refused.
    """
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
            await writer.write_batch(SHORT_RECORDS[::order])

    streamrec.bridge.run(write, 1)
    counted = write_index_sync(f"{folder}/s-*", f"{folder}/counted.index", storage_options=options)
    assert all(shard.version for shard in counted.shards)
    for name in ("own", "counted"):
        source = RecordSource(f"{folder}/{name}.index", storage_options=options)
        assert list(source.__getitems__([4999, 0, 2500])) == [
            SHORT_RECORDS[4999],
            SHORT_RECORDS[0],
            SHORT_RECORDS[2500],
        ]
    own = RecordSource(f"{folder}/own.index", storage_options=options).index
    assert {shard.version for shard in own.shards} <= {
        *(shard.version for shard in counted.shards),
        None,
    }
    streamrec.bridge.run(write, -1)
    with pytest.raises(ObjectChangedError, match=r"s-0.*streamrec index --update"):
        source[0]


@pytest.mark.parametrize("crc", [True, False])
async def test_verify_takes_an_index(tmp_path: Path, crc: bool) -> None:
    """The checksum is that of all bytes if the index has it, else that of each record."""
    folder = f"memory://as-manifest-{uuid4()}" if crc else str(tmp_path)
    for name in ("s-0", "s-1", "s-2"):
        put(f"{folder}/{name}", encode_records(SHORT_RECORDS))
    await write_index(f"{folder}/s-*", f"{folder}/x.index")
    report = await streamrec.verify(f"{folder}/x.index")
    assert report.ok
    assert report.shards == 3
    data = encode_records(SHORT_RECORDS)
    for name, other in (("s-0", data[:-1] + b"?"), ("s-1", data + encode_records([b"one more"]))):
        put(f"{folder}/{name}", other)
    report = await streamrec.verify(f"{folder}/x.index")
    kinds = [problem.kind for problem in report.problems]
    assert kinds == ["crc32c" if crc else "records", "bytes"]


def test_a_large_manifest_is_still_a_manifest(tmp_path: Path) -> None:
    """It is longer than the first read of the end of an index."""
    names = [f"{tmp_path}/s-{number:04d}-{'x' * 100}" for number in range(2000)]
    for name in names:
        Path(name).write_bytes(encode_records([b"a"]))
    streamrec.write_manifest_sync(names, f"{tmp_path}/manifest.json")
    assert (tmp_path / "manifest.json").stat().st_size > 256 << 10
    assert streamrec.verify_sync(f"{tmp_path}/manifest.json").shards == 2000
