"""cache(): what is kept and when, its order and limits, resuming; files on real stores, killed
writers, two of them.
"""

import asyncio
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import streamrec
from streamrec import (
    Dataset,
    StorageError,
    StreamrecError,
    TFRecordDataset,
    TFRecordWriter,
    encode_records,
)
from streamrec.errors import CacheError
from streamrec.tfrecord import Framer
from tests.runs import until_error
from tests.servers.real import Store
from tests.servers.resuming import assert_resumes_everywhere, plain, run


class CountingSource:
    """A generator that counts how often it is called, and how many elements it made."""

    def __init__(self, kind: str = "nested", stop: int = 25) -> None:
        self.calls = 0
        self.made = 0
        self._kind = kind
        self._stop = stop

    def __call__(self) -> Iterator[Any]:
        self.calls += 1
        for number in range(self._stop):
            self.made += 1
            yield self._element(number)

    def _element(self, number: int) -> Any:
        if self._kind == "numbers":
            return number
        if self._kind == "records":
            return b"%d" % number * (number % 5)
        if self._kind == "nested":
            return {
                "x": np.full(number % 3, number),
                "y": (b"%d" % number, number, np.float32(number)),
            }
        return b"%d" % number if self._kind == "mixed" and number % 10 < 5 else f"{number}"

    @property
    def dataset(self) -> Dataset[Any]:
        return Dataset.from_generator(self)

    @property
    def elements(self) -> list[Any]:
        return [plain(self._element(number)) for number in range(self._stop)]


