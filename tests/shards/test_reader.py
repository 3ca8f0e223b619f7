"""Reading one shard, through storages that need no server; tests/storage tests the others."""

import asyncio
import gzip
import hashlib
import json
import os
import random
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import anyio
import fsspec
import pytest

import streamrec
from streamrec.shards import ReadOptions, ShardPlace, ShardReader
from streamrec.shards.opening import InflatedStream
from streamrec.storage import Storages
from streamrec.tfrecord import Inflater, TFRecordOptions, encode_records
from tests.kernels.streams import header
from tests.tfrecord.damage import starts_of

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = [b"%d:" % index * (index % 97) for index in range(20_000)]


@pytest.fixture(params=["memory", "local"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path)


def put(url: str, data: bytes) -> str:
    with fsspec.open(url, "wb") as file:
        file.write(data)
    return url


async def read(url: str, **options: object) -> list[bytes]:
    async with streamrec.open_shard(url, **options) as shard:  # type: ignore[arg-type]
        return [record async for record in shard]


@asynccontextmanager
async def open_reader(
    url: str, options: ReadOptions, place: ShardPlace | None = None
) -> AsyncIterator[ShardReader]:
    async with Storages() as storages:
        reader = await ShardReader.open(await storages.at(url), url, options, place=place)
        try:
            yield reader
        finally:
            await reader.aclose()


@pytest.mark.parametrize(
    "name",
    [
        "records.tfrecord",
        "records.tfrecord.gz",
        "records.tfrecord.zlib",
        "records.level9.tfrecord.gz",
    ],
)
async def test_golden_files(name: str) -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text())["files"]["records.tfrecord"]
    records = await read(str(GOLDEN / name))
    assert len(records) == manifest["records"]
    assert (
        hashlib.sha256(b"".join(records)).hexdigest() == manifest["sha256_of_concatenated_payloads"]
    )
    assert encode_records(records) == (GOLDEN / "records.tfrecord").read_bytes()


@pytest.mark.parametrize("name", ["x.tfrecord", "x.tfrecord.gz"])
async def test_blocks_end_after_groups_of_records(place: str, name: str) -> None:
    data = encode_records(RECORDS * 10)
    url = put(f"{place}/{name}", gzip.compress(data, 1) if name.endswith(".gz") else data)
    async with open_reader(url, ReadOptions(block_bytes=100_000, block_records=200)) as reader:
        sizes = [len(frames) async for frames in reader.frames()]
    ends = list(accumulate(sizes))
    large = [end for size, end in zip(sizes, ends, strict=True) if size >= 200]
    assert sum(end % 200 > 0 for end in large) <= 1, "all blocks but the last one"
    assert len(large) > len(data) / 125_000 - 2, "no block is much smaller than it should be"
    assert ends[-1] == len(RECORDS) * 10


async def test_a_block_grows_to_one_group_of_at_most_two_blocks(place: str) -> None:
    records = [bytes(984)] * 4000
    url = put(f"{place}/x.tfrecord", encode_records(records))
    sizes = {}
    for group in (190, 210):  # records of 1,000 bytes, in blocks of 100,000
        async with open_reader(
            url, ReadOptions(block_bytes=100_000, block_records=group)
        ) as reader:
            sizes[group] = [len(frames) async for frames in reader.frames()]
    assert sum(size % 190 > 0 for size in sizes[190]) <= 3, "while blocks grow, and the last one"
    assert max(sizes[190]) == 190
    assert len(sizes[190]) <= 4000 / 190 + 4
    assert len(sizes[210]) >= 4000 / 110, (
        "a larger group would make blocks too large: they do not change"
    )
    assert sum(sizes[190]) == sum(sizes[210]) == 4000


