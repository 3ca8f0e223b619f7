"""RecordSource: a sequence of records, for sync and async callers, threads, forks and pickles; few
requests.
"""

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec import (
    CorruptRecordError,
    Frames,
    RecordSource,
    RetryPolicy,
    encode_records,
    write_index_sync,
)
from streamrec.errors import NotFoundError, ObjectChangedError
from tests.runs import flip_bit
from tests.servers.faults import Faults
from tests.servers.objectstore import ObjectStore
from tests.shards.index.test_write_index import records_of, write_shards_of

COUNTS = [1500, 0, 3, 2048, 40]


RECORDS = records_of(COUNTS, 600)
ALL = [record for part in RECORDS for record in part]


def build_index(folder: Path) -> str:
    write_index_sync(write_shards_of(folder, RECORDS), f"{folder}/x.index")
    return f"{folder}/x.index"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_index(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def source(index: str) -> RecordSource:
    return RecordSource(index)


def test_a_record_source_is_a_sequence(source: RecordSource) -> None:
    assert len(source) == len(ALL)
    assert (source[0], source[-1], source[np.int64(1502)]) == (ALL[0], ALL[-1], ALL[1502])
    assert list(source) == ALL
    assert "RecordSource(" in repr(source)
    assert f"{len(ALL):,} records in 5 shards" in repr(source)


@settings(max_examples=60, deadline=None)
@given(st.slices(len(ALL)))
def test_a_slice_gives_frames(source: RecordSource, part: slice) -> None:
    found = source[part]
    assert isinstance(found, Frames)
    assert list(found) == ALL[part]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-len(ALL), len(ALL) - 1), max_size=40))
def test_many_numbers_give_their_records_in_order(source: RecordSource, numbers: list[int]) -> None:
    assert list(source.__getitems__(numbers)) == [ALL[number] for number in numbers]
    assert list(source.__getitems__(np.array(numbers, np.int64))) == [
        ALL[number] for number in numbers
    ]


@pytest.mark.parametrize("number", [len(ALL), -len(ALL) - 1, 1 << 62])
def test_a_number_out_of_range_is_an_error(source: RecordSource, number: int) -> None:
    for ask in (lambda: source[number], lambda: source.__getitems__([0, number])):
        with pytest.raises(IndexError, match=f"record {number:,} of {len(ALL):,}"):
            ask()


@pytest.mark.parametrize("numbers", [[0.5], [True], ["1"], 3, [[1]], None])
def test_a_value_that_is_not_a_number_is_an_error(source: RecordSource, numbers: Any) -> None:
    with pytest.raises(TypeError, match="whole numbers"):
        source.__getitems__(numbers)
    with pytest.raises(TypeError, match="whole number or a slice"):
        source["1"]  # type: ignore[call-overload]


async def test_async_callers_share_the_connections_of_their_loop(index: str) -> None:
    """Sync callers have others."""
    source = await RecordSource.open(index)
    numbers = [random.Random(seed).choices(range(len(ALL)), k=9) for seed in range(30)]
    found = await asyncio.gather(*map(source.get, numbers))
    assert [list(frames) for frames in found] == [
        [ALL[number] for number in part] for part in numbers
    ]
    assert source[7] == ALL[7]
    source.close()
    assert source[7] == ALL[7]
    await source.aclose()
    assert list(await source.get([3])) == [ALL[3]]


