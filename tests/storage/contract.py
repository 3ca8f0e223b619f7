"""StorageTests: the tests of every backend, against a real store. Inherit, and define the fixture
`place`.

`check` writes shards and reads them in parallel, in byte ranges, and from a state, with a user's
options.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pytest

import streamrec
from streamrec.errors import (
    AlreadyExistsError,
    ClosedError,
    NotFoundError,
    ObjectChangedError,
    UnsupportedOperationError,
)
from streamrec.storage import RetryPolicy, Storage, Storages
from streamrec.storage.base import ByteStream
from tests.servers.resuming import stop_after

PART = 1 << 18
DATA = os.urandom(3 * PART + 12_345)
MANY_STREAMS = 150
QUICK_RETRIES = RetryPolicy(
    attempts=3, backoff_base=0.01, connect_timeout=5, first_byte_timeout=10, stall_timeout=10
)


@dataclass(frozen=True)
class Place:
    """Where a test class may write.

    Attributes:
        url: A prefix of its own, without a slash at the end.
        options: Storage options.
        filesystem: A user's own filesystem, or None.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    filesystem: fsspec.AbstractFileSystem | None = None

    def storages(self, retry: RetryPolicy = QUICK_RETRIES) -> Storages:
        """Storages for the running loop."""
        return Storages(self.options, filesystem=self.filesystem, retry=retry)


async def read_all(stream: ByteStream, size: int = 100_000) -> bytes:
    """Reads a stream to its end, through one buffer."""
    buffer, parts = bytearray(size), []
    while count := await stream.readinto(memoryview(buffer)):
        parts.append(bytes(buffer[:count]))
    await stream.aclose()
    return b"".join(parts)


def signed_body(request: Any) -> str:
    """What the signature of a request to S3 says of its body."""
    value = request.headers.get("X-Amz-Content-SHA256", "")
    return value.decode() if isinstance(value, bytes) else str(value)


@asynccontextmanager
async def open_storage(
    path: str, options: Mapping[str, Any] = {}, retry: RetryPolicy = QUICK_RETRIES
) -> AsyncIterator[Storage]:
    """The storage of a path."""
    async with Storages(options, retry=retry) as storages:
        yield await storages.at(path)


async def write_object(storage: Storage, path: str, data: bytes, **options: Any) -> None:
    """Writes an object."""
    async with await storage.upload(path, **options) as upload:
        await upload.write(data)


def note_requests(storage: Storage, event: str, what: Callable[[Any], str]) -> list[str]:
    """What there is to say of each request to S3 from now on, at an event of botocore's."""
    seen: list[str] = []
    client = storage._backend._fs._s3  # type: ignore[attr-defined]
    client.meta.events.register(event, lambda request, **_: seen.append(what(request)))
    return seen


async def wait_until(what: Callable[[], bool]) -> None:
    """Yields to other tasks until a condition is true."""
    while not what():  # noqa: ASYNC110 - a property, which sets no event
        await asyncio.sleep(0)


