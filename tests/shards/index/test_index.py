"""The index as an object: it is small and checked, gives the written values, and identifies its
data set.
"""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec import RecordSource, verify_sync
from streamrec.errors import ManifestError
from streamrec.kernels import crc32c
from streamrec.shards import Index, IndexedRecords, ShardInfo, open_index
from streamrec.shards.index import (
    FOOT_BYTES,
    MAGIC,
    IndexedShard,
    encode_end,
    encode_index,
    read_end,
    read_foot,
)
from streamrec.storage import Storages
from streamrec.tfrecord import LengthPacker, PackedLengths
from tests.storage.contract import write_object

lengths_of_shards = st.lists(
    st.tuples(st.lists(st.integers(0, 100_000), max_size=12), st.sampled_from([0, 1, 100, 400])),
    max_size=5,
)


def pack_lengths(lengths: npt.ArrayLike) -> PackedLengths:
    packer = LengthPacker()
    packer.add(np.asarray(lengths, np.int64))
    return packer.finish()


def shard(number: int, lengths: Any, folder: str = "s3://b/d", **more: Any) -> IndexedShard:
    packed = pack_lengths(lengths)
    info = ShardInfo(
        f"{folder}/s-{number}", packed.records, packed.end, number, version=f"v{number}"
    )
    return IndexedShard(replace(info, **more), packed)


def parse_index(path: str, data: bytes) -> Index:
    return read_end(path, read_foot(path, data, len(data)), data)


@settings(max_examples=60, deadline=None)
@given(lengths_of_shards, st.randoms(use_true_random=False))
async def test_an_index_gives_the_written_lengths_and_places(
    shards: list[tuple[list[int], int]], random: Any
) -> None:
    lengths = [part * repeats for part, repeats in shards]
    written = [shard(number, part) for number, part in enumerate(lengths)]
    url = "memory://index-read/x.index"
    everything = [length for part in lengths for length in part]
    wanted_places = [
        (number, sum(part[:i]) + 16 * i, length)
        for number, part in enumerate(lengths)
        for i, length in enumerate(part)
    ]
    async with Storages() as storages:
        storage = await storages.at(url)
        await write_object(storage, url, encode_index(url, written))
        index = await open_index(storage, url)
        reader = IndexedRecords(storages, index, cache_bytes=random.choice([0, 1000, 1 << 20]))
        assert index.shards == tuple(one.info for one in written)
        assert [one.version for one in index.shards] == [one.info.version for one in written]
        assert len(index) == len(everything)
        first = random.randint(0, len(everything))
        last = random.randint(first, len(everything))
        assert (await reader.lengths(first, last)).tolist() == everything[first:last]
        records = [random.randrange(len(everything)) for _ in range(20)] if everything else []
        places = await reader.places(np.array(records, np.int64))
        assert [tuple(map(int, place)) for place in zip(*places, strict=True)] == [
            wanted_places[i] for i in records
        ]


def test_the_digest_identifies_the_data_set() -> None:
    data = encode_index("s3://b/d/x.index", [shard(0, [1, 2]), shard(1, [3])])
    index = parse_index("s3://b/d/x.index", data)
    copied = [shard(0, [1, 2], "gs://c/e", version="w"), shard(1, [3], "gs://c/e", crc32c=None)]
    assert (
        parse_index("gs://c/e/x.index", encode_index("gs://c/e/x.index", copied)).digest
        == index.digest
    )
    assert (
        parse_index("gs://c/e/x.index", data).shards[1].path == "gs://c/e/s-1"
    )  # moved with its shards
    for other in (
        [shard(0, [2, 1]), shard(1, [3])],
        [shard(0, [1, 2]), shard(2, [3])],
        [shard(1, [3]), shard(0, [1, 2])],
        [shard(0, [1, 2])],
    ):
        assert (
            parse_index("s3://b/d/x.index", encode_index("s3://b/d/x.index", other)).digest
            != index.digest
        )
    assert pickle.loads(pickle.dumps(index)).digest == index.digest


@pytest.mark.parametrize(
    "damage", ["cut", "head cut", "empty", "no index", "foot", "tables", "size", "version"]
)
async def test_a_damaged_index_is_one_clear_error(tmp_path: Path, damage: str) -> None:
    data = encode_index(f"{tmp_path}/x.index", [shard(0, range(3000)), shard(1, [3])])
    flip = {
        "foot": len(data) - FOOT_BYTES + 8,
        "tables": len(data) - FOOT_BYTES - 5,
        "version": len(data) - FOOT_BYTES,
    }
    broken = {
        "cut": data[:-20],
        "head cut": data[20:],
        "empty": b"",
        "no index": b"no index at all" * 1000,
        "size": data[:100] + data[108:],
    }
    if damage in flip:
        broken[damage] = (
            data[: flip[damage]] + bytes([data[flip[damage]] ^ 1]) + data[flip[damage] + 1 :]
        )
    path = tmp_path / "x.index"
    path.write_bytes(broken[damage])
    async with Storages() as storages:
        with pytest.raises(ManifestError, match=r"x\.index: this (index|file)") as caught:
            await open_index(await storages.at(str(path)), str(path))
    assert "streamrec index SHARDS" in str(caught.value)


