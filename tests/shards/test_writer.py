"""Writing shards: limits, complete shards or none, and TensorFlow's synchronous writer."""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import fsspec
import numpy as np
import pytest
from fsspec.core import url_to_fs
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import streamrec
from streamrec import Frames, ShardWriter, TFRecordOptions, TFRecordWriter
from streamrec.kernels import crc32c
from streamrec.tfrecord import encode_records
from tests.shards.test_reader import place, read

__all__ = ["place"]

RECORDS = [b"%d:" % index * (index % 97) for index in range(20_000)]


def names(place: str) -> list[str]:
    fs, path = url_to_fs(place)
    return sorted(name.rpartition("/")[2] for name in fs.find(path)) if fs.exists(path) else []


async def test_one_shard_appears_when_it_is_complete(place: str) -> None:
    async with ShardWriter(f"{place}/x.tfrecord") as writer:
        for record in RECORDS:
            await writer.write(record)
        assert names(place) in ([], [name for name in names(place) if name != "x.tfrecord"])
    assert names(place) == ["x.tfrecord"]
    data = encode_records(RECORDS)
    assert writer.shards == [
        streamrec.shards.ShardInfo(f"{place}/x.tfrecord", len(RECORDS), len(data), crc32c(data))
    ]
    with fsspec.open(f"{place}/x.tfrecord", "rb") as file:
        assert file.read() == data


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("limit", [{"max_shard_bytes": 300_000}, {"max_shard_records": 3000}])
async def test_a_new_shard_begins_at_each_limit(
    place: str, batched: bool, limit: dict[str, int]
) -> None:
    async with ShardWriter(f"{place}/x-{{shard:03d}}", **limit) as writer:  # type: ignore[arg-type]
        if batched:
            await writer.write_batch(Frames.of(RECORDS))
        else:
            for record in RECORDS:
                await writer.write(record)
    assert names(place) == [f"x-{index:03d}" for index in range(len(writer.shards))]
    assert len(writer.shards) > 5
    assert sum(shard.records for shard in writer.shards) == len(RECORDS)
    for shard in writer.shards:
        assert shard.bytes <= limit.get("max_shard_bytes", 1 << 30)
        assert shard.records <= limit.get("max_shard_records", 1 << 30)
    for before, after in zip(writer.shards, writer.shards[1:], strict=False):
        if "max_shard_bytes" in limit:
            first = (await read(after.path))[0]
            assert before.bytes + len(first) + 16 > limit["max_shard_bytes"], (
                "a shard was closed too early"
            )
        else:
            assert before.records == limit["max_shard_records"]
    assert [record for shard in writer.shards for record in await read(shard.path)] == RECORDS


async def test_a_record_above_the_limit_has_a_shard_to_itself(place: str) -> None:
    async with ShardWriter(f"{place}/{{shard}}", max_shard_bytes=100) as writer:
        for size in (10, 500, 10):
            await writer.write(b"x" * size)
    assert [shard.records for shard in writer.shards] == [1, 1, 1]


async def test_the_limit_of_compressed_shards_is_approximate(place: str) -> None:
    incompressible = np.random.default_rng(0).bytes(200_000)
    async with ShardWriter(
        f"{place}/{{shard}}", TFRecordOptions("GZIP"), max_shard_bytes=2_000_000
    ) as writer:
        for _ in range(40):
            await writer.write(incompressible)
    assert [shard.bytes <= 2_100_000 for shard in writer.shards] == [True] * len(writer.shards)
    assert 4 <= len(writer.shards) <= 6
    assert sum([len(await read(shard.path)) for shard in writer.shards]) == 40