@pytest.fixture(params=["memory", "file"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What `cache` is given."""
    return "" if request.param == "memory" else str(tmp_path / "below" / "cache")


@pytest.mark.parametrize("kind", ["records", "nested", "mixed"])
def test_later_epochs_come_from_the_cache(kind: str, name: str) -> None:
    upstream = CountingSource(kind)
    dataset = upstream.dataset.cache(name).repeat(3)
    for _ in range(2):
        assert [plain(element) for element in dataset] == upstream.elements * 3
        assert (upstream.calls, upstream.made) == (1, 25)
    assert [
        plain(element) for element in pickle.loads(pickle.dumps(dataset))
    ] == upstream.elements * 3
    assert upstream.calls == 1  # of this copy: a pickled one has another, and no memory
    assert pickle.loads(pickle.dumps(Dataset.range(3).cache(name))) == Dataset.range(3).cache(name)


@pytest.mark.parametrize("kind", ["records", "nested", "mixed"])
def test_a_cached_dataset_resumes_everywhere(kind: str, name: str) -> None:
    assert_resumes_everywhere(CountingSource(kind, 9).dataset.cache(name).repeat(3))
    again = (
        CountingSource(kind, 9).dataset.batch(2).unbatch()
        if kind == "records"
        else CountingSource(kind, 9).dataset
    )
    name = name and name + "2"
    assert_resumes_everywhere(
        again.cache(name).enumerate().skip(2).shard(2, 1).repeat(2).take(7).padded_batch(2)
    )


def test_each_state_is_complete(tmp_path: Path) -> None:
    """States of a run with a file, resumed where the file is not there, or is another one."""
    file = tmp_path / "cache"
    dataset = CountingSource("nested", 7).dataset.cache(file).repeat(3)
    elements, states = run(dataset)
    for index, state in enumerate(states):
        kept = file.read_bytes()
        os.utime(file, ns=(index, index))  # another version
        assert run(dataset, state)[0] == elements[index:]
        assert file.read_bytes() == kept
        file.unlink()
        assert run(dataset, state)[0] == elements[index:]
        if not file.exists():  # the state was within the last pass, so there was no whole one
            list(dataset)


def test_all_epochs_are_as_the_first_one_whichever_was_cut_short(name: str) -> None:
    shuffled = Dataset.range(4).shuffle(4, seed=1)
    dataset = shuffled.cache(name).repeat(3)
    assert list(dataset) == list(shuffled) * 3
    assert_resumes_everywhere(dataset)
    assert_resumes_everywhere(
        shuffled.concatenate(shuffled.cache(name and name + "2").repeat(2)).repeat(2)
    )


def test_a_pass_that_is_not_whole_is_not_kept(name: str) -> None:
    upstream = CountingSource()
    assert [
        plain(element) for element in upstream.dataset.cache(name).take(5).repeat(2)
    ] == upstream.elements[:5] * 2
    assert upstream.calls == 2
    assert not name or not any(Path(name).parent.glob("[!.]*"))


def test_changes_of_a_consumer_do_not_show_in_later_epochs(name: str) -> None:
    dataset = Dataset.range(6).batch(2).map(lambda row: {"x": [row, (row,)]}).cache(name).repeat(3)
    found = []
    for element in dataset:
        found.append(element["x"][0].tolist())
        element["x"][0] += 100
        element["x"][1][0][:] = 7
    assert found == [[0, 1], [2, 3], [4, 5]] * 3
    rows = (
        Dataset.from_tensor_slices(np.zeros((6, 2)))
        .batch(3)
        .unbatch()
        .cache(name and name + "2")
        .repeat(2)
    )
    for row in rows:
        assert row.tolist() == [0, 0]
        if row.flags.writeable:
            row += 1


def test_a_cache_larger_than_the_budget_reads_again_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    upstream = CountingSource("records", 3000)
    dataset = upstream.dataset.cache().repeat(3)
    with caplog.at_level(logging.WARNING, "streamrec"):
        assert list(dataset.with_options(memory_budget=50_000)) == upstream.elements * 3
    assert upstream.calls == 3
    assert [record.message.split(":")[0] for record in caplog.records] == ["cache()"]
    upstream.calls = 0
    assert list(dataset.with_options(memory_budget=1_000_000)) == upstream.elements * 3
    assert upstream.calls == 1
    small = CountingSource("nested", 6).dataset.cache().repeat(3).with_options(memory_budget=2_000)
    assert_resumes_everywhere(small)


def test_two_passes_at_a_time() -> None:
    upstream = CountingSource("records")
    cached = upstream.dataset.cache()
    assert (
        list(Dataset.zip(cached, cached).repeat(2)) == [(one, one) for one in upstream.elements] * 2
    )
    assert upstream.calls == 2


def test_two_iterations_may_fill_one_cache_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "cache"
    upstream = CountingSource("nested")
    dataset = upstream.dataset.prefetch(1).cache(file).repeat(2).with_options(memory_budget=8)
    slow = dataset.iterate()
    found = [plain(next(slow))]
    assert [plain(element) for element in dataset] == upstream.elements * 2
    first = file.read_bytes()
    with caplog.at_level(logging.INFO, "streamrec"):
        found += [plain(element) for element in slow]
    assert sum("another process writes this cache" in line for line in caplog.messages) == 1
    assert found == upstream.elements * 2
    assert file.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_error_or_an_early_end_leaves_no_file(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    failing = Dataset.range(50_000).map(lambda number: 1 // (int(number) - 40_000)).cache(file)
    assert len(until_error(failing, ZeroDivisionError)[0]) == 40_000
    with CountingSource().dataset.cache(file).with_options(memory_budget=8).iterate() as elements:
        next(elements)
    assert list(tmp_path.iterdir()) == []


def test_an_element_that_cannot_be_stored_comes_before_its_error(tmp_path: Path) -> None:
    dataset = Dataset.range(1).map(lambda number: {"x": {1, 2}}).cache(tmp_path / "cache")
    assert until_error(dataset, TypeError, r"a builtins\.set cannot be stored")[0] == [
        {"x": {1, 2}}
    ]
    assert list(tmp_path.iterdir()) == []
    assert list(Dataset.range(1).map(lambda number: {1, 2}).cache().repeat(2)) == [{1, 2}] * 2


def test_another_pipelines_cache_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    assert len(list(Dataset.range(5).cache(file))) == 5
    with pytest.raises(
        CacheError, match=r"with Range\(start=0, stop=5.* where this one has Range\(start=0, stop=6"
    ):
        list(Dataset.range(6).cache(file))
    with pytest.raises(CacheError, match="with nothing where this one has Batch"):
        list(Dataset.range(5).batch(2).cache(file))
    assert list(Dataset.range(5).cache(file).batch(9).map(len)) == [5]


@pytest.mark.parametrize("records", [[], [b""], [b"H{"], [b"H[]"], [b"x"]])
def test_a_file_that_is_not_a_cache_is_refused(tmp_path: Path, records: list[bytes]) -> None:
    file = tmp_path / "cache"
    file.write_bytes(encode_records(records))
    with pytest.raises(
        CacheError, match=r"neither cache\(\) nor save\(\) of streamrec wrote this file"
    ):
        list(Dataset.range(5).cache(file))


def test_a_cache_without_its_end_is_an_error_after_its_elements(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    list(Dataset.range(5).cache(file))
    records = list(TFRecordDataset(str(file)))
    file.write_bytes(encode_records(records[:-1]))
    assert until_error(Dataset.range(5).cache(file), CacheError, "before its last record")[0] == [
        0,
        1,
        2,
        3,
        4,
    ]
    file.write_bytes(encode_records([b'H{"format": "streamrec cache", "version": 2}']))
    with pytest.raises(CacheError, match="version 2, not 1"):
        list(Dataset.range(5).cache(file))


PROGRAM = textwrap.dedent("""
    import os, sys
    from tests.pipeline.sources.test_cache import slowly
    from streamrec import Dataset

    def waiting(stop):
        for number, element in enumerate(slowly(stop)):
            if number == stop - 10:
                os.write(1, b"there")
                os.read(0, 1)  # until it is killed
            yield element

    waiting.__module__, waiting.__qualname__ = slowly.__module__, slowly.__qualname__
    for element in Dataset.from_generator(waiting, (30,)).cache(sys.argv[1]):
        pass
""")


def slowly(stop: int) -> Iterator[Any]:
    """Elements of a megabyte, so that some of them have reached the file."""
    for number in range(stop):
        yield np.full(1 << 17, number)


def test_a_process_that_is_killed_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    file = tmp_path / "cache"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"there"
        process.send_signal(signal.SIGKILL)
    assert not file.exists()
    dataset = (
        Dataset.from_generator(slowly, (30,)).cache(file).map(lambda row: int(row.sum()) >> 17)
    )
    assert list(dataset) == list(range(30)) == list(dataset)
    assert [path.name for path in tmp_path.iterdir()] == [
        "cache"
    ]  # what was left unfinished was ended, too


def test_on_a_filesystem_that_cannot_promise_not_to_replace(tmp_path: Path) -> None:
    filesystem = DirFileSystem(path=str(tmp_path), fs=LocalFileSystem())
    upstream = CountingSource("nested")
    dataset = upstream.dataset.cache("/below/cache", filesystem=filesystem).repeat(4)
    assert [plain(element) for element in dataset] == upstream.elements * 4
    assert upstream.calls == 1
    assert (tmp_path / "below" / "cache").exists()


def test_two_iterations_may_fill_one_cache_object_on_seaweedfs(
    s3_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several parts each: who begins last ends the upload of the other, who goes on without
    it.
    """
    url = f"{s3_store.url}/caching/two"
    dataset = Dataset.from_generator(slowly, (40,)).cache(url, storage_options=s3_store.options)
    dataset = dataset.with_options(memory_budget=8).map(lambda row: int(row.sum()) >> 17).repeat(2)
    slow = dataset.iterate()
    found = [next(slow) for _ in range(20)]
    with caplog.at_level(logging.INFO, "streamrec"):
        assert list(dataset) == list(range(40)) * 2
        assert found + list(slow) == list(range(40)) * 2
    assert [
        "another writer began" in line for line in caplog.messages if "writes this cache" in line
    ] == [True]


def records_of(path: Path) -> list[bytes]:
    Dataset.from_tensor_slices({"a": [1, 2, 3], "b": ["x", "y", "z"]}).save(str(path))
    return list(Framer().feed(path.read_bytes()))


def load(path: Path, records: list[bytes]) -> list[Any]:
    path.write_bytes(streamrec.encode_records(records))
    return list(Dataset.load(str(path)))


def test_a_cache_file_with_a_deeply_nested_head_is_refused(tmp_path: Path) -> None:
    head, *rest = records_of(tmp_path / "a")
    with pytest.raises(StreamrecError):
        load(tmp_path / "b", [head[:1] + b"[" * 200_000, *rest])


def test_blocks_that_are_not_elements(tmp_path: Path) -> None:
    head, block, *rest = records_of(tmp_path / "a")
    drawn = random.Random(3)
    for _ in range(200):
        data = bytearray(block)
        for _ in range(drawn.choice([1, 2, 4])):
            data[drawn.randrange(len(data))] = drawn.choice(b'0123456789[]"\x00\xff')
        with suppress(StreamrecError):
            load(tmp_path / "b", [head, bytes(data), *rest])


def written(name: str) -> None:
    with TFRecordWriter(name) as writer:
        writer.write(b"a")


@pytest.mark.parametrize(
    "name", ["/tmp/a\0b", "/tmp/a\ud800", "http://127.0.0.1:1/\0", "s3://bucket/\ud800"]
)
@pytest.mark.parametrize(
    "call",
    [
        lambda name: list(TFRecordDataset(name)),
        lambda name: list(TFRecordDataset([name, name], num_parallel_reads=2)),
        lambda name: list(Dataset.range(3).cache(name)),
        lambda name: Dataset.range(3).save(name),
        lambda name: list(Dataset.load(name)),
        lambda name: asyncio.run(streamrec.verify(f"{name}.json")),
        lambda name: asyncio.run(streamrec.RecordSource.open(name)),
        written,
    ],
)
def test_names_that_no_store_takes(call: Callable[[str], Any], name: str) -> None:
    with pytest.raises(StorageError, match="this name"):
        call(name)


READERS = [
    lambda shards, rank: shards.distribute().with_options(rank=rank, world_size=2),
    lambda shards, rank: shards.distribute(rank=rank, world_size=2),
]


@pytest.mark.parametrize("assign", READERS, ids=["options", "distribute"])
def test_each_reader_has_a_file_of_its_own(assign: Callable[..., Any], tmp_path: Path) -> None:
    for shard in range(4):
        (tmp_path / f"{shard}.tfrecord").write_bytes(encode_records([b"%d" % shard] * 5))
    shards = TFRecordDataset(str(tmp_path / "*.tfrecord"))
    ranks = [assign(shards, rank).cache(tmp_path / "cache") for rank in range(2)]
    first, later = ([list(rank) for rank in ranks] for _ in range(2))
    assert first == later
    assert sorted(first[0] + first[1]) == sorted(b"%d" % (number % 4) for number in range(20))
    names = sorted(path.name for path in tmp_path.glob("cache*"))
    assert names == ["cache-00000-of-00002", "cache-00001-of-00002"]
    again = [list(assign(shards, rank).cache(tmp_path / "cache")) for rank in range(2)]
    assert again == first
    alone = shards.distribute().with_options(rank=0, world_size=1).cache(tmp_path / "cache")
    assert sorted(alone) == sorted(first[0] + first[1])  # another number of readers: other files


def test_ranks_with_a_global_shuffle_do_not_share_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(encode_records([b"%d" % n for n in range(30)]))
    index = str(tmp_path / "index")
    streamrec.write_index_sync(str(tmp_path / "a.tfrecord"), index)
    shards = TFRecordDataset(str(tmp_path / "a.tfrecord"))
    for _ in range(2):
        got = [
            list(
                shards.global_shuffle(1, index=index, rank=rank, world_size=2).cache(
                    tmp_path / "cache"
                )
            )
            for rank in range(2)
        ]
        assert sorted(got[0] + got[1], key=int) == [b"%d" % number for number in range(30)]


def test_readers_of_the_same_elements_share_one_file(tmp_path: Path) -> None:
    upstream = CountingSource("records")
    ranks = [
        upstream.dataset.with_options(rank=rank, world_size=2).cache(tmp_path / "cache")
        for rank in range(2)
    ]
    assert list(ranks[0]) == list(ranks[1])
    assert upstream.calls == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