@pytest.mark.parametrize("seed", range(12))
async def test_groups_of_records_of_any_length_are_read_whole(seed: int) -> None:
    draw = random.Random(seed)
    block, group = draw.choice([100, 1000, 30_000]), draw.choice([2, 3, 7, 30])
    records = [
        bytes(int(draw.choice([1, 1, group, 30]) * draw.random() * block / group))
        for _ in range(2000)
    ]
    url = put(f"memory://groups/{seed}.tfrecord", encode_records(records))
    async with open_reader(url, ReadOptions(block_bytes=block, block_records=group)) as reader:
        assert [record async for record in reader] == records


async def test_the_first_block_is_small(place: str) -> None:
    url = put(f"{place}/x.tfrecord", encode_records(RECORDS * 3))
    async with streamrec.open_shard(url) as shard:
        sizes = [memoryview(frames.buffer).nbytes async for frames in shard.frames()]
    assert 0 < min(sizes) <= sizes[0] <= 65_600
    assert max(sizes) > 900_000


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB", "ZSTD"])
@pytest.mark.parametrize("named", [True, False])
async def test_a_compression_is_named_or_detected(place: str, kind: str, named: bool) -> None:
    async with streamrec.ShardWriter(f"{place}/x", TFRecordOptions(kind)) as writer:
        await writer.write_batch(RECORDS)
    assert await read(f"{place}/x", compression_type=kind if named else None) == RECORDS


@pytest.mark.parametrize("kind", ["", "GZIP"])
async def test_reading_may_begin_at_any_record(place: str, kind: str) -> None:
    data = encode_records(RECORDS)
    url = put(f"{place}/x", gzip.compress(data) if kind else data)
    async with open_reader(url, ReadOptions(compression_type=kind)) as reader:
        places = [reader.place]
        while await reader.read() is not None:
            places.append(reader.place)
    for start in places:
        async with open_reader(url, ReadOptions(compression_type=kind), start) as reader:
            frames = await reader.read()
            assert (frames is None) == (start.record == len(RECORDS))
            assert frames is None or frames[0] == RECORDS[start.record]


