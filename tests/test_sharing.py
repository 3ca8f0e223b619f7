"""Objects that several tasks or threads share: each record exactly once, or an error at once;
nothing lost in silence.

`cancelled_everywhere` runs a coroutine again and again and cancels it at its first, second, third
... suspension, so that a cancellation at every await is tried.
"""

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import streamrec
from streamrec import Dataset, Frames, ShardWriter, TFRecordDataset, TFRecordWriter
from streamrec.errors import ClosedError
from tests.runs import write_shards

TASKS = 8


def on_disk(folder: Path) -> list[bytes]:
    """All records of a folder's shards, in the order of their names; nothing else may lie there."""
    names = sorted(path.name for path in folder.iterdir())
    assert all(name.endswith(".tfrecord") for name in names), names
    return [record for name in names for record in TFRecordDataset(str(folder / name))]


def in_order(records: list[bytes]) -> bool:
    """Whether the records of each task (b"task:number") come in the order of its calls."""
    last: dict[bytes, int] = {}
    for record in records:
        task, _, number = record.partition(b":")
        if last.get(task, -1) >= int(number):
            return False
        last[task] = int(number)
    return True


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize(
    ("limits", "count", "padding"),
    [
        ({}, 200, 0),
        ({"max_shard_records": 37}, 200, 0),
        ({"max_shard_bytes": 10 << 20}, 20, 300_000),
    ],
)
async def test_tasks_share_a_shard_writer(
    tmp_path: Path, compression: str, limits: dict[str, int], count: int, padding: int
) -> None:
    """As request handlers of an async service do; also while blocks are on their way to the
    store.
    """
    writer = ShardWriter(f"{tmp_path}/{{shard:03d}}.tfrecord", compression, **limits)  # type: ignore[arg-type]

    async def handle(task: int) -> None:
        for number in range(count):
            await writer.write(b"%d:%d" % (task, number) + b" " * padding)

    async with writer:
        await asyncio.gather(*(handle(task) for task in range(TASKS)))
    records = on_disk(tmp_path)
    assert len(records) == len(set(records)) == TASKS * count
    assert in_order(records)
    assert sum(shard.records for shard in writer.shards) == len(records)


@pytest.mark.parametrize("limit", [None, 1100])
async def test_tasks_share_write_batch(tmp_path: Path, limit: int | None) -> None:
    """The records of one batch stay together."""
    batches = [[b"%d:%d" % (task, number) for number in range(500)] for task in range(TASKS)]
    async with ShardWriter(f"{tmp_path}/{{shard:03d}}.tfrecord", max_shard_records=limit) as writer:
        frames = (writer.write_batch(Frames.of(batch)) for batch in batches)
        lists = (writer.write_batch(batch) for batch in batches)
        await asyncio.gather(*frames, *lists)
    records = on_disk(tmp_path)
    assert records == [
        record for batch in batches * 2 for record in batch
    ]  # in the order of the calls


async def test_closing_a_writer_during_its_use(tmp_path: Path) -> None:
    """What was accepted before `close` is in the shard; what comes after it is refused; nothing
    else happens.
    """
    accepted: list[bytes] = []

    async def handle(task: int) -> None:
        for number in range(100_000):
            record = b"%d:%d" % (task, number) + b" " * 1000
            try:
                await writer.write(record)
            except ClosedError:
                return
            accepted.append(record)
            if len(accepted) == 5000:
                enough.set()
            await asyncio.sleep(0)

    enough = asyncio.Event()
    async with ShardWriter(f"{tmp_path}/x.tfrecord", "GZIP") as writer:
        handlers = [asyncio.create_task(handle(task)) for task in range(TASKS)]
        await enough.wait()
        await asyncio.gather(writer.close(), writer.close())
    await asyncio.gather(*handlers)
    assert sorted(on_disk(tmp_path)) == sorted(accepted)


async def test_aborting_a_writer_during_its_use(tmp_path: Path) -> None:
    writer = await ShardWriter(f"{tmp_path}/x.tfrecord", "GZIP").__aenter__()

    async def handle() -> None:
        while True:
            await writer.write(bytes(100_000))
            await asyncio.sleep(0)

    handlers = [asyncio.create_task(handle()) for _ in range(TASKS)]
    for _ in range(50):
        await asyncio.sleep(0)
    await writer.abort()
    results = await asyncio.gather(*handlers, return_exceptions=True)
    assert [type(result) for result in results] == [ClosedError] * TASKS
    assert on_disk(tmp_path) == []