PROGRAM_THAT_IS_KILLED = """
import asyncio, json, os, signal, sys
from streamrec.storage import Storages
paths, options, part_size = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
async def main():
    async with Storages(options) as storages:
        for path in paths:
            upload = await (await storages.at(path)).upload(path, part_size=part_size)
            for _ in range(6):
                await upload.write(bytes(part_size))
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


def kill_while_writing(paths: Sequence[str], options: Mapping[str, Any], part_size: int) -> None:
    """Starts a process that uploads to the paths and is killed before the end."""
    arguments = [json.dumps(paths), json.dumps(dict(options)), str(part_size)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM_THAT_IS_KILLED, *arguments], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL


class ReadingTests:
    """Reading. Subclasses define `place`, and `write_object` if the store cannot be written through
    Storage.
    """

    @pytest.fixture
    async def storage(self, place: Place) -> AsyncIterator[Storage]:
        async with place.storages() as storages:
            yield await storages.at(place.url)

    @pytest.fixture
    def path(self, place: Place) -> str:
        return f"{place.url}/{uuid4().hex}"

    async def put(self, storage: Storage, path: str, data: bytes) -> None:
        await write_object(storage, path, data)

    async def test_round_trip(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        info = await storage.stat(path)
        assert (info.path, info.size, bool(info.version)) == (path, len(DATA), True)
        stream = await storage.stream(path, version=info.version)
        assert (stream.info, stream.position) == (info, 0)
        assert await read_all(stream) == DATA
        assert stream.position == len(DATA)

    @pytest.mark.parametrize("data", [DATA, b""], ids=["long", "empty"])
    async def test_ranges(self, storage: Storage, path: str, data: bytes) -> None:
        """At and past the end there is nothing."""
        await self.put(storage, path, data)
        assert (await storage.stat(path)).size == len(data)
        spans = [
            (0, 10),
            (5, 5),
            (0, 0),
            (7, 300_000),
            (PART, None),
            (9, 10**9),
            (10**9, 10**9 + 10),
        ]
        for start, end in [*spans, *((len(DATA) + more, None) for more in (-1, 0, 1))]:
            stream = await storage.stream(path, start, end)
            assert stream.info.size == len(data)
            assert await read_all(stream) == data[start:end]
            if end is not None:
                assert await storage.read_range(path, start, end) == data[start:end]

    async def test_a_missing_object(self, storage: Storage, path: str) -> None:
        for call in (storage.stat(path), storage.stream(path), storage.read_range(path, 3, 9)):
            with pytest.raises(NotFoundError) as caught:
                await call
            assert caught.value.path == path
            assert isinstance(caught.value, FileNotFoundError)

    async def test_an_object_that_changed(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        version = (await storage.stat(path)).version
        await self.put(storage, path, DATA[::-1] + b"x")
        with pytest.raises(ObjectChangedError) as caught:
            await storage.stream(path, 10, version=version)
        assert (caught.value.path, caught.value.offset) == (path, 10)

    async def test_readinto_never_writes_past_the_buffer(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        stream = await storage.stream(path, 3)
        for size in (1, 1000, 70_001, 2, 5):
            guarded = bytearray(b"\xaa" * (size + 16))
            before = stream.position
            count = await stream.readinto(memoryview(guarded)[:size])
            assert 0 < count <= size
            assert stream.position == before + count
            assert guarded[:count] == DATA[before : before + count]
            assert guarded[size:] == b"\xaa" * 16
        assert await stream.readinto(memoryview(bytearray())) == 0
        await stream.aclose()

    async def test_a_closed_stream_says_so(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        stream = await storage.stream(path)
        await stream.aclose()
        await stream.aclose()
        with pytest.raises(ClosedError, match="open a new one"):
            await stream.readinto(memoryview(bytearray(10)))

    async def test_many_streams_at_once(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        streams = await asyncio.gather(*[storage.stream(path, start) for start in range(20)])
        assert await asyncio.gather(*map(read_all, streams)) == [
            DATA[start:] for start in range(20)
        ]

    async def test_no_pool_of_connections_is_too_small(self, storage: Storage, path: str) -> None:
        """Open shards keep their connections until they are read: if the next one waited for one,
        all would wait.
        """
        await self.put(storage, path, DATA)
        streams = [await storage.stream(path) for _ in range(MANY_STREAMS)]
        first = [await stream.readinto(memoryview(bytearray(1000))) for stream in streams]
        assert all(first)
        assert await read_all(streams[-1]) == DATA[first[-1] :]
        for stream in streams:
            await stream.aclose()

    async def test_a_cancelled_read_leaves_the_buffer_alone(
        self, storage: Storage, path: str
    ) -> None:
        await self.put(storage, path, DATA)
        stream = await storage.stream(path)
        buffer = bytearray(50_000)
        reading = asyncio.create_task(stream.readinto(memoryview(buffer)))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        before = bytes(buffer)
        assert await read_all(await storage.stream(path)) == DATA
        assert bytes(buffer) == before
        await stream.aclose()

    async def test_bad_ranges_are_refused(self, storage: Storage, path: str) -> None:
        for start, end in [(-1, None), (5, 4)]:
            with pytest.raises(ValueError, match="a range begins"):
                await storage.stream(path, start, end)

    def test_one_run_after_the_other(self, place: Place, path: str) -> None:
        async def once() -> bytes:
            async with place.storages() as storages:
                storage = await storages.at(path)
                await self.put(storage, path, DATA)
                return await read_all(await storage.stream(path))

        assert asyncio.run(once()) == asyncio.run(once()) == DATA


class WritingTests:
    """Listing and writing, on top of ReadingTests."""

    LISTED: ClassVar = ["a", "b/1", "b/10", "b/2", "b-1", "c/ü", "c/x y%20+"]

    async def test_list_is_sorted_and_goes_by_prefix(self, storage: Storage, path: str) -> None:
        for name in self.LISTED:
            await self.put(storage, f"{path}/{name}", name.encode())  # type: ignore[attr-defined]
        everything = [info async for info in storage.list(f"{path}/")]
        assert [info.path for info in everything] == sorted(
            f"{path}/{name}" for name in self.LISTED
        )
        assert [info.size for info in everything] == [
            len(i.path.removeprefix(f"{path}/").encode()) for i in everything
        ]
        assert [info.path async for info in storage.list(f"{path}/b/1")] == [
            f"{path}/b/1",
            f"{path}/b/10",
        ]
        assert [info async for info in storage.list(f"{path}/nothing")] == []
        for info in everything:
            assert (
                await storage.read_range(info.path, 0, 100)
                == info.path.removeprefix(f"{path}/").encode()
            )

    @pytest.mark.parametrize("step", [1000, PART, 3 * PART + 1])
    async def test_writes_of_any_size_become_parts(
        self, storage: Storage, path: str, step: int
    ) -> None:
        for size in (0, 1, PART - 1, PART, PART + 1, 4 * PART, 9 * PART + 7):
            data = os.urandom(size)
            async with await storage.upload(path, part_size=self.part_size()) as upload:
                for start in range(0, size, step):
                    await upload.write(memoryview(data)[start : start + step])
            assert (await storage.stat(path)).size == size
            assert await read_all(await storage.stream(path)) == data

    async def test_an_object_is_visible_once_it_is_complete(
        self, storage: Storage, path: str
    ) -> None:
        upload = await storage.upload(path, part_size=self.part_size())
        await upload.write(bytes(3 * self.part_size()))
        assert [info async for info in storage.list(path)] == []
        with pytest.raises(NotFoundError):
            await storage.stat(path)
        info = await upload.complete()
        assert info == await storage.stat(path)
        assert [info.path async for info in storage.list(path)] == [path]
        with pytest.raises(ClosedError, match="start a new one"):
            await upload.write(b"d")
        await upload.abort()
        assert (await storage.stat(path)).size == 3 * self.part_size()

    async def test_an_exception_leaves_nothing(self, storage: Storage, path: str) -> None:
        with pytest.raises(ZeroDivisionError):
            async with await storage.upload(path, part_size=self.part_size()) as upload:
                await upload.write(bytes(3 * self.part_size()))
                raise ZeroDivisionError
        await self.check_nothing_is_left(storage, path)

    @pytest.mark.parametrize("turns", [0, 1, 5, 50])
    async def test_a_cancellation_leaves_nothing(
        self, storage: Storage, path: str, turns: int
    ) -> None:
        started = asyncio.Event()

        async def write() -> None:
            async with await storage.upload(path, part_size=self.part_size()) as upload:
                started.set()
                for _ in range(50):
                    await upload.write(bytes(self.part_size()))

        task = asyncio.create_task(write())
        await started.wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await self.check_nothing_is_left(storage, path)

    async def test_abort_twice(self, storage: Storage, path: str) -> None:
        upload = await storage.upload(path, part_size=self.part_size())
        await upload.write(bytes(2 * self.part_size()))
        await upload.abort()
        await upload.abort()
        with pytest.raises(ClosedError):
            await upload.complete()
        await self.check_nothing_is_left(storage, path)

    async def test_an_upload_replaces_what_was_there_at_the_end(
        self, storage: Storage, path: str
    ) -> None:
        await self.put(storage, path, b"old")  # type: ignore[attr-defined]
        upload = await storage.upload(path)
        await upload.write(b"newer")
        assert await storage.read_range(path, 0, 10) == b"old"
        await upload.complete()
        assert await storage.read_range(path, 0, 10) == b"newer"

    EXCLUSIVE: ClassVar[Sequence[int]] = (1, 0, 2)
    """The numbers of parts for which this store supports exclusive creation."""

    async def test_exclusive_creation(self, storage: Storage, path: str) -> None:
        for parts in self.EXCLUSIVE:
            name, data = f"{path}-{parts}", bytes(parts * self.part_size() + 3)
            await write_object(storage, name, data, part_size=self.part_size(), overwrite=False)
            with pytest.raises(AlreadyExistsError, match="overwrite=True") as early:
                await storage.upload(name, overwrite=False)
            assert (early.value.path, isinstance(early.value, FileExistsError)) == (name, True)
            assert (await storage.stat(name)).size == len(data)

    async def test_exclusive_creation_after_another_writer(
        self, storage: Storage, path: str
    ) -> None:
        for parts in self.EXCLUSIVE:
            name = f"{path}-{parts}"
            late = await storage.upload(name, part_size=self.part_size(), overwrite=False)
            await late.write(bytes(parts * self.part_size() + 3))
            await self.put(storage, name + "-other", b"")  # type: ignore[attr-defined]
            await self.put_beside(storage, name, b"quick")
            with pytest.raises(AlreadyExistsError) as caught:
                await late.complete()
            await late.abort()
            assert caught.value.path == name
            assert await storage.read_range(name, 0, 10) == b"quick"

    async def put_beside(self, storage: Storage, path: str, data: bytes) -> None:
        """Writes an object without ending an upload in progress."""
        await self.put(storage, path, data)  # type: ignore[attr-defined]

    def part_size(self) -> int:
        """The smallest part that the store accepts."""
        return PART

    async def check_nothing_is_left(self, storage: Storage, path: str) -> None:
        with pytest.raises(NotFoundError):
            await storage.stat(path)
        assert [info async for info in storage.list(path)] == []


class StorageTests(ReadingTests, WritingTests):
    """The whole contract."""


class RemoteTests(StorageTests):
    """For an object store that has buckets, lists page by page, and takes large parts."""

    async def test_a_missing_bucket(self, storage: Storage, place: Place) -> None:
        """Every operation names the path that was asked for, in the bucket that does not exist."""
        scheme = place.url.partition("://")[0]
        path = f"{scheme}://no-bucket-{uuid4().hex}/train-0.tfrecord"

        async def written() -> None:
            async with await storage.upload(path) as upload:
                await upload.write(b"data")

        async def listed() -> None:
            assert not [info async for info in storage.list(path)]

        calls = [storage.stat, storage.stream, partial(storage.read_range, start=3, end=9)]
        for attempt in [*(partial(call, path) for call in calls), written, listed]:
            with pytest.raises(NotFoundError, match="bucket") as caught:
                await attempt()
            assert caught.value.path == path
            assert path in str(caught.value)

    @pytest.mark.parametrize("part_size", [5 << 20, 8 << 20])
    async def test_large_parts_in_flight(self, storage: Storage, path: str, part_size: int) -> None:
        data = os.urandom(31 << 20)
        async with await storage.upload(path, part_size=part_size) as upload:
            for start in range(0, len(data), 777_777):
                await upload.write(data[start : start + 777_777])
        assert await read_all(await storage.stream(path)) == data


class NotExclusiveTests(StorageTests):
    """For a store without exclusive creation: it is an error before anything is written."""

    EXCLUSIVE = ()

    async def test_exclusive_creation(self, storage: Storage, path: str) -> None:
        with pytest.raises(UnsupportedOperationError, match="overwrite=True") as caught:
            await storage.upload(path, overwrite=False)
        assert caught.value.path == path
        assert [info async for info in storage.list(path)] == []


class ReadOnlyTests(ReadingTests):
    """For a store that cannot be listed or written: both are errors."""

    async def test_it_cannot_list_or_write(self, storage: Storage, path: str) -> None:
        with pytest.raises(UnsupportedOperationError):
            await anext(aiter(storage.list(path)))
        with pytest.raises(UnsupportedOperationError):
            await storage.upload(path)


SHARDS, RECORDS = 6, 200  # of a round trip


def shards_of(name: str) -> list[list[bytes]]:
    return [
        [b"%d.%d" % (shard, number) + bytes(number * 7) for number in range(RECORDS)]
        for shard in range(SHARDS)
    ]


async def written(url: str, options: Mapping[str, Any]) -> None:
    """Writes the shards; the last records are long enough for several parts."""
    async with streamrec.ShardWriter(
        f"{url}/x-{{shard}}.tfrecord",
        max_shard_records=RECORDS,
        storage_options=options,
        retry=QUICK_RETRIES,
    ) as writer:
        for shard in shards_of(url):
            for record in shard:
                await writer.write(record)


def check(url: str, options: Mapping[str, Any], writing: Mapping[str, Any] | None = None) -> int:
    """Writes, and reads in order, in parts and from a state; returns how often a fast path was
    disabled.
    """
    asyncio.run(written(url, writing or options))
    shards = shards_of(url)
    dataset = streamrec.TFRecordDataset(
        f"{url}/x-*.tfrecord",
        num_parallel_reads=SHARDS,
        block_length=RECORDS,
        storage_options=options,
        retry=QUICK_RETRIES,
    )
    with dataset.iterate() as records:
        found = list(records)
        [counts] = records.stats().storage.backends.values()
    assert found == [record for shard in shards for record in shard]
    assert counts.failures == 0
    assert sum(counts.retries.values()) == 0
    head, state = stop_after(dataset, 333)
    assert head + list(dataset.iterate(state)) == found

    async def pieces() -> list[bytes]:
        records: list[bytes] = []
        for start, end in ((0, 50_000), (50_000, 90_001), (90_001, None)):
            place = f"{url}/x-3.tfrecord"
            async with streamrec.open_shard(
                place, start=start, end=end, storage_options=options, retry=QUICK_RETRIES
            ) as shard:
                records += [record async for record in shard]
        return records

    assert asyncio.run(pieces()) == shards[3]
    return counts.fallbacks