def test_threads_may_share_a_source(source: RecordSource) -> None:
    def work(seed: int) -> None:
        numbers = random.Random(seed).choices(range(len(ALL)), k=50)
        found = [source[number] for number in numbers[:10]] + list(
            source.__getitems__(numbers[10:])
        )
        assert found == [ALL[number] for number in numbers]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def read_in_child(source: RecordSource, numbers: list[int], answers: Any) -> None:
    answers.put(list(source.__getitems__(numbers)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")
def test_a_source_works_in_child_processes(source: RecordSource, method: str) -> None:
    """Also if it was used before the fork; the parent can still use it."""
    assert source[1] == ALL[1]
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=read_in_child, args=(source, [2, 3000], answers))
    child.start()
    assert answers.get() == [ALL[2], ALL[3000]]
    child.join()
    assert child.exitcode == 0
    assert source[4] == ALL[4]


def test_shards_that_changed_are_refused(tmp_path: Path) -> None:
    """Only reads of a changed shard fail; the message has the command that helps."""
    index = build_index(tmp_path)
    source = RecordSource(index)
    (tmp_path / "s-3").write_bytes(encode_records(RECORDS[3][::-1]))
    assert source[0] == ALL[0]
    with pytest.raises(
        ObjectChangedError, match=r"s-3, bytes .*streamrec index --update .*x\.index"
    ):
        source[2000]
    (tmp_path / "s-2").unlink()
    with pytest.raises(NotFoundError, match=r"s-2, bytes .*x\.index names this shard"):
        source[1501]
    write_index_sync([f"{tmp_path}/s-{number}" for number in (0, 1, 3, 4)], index, update=True)
    with pytest.raises(ObjectChangedError):
        source[2000]
    assert RecordSource(index)[1500] == RECORDS[3][-1]


def test_a_damaged_record_is_an_error_only_if_it_is_read(tmp_path: Path) -> None:
    index = build_index(tmp_path)
    place = len(encode_records(RECORDS[0][:700])) + 14
    flip_bit(tmp_path / "s-0", place)
    write_index_sync(f"{tmp_path}/s-*", index)
    source = RecordSource(index)
    assert source[699] == ALL[699]
    with pytest.raises(CorruptRecordError) as caught:
        source[690:710]
    assert (caught.value.path, caught.value.offset, caught.value.record) == (
        f"{tmp_path}/s-0",
        place - 14,
        700,
    )
    unverified = RecordSource(index, verify=False)
    assert unverified[700] != ALL[700]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    (tmp_path / "bucket").mkdir()
    build_index(tmp_path / "bucket")
    (tmp_path / "bucket" / "x.index").unlink()
    with ObjectStore(tmp_path) as store:
        yield store


def source_of(store: ObjectStore, folder: Path, **more: Any) -> RecordSource:
    return RecordSource(
        f"{folder}/x.index", shard_root="s3://bucket", storage_options=store.options(), **more
    )


@pytest.fixture
def remote(store: ObjectStore, tmp_path: Path) -> RecordSource:
    """Shards in the store; it takes no writes, so the index is a file."""
    write_index_sync("s3://bucket/s-*", f"{tmp_path}/x.index", storage_options=store.options())
    source = source_of(store, tmp_path)
    store.wait_idle()
    store.clear()
    return source


def bytes_by_object(store: ObjectStore) -> list[tuple[str, int]]:
    """The objects that were read, with the number of bytes."""
    store.wait_idle()
    return sorted((entry.object, entry.sent) for entry in store.log if entry.method == "GET")


def test_records_near_each_other_are_one_request(store: ObjectStore, remote: RecordSource) -> None:
    assert list(remote.__getitems__([30, 10, 20, 10])) == [ALL[30], ALL[10], ALL[20], ALL[10]]
    assert bytes_by_object(store) == [("bucket/s-0", len(encode_records(ALL[10:31])))]
    store.clear()
    assert list(remote.__getitems__([1, 1501, 1600])) == [ALL[1], ALL[1501], ALL[1600]]
    assert bytes_by_object(store) == [
        (f"bucket/s-{shard}", len(encode_records([ALL[number]])))
        for shard, number in ((0, 1), (2, 1501), (3, 1600))
    ]


def test_opening_a_source_reads_no_shard(store: ObjectStore, remote: RecordSource) -> None:
    assert len(remote) == len(ALL)
    assert bytes_by_object(store) == []


def test_a_storm_changes_no_byte(store: ObjectStore, remote: RecordSource, tmp_path: Path) -> None:
    retry = RetryPolicy(attempts=30, backoff_base=0.01, backoff_cap=0.05, stall_timeout=0.5)
    source = source_of(store, tmp_path, retry=retry, parallel=8)
    lies = {"truncate": 0.1, "wrong_content_range": 0.1, "ignore_range": 0.1}
    store.faults = Faults(
        seed=3, first_byte=0, jitter=0, reset=0.1, cut=0.1, unavailable=0.1, stall=0.05, **lies
    )
    draw = random.Random(3)
    for _ in range(16):
        numbers = draw.sample(range(len(ALL)), 20)
        assert list(source.__getitems__(numbers)) == [ALL[number] for number in numbers]
    assert store.counters.by_fault.keys() >= {"reset", "cut", "unavailable", "stall", *lies}