class Stepped:
    """Awaits a coroutine, and cancels the task that does so where it is suspended for the n-th
    time.
    """

    def __init__(self, work: Coroutine[Any, Any, None], cancel_at: int) -> None:
        self.work = work
        self.cancel_at = cancel_at
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, None]:
        advance: Callable[[], Any] = partial(self.work.send, None)
        task = asyncio.current_task()
        assert task is not None
        while True:
            try:
                waited = advance()
            except StopIteration:
                return
            self.steps += 1
            if self.steps == self.cancel_at:
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield waited
            except BaseException as error:
                advance = partial(self.work.throw, error)
            else:
                advance = partial(self.work.send, None)


async def cancelled_everywhere(make: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs `make()` and cancels it at its first suspension, then again at its second, until it ends
    before that.
    """
    for cancel_at in itertools.count(1):
        stepped = Stepped(make(), cancel_at)

        async def run(work: Stepped = stepped) -> None:
            await work

        await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
        if stepped.steps < cancel_at:
            return


@pytest.mark.parametrize("compression", ["", "GZIP"])
async def test_a_cancelled_write_is_whole_or_not_there(tmp_path: Path, compression: str) -> None:
    """A cancellation at every await of `write`, between other writes to the same shard."""
    marks = iter(range(10**6))
    accepted: list[bytes] = []
    tried: list[bytes] = []
    record = bytes(range(256)) * 2000  # two make a block

    async with ShardWriter(f"{tmp_path}/x.tfrecord", compression) as writer:

        async def write() -> None:
            marked = b"%d:" % next(marks) + record
            tried.append(marked)
            await writer.write(marked)
            accepted.append(marked)

        async def several() -> None:
            for _ in range(3):
                await write()

        await cancelled_everywhere(several)
        await write()
    records = on_disk(tmp_path)
    assert len(records) == len(set(records))
    assert set(accepted) <= set(records) <= set(tried)
    assert records == [each for each in tried if each in set(records)]


async def test_cancelled_batches_are_whole_or_not_there(tmp_path: Path) -> None:
    """A batch that was begun comes as a whole, though its caller has gone."""
    numbers = iter(range(10**6))
    async with ShardWriter(f"{tmp_path}/{{shard:03d}}.tfrecord", max_shard_records=7) as writer:

        async def write() -> None:
            batch = next(numbers)
            await writer.write_batch([b"%d:%d" % (batch, number) for number in range(20)])

        await cancelled_everywhere(write)
        await write()
    counts = Counter(record.partition(b":")[0] for record in on_disk(tmp_path))
    assert set(counts.values()) == {20}


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_threads_share_a_tfrecord_writer(tmp_path: Path, compression: str) -> None:
    """Each record once, and those of one thread in order."""
    with TFRecordWriter(str(tmp_path / "x.tfrecord"), compression) as writer:

        def handle(task: int) -> None:
            for number in range(5_000):
                writer.write(b"%d:%d" % (task, number))

        with ThreadPoolExecutor(TASKS) as pool:
            list(pool.map(handle, range(TASKS)))
    records = on_disk(tmp_path)
    assert len(records) == len(set(records)) == TASKS * 5_000
    assert in_order(records)


def test_threads_close_a_tfrecord_writer_during_its_use(tmp_path: Path) -> None:
    accepted: list[list[bytes]] = [[] for _ in range(4)]
    begun = threading.Barrier(5)
    writer = TFRecordWriter(str(tmp_path / "x.tfrecord"))

    def handle(task: int) -> None:
        begun.wait()
        for number in range(10**6):
            record = b"%d:%d" % (task, number)
            try:
                writer.write(record)
            except ClosedError:
                return
            accepted[task].append(record)

    with ThreadPoolExecutor(4) as pool:
        handlers = pool.map(handle, range(4))
        begun.wait()
        while sum(map(len, accepted)) < 50_000:
            pass
        writer.close()
        list(handlers)
    assert Counter(on_disk(tmp_path)) == Counter(record for each in accepted for record in each)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three shards of 10,000 records in all."""
    folder = tmp_path_factory.mktemp("numbered")
    write_shards(
        folder, [[b"%d" % number for number in range(shard, 10_000, 3)] for shard in range(3)]
    )
    return f"{folder}/*"


ALL_RECORDS = sorted(b"%d" % number for number in range(10_000))


async def taken(iterator: Any) -> list[bytes]:
    return [record async for record in iterator]


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_tasks_share_an_async_iterator(numbered: str) -> None:
    """A pool of workers takes each record once, and each sees the end."""
    iterator, found = TFRecordDataset(numbered).aiterate(), list[bytes]()

    async def worker() -> None:
        found.extend(await taken(iterator))

    async with anyio.create_task_group() as tasks:
        for _ in range(TASKS):
            tasks.start_soon(worker)
    assert sorted(found) == ALL_RECORDS
    assert await taken(iterator) == []


async def test_states_between_several_tasks(numbered: str) -> None:
    """A state is the position after all that was handed out, whichever task took it."""
    dataset = TFRecordDataset(numbered)
    iterator = dataset.aiterate()
    some: list[bytes] = []

    async def worker() -> None:
        async for record in iterator:
            some.append(record)
            await asyncio.sleep(0)
            if len(some) >= 4321:
                return

    await asyncio.gather(*(worker() for _ in range(TASKS)))
    state = iterator.state_dict()
    await iterator.aclose()
    rest = list(dataset.iterate(state))
    assert sorted(some + rest) == ALL_RECORDS


def test_threads_share_a_sync_iterator(numbered: str) -> None:
    parts: list[list[bytes]] = [[] for _ in range(TASKS)]
    with TFRecordDataset(numbered).iterate() as iterator:

        def take(part: list[bytes]) -> None:
            part.extend(iterator)

        with ThreadPoolExecutor(TASKS) as pool:
            list(pool.map(take, parts))
    assert sorted(record for part in parts for record in part) == ALL_RECORDS


async def test_a_cancelled_anext_of_a_dataset_loses_nothing(numbered: str) -> None:
    found: list[bytes] = []
    iterator = TFRecordDataset(numbered).aiterate()

    async def some() -> None:
        for _ in range(500):
            found.append(await anext(iterator))

    await cancelled_everywhere(some)
    found += [record async for record in iterator]
    assert sorted(found) == ALL_RECORDS


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_trio_loses_nothing_where_anext_is_cancelled() -> None:
    """There, a thread waits for the next element; it takes none when no task waits any more."""

    def slow() -> Any:
        for number in range(200):
            ready.wait(0.002)
            yield b"%d" % number

    ready, found = threading.Event(), list[bytes]()
    iterator = Dataset.from_generator(slow).aiterate()
    while len(found) < 100:
        with anyio.move_on_after(0.0005):
            found.append(await anext(iterator))
    assert found + await taken(iterator) == [b"%d" % number for number in range(200)]


@pytest.fixture(scope="module", params=["", "GZIP", "ZLIB"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("shard") / "x.tfrecord"
    with TFRecordWriter(str(path), request.param) as writer:
        for number in range(10_000):
            writer.write(b"%d" % number + b" " * (number % 500))
    return str(path)


WHOLE_SHARD = [b"%d" % number + b" " * (number % 500) for number in range(10_000)]


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_shard_after_a_timeout(shard: str, blocks: bool) -> None:
    """`async for` goes on where an `anext` that was cancelled left off, over one iterator and over
    several.
    """
    async with streamrec.open_shard(shard, block_bytes=64 << 10) as reader:
        found: list[bytes] = []
        frames = reader.frames()

        async def some() -> None:
            for _ in range(3 if blocks else 200):
                if blocks:
                    found.extend(await anext(frames))
                found.append(await anext(aiter(reader)))

        await cancelled_everywhere(some)
        if blocks:
            found += [record async for part in frames for record in part]
        found += [record async for record in reader]
        assert await reader.read() is None
    assert found == WHOLE_SHARD


async def test_tasks_share_a_shard(shard: str) -> None:
    async with streamrec.open_shard(shard, block_bytes=64 << 10) as reader:
        parts = await asyncio.gather(*(taken(reader) for _ in range(TASKS)))
    assert sorted(record for part in parts for record in part) == sorted(WHOLE_SHARD)
    assert all(part == sorted(part, key=WHOLE_SHARD.index) for part in parts[:1])


async def test_closing_a_shard_during_its_use(shard: str) -> None:
    async with streamrec.open_shard(shard, block_bytes=64 << 10) as reader:
        readers = [asyncio.create_task(taken(reader)) for _ in range(TASKS)]
        await asyncio.sleep(0)
        await reader.aclose()
        results = await asyncio.gather(*readers, return_exceptions=True)
    assert {type(result) for result in results} == {ClosedError}


@pytest.mark.parametrize(
    "public", [ShardWriter, TFRecordWriter, streamrec.shards.ShardReader, streamrec.Dataset]
)
def test_docstrings_say_what_may_share_it(public: type) -> None:
    assert public.__doc__ is not None
    assert "Sharing:" in public.__doc__