@pytest.mark.parametrize("kind", ["", "GZIP"])
async def test_a_cut_shard_gives_all_whole_records_first(place: str, kind: str) -> None:
    data = encode_records(RECORDS)
    data = gzip.compress(data) if kind else data
    url = put(f"{place}/x", data[: len(data) // 2])
    found: list[bytes] = []
    with pytest.raises(streamrec.errors.TruncatedShardError) as caught:
        async with streamrec.open_shard(url) as shard:
            async for record in shard:
                found.append(record)
    assert caught.value.path == url
    assert 5_000 < len(found) < 15_000
    assert found == RECORDS[: len(found)]


async def test_cancelled_reading_closes_the_shard(place: str) -> None:
    url = put(f"{place}/x", encode_records(RECORDS))
    with anyio.CancelScope() as scope:
        async with streamrec.open_shard(url) as shard:
            await shard.read()
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    with pytest.raises(streamrec.errors.ClosedError, match="open it again"):
        await shard.read()


@pytest.mark.parametrize("on_error", ["raise", "skip_record", "resync", "skip_shard"])
@pytest.mark.parametrize("ending", ["", ".gz"])
async def test_a_file_that_is_changed_in_place_is_not_damaged(
    tmp_path: Path, on_error: str, ending: str
) -> None:
    """The records before the change are right, and no record after it is returned."""
    draw, path = random.Random(7), tmp_path / f"x{ending}"
    records = [draw.randbytes(9000) for _ in range(800)]
    data = encode_records(records)
    path.write_bytes(gzip.compress(data, 1) if ending else data)
    found: list[bytes] = []
    async with streamrec.open_shard(path, on_error=on_error, block_bytes=50_000) as shard:
        with pytest.raises(streamrec.errors.ObjectChangedError) as caught:
            async for frames in shard.frames():
                found.extend(frames)
                if len(found) == len(frames):
                    with path.open("r+b") as file:
                        file.seek(1_000_000)
                        file.write(bytes(6_000_000))
                    os.utime(path, ns=(1, 1))
        assert shard.losses == []
    assert caught.value.path == str(path)
    assert found == records[: len(found)]
    assert len(found) < len(records)


async def test_reading_from_the_middle_needs_the_compression(tmp_path: Path) -> None:
    url = put(str(tmp_path / "x"), encode_records(RECORDS))
    with pytest.raises(ValueError, match="needs compression_type"):
        async with open_reader(url, ReadOptions(compression_type=None), ShardPlace(16, 1)):
            pass


@pytest.mark.parametrize("kind", ["", "GZIP"])
@pytest.mark.parametrize("change", ["none", "payload", "cut out", "end"])
async def test_long_records_are_checked_and_not_held(place: str, kind: str, change: str) -> None:
    """The records in the middle are longer than a block and than `long_bytes`; damage is a loss as
    usual.
    """
    records = [
        b"first",
        os.urandom(200_000),
        b"second",
        os.urandom(100_000),
        b"third",
        os.urandom(150_000),
        b"last",
    ]
    data = bytearray(encode_records(records))
    starts = starts_of(records)
    kept = list(range(7))
    if change == "payload":
        data[starts[3] + 50_000] ^= 1
        kept.remove(3)
    elif change == "cut out":
        del data[starts[3] + 50_000 : starts[3] + 60_000]
        kept.remove(3)
    elif change == "end":
        del data[starts[5] + 100_000 :]
        kept = kept[:5]
    url = put(f"{place}/long", gzip.compress(bytes(data), 1) if kind else bytes(data))
    lengths: list[int] = []
    copies: dict[int, bytes] = {}
    async with open_reader(
        url, ReadOptions(on_error="resync", long_bytes=80_000, block_bytes=30_000)
    ) as reader:
        while True:
            frames = await reader.read()
            for record in reader.take_long_records():
                end = record.offset + record.nbytes
                copies[len(lengths)] = b"".join(
                    [bytes(it) async for it in reader.plain_bytes(record.offset, end)]
                )
                lengths.append(record.length)
            if frames is None:
                break
            lengths += frames.lengths.tolist()
        assert reader.place.record == len(kept)
        assert reader.skipped == (change != "none")
    assert lengths == [len(records[number]) for number in kept]
    assert copies == {
        kept.index(number): encode_records([records[number]])
        for number in (1, 3, 5)
        if number in kept
    }


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("length", [1 << 60, (1 << 64) - 1, 1 << 40])
async def test_a_length_beyond_the_end_of_the_shard_is_damage(
    place: str, compress: Any, length: int
) -> None:
    """Good records before it are returned, and no memory is allocated for it."""
    url = put(f"{place}/hostile", compress(encode_records([b"good"]) + header(length) + b"x" * 100))
    found = []
    damage = (streamrec.CorruptRecordError, streamrec.errors.TruncatedShardError)
    with pytest.raises(
        damage, match=f"{length:,} bytes long, more than any|ends after 112 of at least"
    ) as caught:
        async with streamrec.open_shard(url) as shard:
            async for record in shard:
                found.append(record)
    assert found == [b"good"]
    assert (caught.value.offset, caught.value.record) == (20, 1)


PLAIN_BYTES = bytes(range(256)) * 4096


class HeldInflater(Inflater):
    """Waits for `released`."""

    def __init__(self) -> None:
        super().__init__("GZIP")
        self.begun, self.released = threading.Event(), threading.Event()

    def read_into(self, buffer: memoryview) -> int:
        self.begun.set()
        self.released.wait()
        return super().read_into(buffer)


class NoMoreBytes:
    """A stream at its end."""

    info = tally = None

    async def readinto(self, buffer: memoryview) -> int:
        return 0


async def test_a_cancellation_waits_for_the_thread_and_is_not_lost() -> None:
    inflater, room = HeldInflater(), memoryview(bytearray(len(PLAIN_BYTES)))
    stream = InflatedStream(NoMoreBytes(), inflater, gzip.compress(PLAIN_BYTES), 0)
    reading = asyncio.ensure_future(stream.readinto(room))
    await asyncio.to_thread(inflater.begun.wait)
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=0)
    assert not done
    inflater.released.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert room == PLAIN_BYTES