async def test_an_exception_leaves_no_partial_shard(place: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with ShardWriter(f"{place}/{{shard}}", max_shard_records=1000) as writer:
            await writer.write_batch(RECORDS[:2500])
            raise ZeroDivisionError
    assert names(place) == ["0", "1"]
    assert [shard.records for shard in writer.shards] == [1000, 1000]


async def test_a_writer_without_a_record_makes_an_empty_shard_or_none(place: str) -> None:
    async with ShardWriter(f"{place}/x") as writer:
        pass
    async with ShardWriter(f"{place}/y-{{shard}}", max_shard_bytes=100):
        pass
    assert names(place) == ["x"]
    assert await read(f"{place}/x") == []
    with pytest.raises(streamrec.errors.ClosedError, match="make a new one to write more"):
        await writer.write(b"late")


async def test_without_overwrite_an_existing_shard_is_an_error(place: str) -> None:
    async with ShardWriter(f"{place}/x-{{shard}}", max_shard_records=10, overwrite=False) as writer:
        await writer.write_batch(RECORDS[:25])
    with pytest.raises(streamrec.errors.AlreadyExistsError) as caught:
        async with ShardWriter(
            f"{place}/x-{{shard}}", max_shard_records=10, overwrite=False
        ) as writer:
            await writer.write_batch(RECORDS[10:25])
    assert caught.value.path == f"{place}/x-0"
    with (
        pytest.raises(streamrec.errors.AlreadyExistsError),
        TFRecordWriter(f"{place}/x-0", overwrite=False) as sync,
    ):
        sync.write(b"second")
    assert await read(f"{place}/x-0") == RECORDS[:10]
    assert names(place) == ["x-0", "x-1", "x-2"]


async def test_a_manifest_is_not_overwritten_either(place: str) -> None:
    fsspec.filesystem("memory" if "://" in place else "file").pipe_file(f"{place}/m.json", b"other")
    with pytest.raises(streamrec.errors.AlreadyExistsError, match=r"m\.json"):
        async with ShardWriter(f"{place}/x", overwrite=False, manifest=f"{place}/m.json") as writer:
            await writer.write(b"record")
    assert names(place) == ["m.json", "x"]


async def test_a_filesystem_that_cannot_promise_it_refuses_overwrite_false(tmp_path: Path) -> None:
    own = DirFileSystem(path=str(tmp_path), fs=LocalFileSystem())
    with pytest.raises(streamrec.errors.UnsupportedOperationError, match="overwrite=True"):
        async with ShardWriter("/x", overwrite=False, filesystem=own) as writer:
            await writer.write(b"record")
    assert names(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("kind", "threads"),
    [(None, None), ("", None), ("GZIP", None), ("ZLIB", None), ("ZSTD", None), ("ZSTD", 2)],
)
def test_the_synchronous_writer(place: str, kind: str | None, threads: int | None) -> None:
    with TFRecordWriter(f"{place}/x", TFRecordOptions(kind, compression_threads=threads)) as writer:
        for index, record in enumerate(RECORDS):
            writer.write(record)
            if index == 7:
                writer.flush()
    assert list(streamrec.TFRecordDataset(f"{place}/x")) == RECORDS
    with pytest.raises(streamrec.errors.ClosedError):
        writer.write(b"late")


@pytest.mark.parametrize("leave", [lambda: 1 / 0, lambda: exec("raise KeyboardInterrupt")])
@pytest.mark.parametrize(
    "options", [TFRecordOptions("GZIP"), TFRecordOptions("ZSTD", compression_threads=2)]
)
def test_the_synchronous_writer_leaves_no_partial_shard(
    place: str, options: TFRecordOptions, leave: Callable[[], object]
) -> None:
    with (
        pytest.raises((ZeroDivisionError, KeyboardInterrupt)),
        TFRecordWriter(f"{place}/x", options) as writer,
    ):
        writer.write(b"x" * 3_000_000)
        leave()
    assert names(place) == []


@pytest.mark.parametrize(
    "use",
    [
        lambda writer: writer.write(b"x"),
        lambda writer: writer.write_batch([b"x"]),
        lambda writer: writer.flush(),
        lambda writer: writer.close(),
    ],
)
async def test_a_writer_that_was_not_entered_refuses_records(
    tmp_path: Path, use: Callable[[ShardWriter], Awaitable[None]]
) -> None:
    writer = ShardWriter(f"{tmp_path}/x-{{shard}}", max_shard_records=10)
    with pytest.raises(
        streamrec.errors.ClosedError,
        match="is not open yet: write within its own `async with` block",
    ):
        await use(writer)
    assert names(str(tmp_path)) == []
    async with writer:
        await writer.write(b"y")
    with pytest.raises(streamrec.errors.ClosedError, match="was closed"):
        await writer.__aenter__()
    assert await read(f"{tmp_path}/x-0") == [b"y"]


IN_A_FORK = """
import os, sys, anyio, streamrec

def child(use):
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    try:
        use()
    except streamrec.errors.ClosedError as error:
        os._exit(3 if "forked this one" in str(error) else 4)
    os._exit(0)

async def asynchronous(folder):
    async with streamrec.ShardWriter(f"{folder}/a") as writer:
        await writer.write(b"first")
        await writer.flush()
        coroutines = [writer.write(b"x"), writer.close(), writer.abort()]
        codes = [child(lambda: coroutine.send(None)) for coroutine in coroutines[:2]]
        def abort():
            try:
                coroutines[2].send(None)
            except StopIteration:
                pass
        print(*codes, child(abort))
        [coroutine.close() for coroutine in coroutines]

anyio.run(asynchronous, sys.argv[1])
with streamrec.TFRecordWriter(f"{sys.argv[1]}/b") as writer:
    writer.write(b"first")
    writer.flush()
    codes = [child(lambda: use()) for use in (lambda: writer.write(b"x"), writer.close)]
    print(*codes, child(lambda: writer.__exit__(ValueError, ValueError(), None)))
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_cannot_write_to_its_parents_shard(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", IN_A_FORK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["3", "3", "0"] * 2, "")
    assert [anyio.run(read, f"{tmp_path}/{name}") for name in names(str(tmp_path))] == [
        [b"first"]
    ] * 2


async def test_a_writer_is_entered_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with streamrec.ShardWriter(tmp_path / "x") as writer:
        await writer.write(b"1")
        with pytest.raises(streamrec.errors.ClosedError, match="is open already: enter it once"):
            async with writer:
                pass
    del writer
    assert not caplog.messages
    assert await read(str(tmp_path / "x")) == [b"1"]