def changed_index(folder: Path, change: Any) -> bytes:
    """An index with correct checksums, whose tables `change` has changed."""
    data = encode_index(
        f"{folder}/x.index", [shard(0, range(3000), str(folder)), shard(1, [3], str(folder))]
    )
    index = parse_index(f"{folder}/x.index", data)
    index = replace(index, blocks=index.blocks.copy())
    lengths = data[: int(index.block_places[-1])]
    changed = change(index)
    changed = index if changed is None else changed
    changed.__dict__["block_places"] = index.block_places
    return lengths + encode_end(changed)


def with_block_value(column: str, row: int, value: int) -> Any:
    def change(index: Index) -> None:
        index.blocks[column][row] = value

    return change


def with_first_shard(**changes: Any) -> Any:
    def change(index: Index) -> Index:
        return replace(index, shards=(replace(index.shards[0], **changes), *index.shards[1:]))

    return change


@pytest.mark.parametrize(
    "change",
    [
        *[
            with_first_shard(records=number)
            for number in (-1, True, 2999, 3001, 1 << 62, 10**30, None, "3000", 3000.0)
        ],
        *[
            with_first_shard(bytes=number)
            for number in (-1, False, 16 * 3000, 1 << 62, 10**30, None)
        ],
        *[with_first_shard(version=version) for version in (5, [], {})],
        *[with_first_shard(path=path) for path in ("x\0", "../x", "")],
        lambda index: replace(
            index, shards=(index.shards[0], replace(index.shards[1], path=index.shards[0].path))
        ),
        lambda index: replace(index, compression_type="GZIP"),
        lambda index: replace(index, pattern="../x"),
        *[
            with_block_value("end", row, value)
            for row in range(3)
            for value in (-1, 0, 1 << 62, -(1 << 63))
        ],
        *[with_block_value("width", row, value) for row in range(2) for value in (0, 1, 58, 255)],
        *[with_block_value("base", 0, value) for value in (-1, 1 << 62, 10_000)],
    ],
)
def test_a_hostile_index_is_one_error(tmp_path: Path, change: Any) -> None:
    """All checksums are correct; the error comes before anything is allocated."""
    (tmp_path / "x.index").write_bytes(changed_index(tmp_path, change))
    with pytest.raises(
        ManifestError, match=r"x\.index: this (index|file) is damaged.*write it again"
    ):
        RecordSource(tmp_path / "x.index")
    with pytest.raises(ManifestError, match=r"x\.index: this (index|file) is damaged"):
        verify_sync(str(tmp_path / "x.index"))


async def test_lengths_that_do_not_fill_their_shard_are_an_error(tmp_path: Path) -> None:
    """The tables are right, and the packed lengths are not."""
    path = str(tmp_path / "x.index")
    data = encode_index(path, [shard(0, [5, 6, 7, 4], str(tmp_path))])
    index = parse_index(path, data)
    lengths = bytearray(data[: int(index.block_places[-1])])
    lengths[len(MAGIC)] ^= 3
    index = replace(index, blocks=index.blocks.copy())
    index.blocks["crc"][0] = crc32c(bytes(lengths[len(MAGIC) :]))
    (tmp_path / "x.index").write_bytes(bytes(lengths) + encode_end(index))
    source = await RecordSource.open(path)
    with pytest.raises(ManifestError, match="do not add up to the sizes of their shards"):
        await source.get([0])


async def test_damaged_lengths_are_found_when_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    data = bytearray(encode_index(str(path), [shard(0, np.arange(5000) % 999)]))
    data[len(MAGIC) + 2000] ^= 1
    path.write_bytes(data)
    async with Storages() as storages:
        storage = await storages.at(str(path))
        reader = IndexedRecords(storages, await open_index(storage, str(path)))
        assert (await reader.lengths(4000, 5000)).tolist() == [
            number % 999 for number in range(4000, 5000)
        ]
        with pytest.raises(ManifestError, match="the CRC32C of the lengths at byte"):
            await reader.lengths(1500, 1600)
        with pytest.raises(IndexError, match="records 4,999 to 5,001 of 5,000"):
            await reader.lengths(4999, 5001)


def test_equal_lengths_take_no_byte() -> None:
    assert pack_lengths([700] * 5000).data == b""


@pytest.mark.parametrize(("mean", "spread"), [(1_000, 400), (110_000, 60_000), (110_000, 1)])
def test_similar_lengths_take_at_most_three_bytes(mean: int, spread: int) -> None:
    packed = pack_lengths(np.random.default_rng(1).integers(mean - spread, mean + spread, 50_000))
    assert len(packed.data) + packed.blocks.nbytes <= 3 * packed.records


@pytest.mark.parametrize("lengths", [[-1], [0, 1 << 57]])
def test_lengths_that_cannot_be_packed_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="a length is 0 to"):
        pack_lengths(lengths)
