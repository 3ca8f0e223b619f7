"""The failure contract of the driver (top of `pipeline/engine/run.py`), for whole pipelines before real stores.

Each way in which a run ends is gone in a process of its own, which counts what is left: threads, tasks of the loop,
files and sockets. Errors are looked at here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamrec import CorruptRecordError, Dataset, TFRecordDataset, TFRecordWriter, encode_records
from tests.effort import SOON, thorough
from tests.pipeline.small_shards import SHARDS
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.servers.real import Store

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("scripts") / "failures.py"
NOTHING: list[list[str]] = [[], [], []]
"""Tasks, threads, files."""

SYNC = [
    *("breaks", "interrupts", "leaves_a_long_chunk"),
    *thorough("ends", "raises", "stage_raises", "closes", "collected"),
]
ASYNC = ["async_stage_raises", "async_cancel", *thorough("async_break", "async_end", "async_close")]
EXITS = ["exits_with_progress_and_trace", *thorough("exits")]

RECORDS = [b"%05d" % number for number in range(500)]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """A store whose bodies take their time, so that runs are left with requests under way."""
    root = tmp_path_factory.mktemp("store")
    (root / "bucket").mkdir()
    for shard in range(6):
        (root / "bucket" / f"s-{shard}").write_bytes(encode_records([bytes(2000), *RECORDS] * 20))
    with ObjectStore(root, replace(NO_FAULTS, first_byte=0.01, rate=2e6)) as store:
        yield "s3://bucket/s-*", {"endpoint_url": store.url, "anon": True}


@pytest.fixture(scope="module")
def seaweed(s3_store: Store) -> tuple[str, dict[str, Any]]:
    for shard in range(3):
        url = f"{s3_store.url}/contract/s-{shard}"
        with TFRecordWriter(url, storage_options=s3_store.options) as writer:
            for record in RECORDS * 4:
                writer.write(record)
    return f"{s3_store.url}/contract/s-*", dict(s3_store.options)


def gone(way: str, place: tuple[str, dict[str, Any]]) -> tuple[Any, str]:
    """What the script says, which must end well, and what it wrote to standard error."""
    url, options = place
    command = [sys.executable, "-X", "faulthandler", "-W", "error", str(SCRIPT), way, url, json.dumps(options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("way", SYNC + ASYNC)
def test_nothing_is_left_of_it(way: str, simulated: tuple[str, dict[str, Any]]) -> None:
    assert gone(way, simulated) == (NOTHING, "")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, Any]]]:
    """A store of shards that are each read whole, by a response that takes its time."""
    root = tmp_path_factory.mktemp("short")
    (root / "bucket").mkdir()
    for shard in range(60):
        (root / "bucket" / f"s-{shard:02}").write_bytes(encode_records(RECORDS[:50]))
    with ObjectStore(root, replace(NO_FAULTS, first_byte=0.01, jitter=0.1)) as store:
        yield "s3://bucket/s-*", {"endpoint_url": store.url, "anon": True}


@pytest.mark.parametrize("way", ["breaks", "async_cancel", *thorough("interrupts", "closes", "collected")])
def test_nothing_is_left_of_short_shards(way: str, short: tuple[str, dict[str, Any]]) -> None:
    assert gone(way, short) == (NOTHING, "")


@pytest.mark.parametrize("way", ["interrupts", *thorough("breaks", "closes", "async_cancel")])
def test_nothing_is_left_of_it_before_seaweedfs(way: str, seaweed: tuple[str, dict[str, Any]]) -> None:
    assert gone(way, seaweed) == (NOTHING, "")


@pytest.mark.parametrize("way", EXITS)
def test_the_interpreter_leaves_in_time(way: str, simulated: tuple[str, dict[str, Any]]) -> None:
    seconds, errors = gone(way, simulated)
    assert seconds < SOON
    if "progress" in way:
        assert "streamrec: 1 elements" in errors
    else:
        assert errors == ""


# An error arrives once, behind what came before it, with its traceback and its place.


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for shard, count in enumerate(SHARDS):
        (tmp_path / f"s-{shard}").write_bytes(encode_records([b"%d.%d" % (shard, index) for index in range(count)]))
    return [str(tmp_path / f"s-{shard}") for shard in range(len(SHARDS))]


def fails_at_20(record: bytes) -> bytes:
    if record == b"4.20":
        raise ZeroDivisionError("here")
    return record


Chain = Callable[[Dataset[Any]], Dataset[Any]]
FAILING: list[tuple[str, Chain]] = [
    ("map", lambda records: records.map(fails_at_20)),
    ("filter", lambda records: records.filter(fails_at_20)),
    ("take_while", lambda records: records.take_while(fails_at_20)),
]
AROUND: list[Chain] = [
    lambda elements: elements,
    lambda elements: elements.prefetch().repeat(2),
    lambda elements: elements.concatenate(Dataset.range(3)),
    lambda elements: Dataset.zip(elements, Dataset.range(10**9)),
]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("verb", "failing"), FAILING)
@pytest.mark.parametrize("cycle", [1, 3])
def test_an_error_of_a_stage_arrives_once_with_its_place(
    files: list[str], verb: str, failing: Chain, around: Chain, cycle: int
) -> None:
    iterator = around(failing(TFRecordDataset(files, num_parallel_reads=cycle))).iterate()
    found = []
    with pytest.raises(ZeroDivisionError) as caught:
        for element in iterator:
            found.append(element)
    assert "fails_at_20" in [entry.name for entry in caught.traceback]
    (note,) = caught.value.__notes__
    number = len(found)
    assert note == f"in {verb}: your function fails_at_20, element {number} of this run: {files[4]}, record 20"
    next(iterator)


@pytest.mark.parametrize("around", AROUND)
def test_an_error_of_parallel_calls_or_of_a_generator(files: list[str], around: Chain) -> None:
    parallel = around(TFRecordDataset(files).map(fails_at_20, num_parallel_calls=2))
    with pytest.raises(ZeroDivisionError) as caught:
        list(parallel)
    place = f"element 40 of this run: {files[4]}, record 20"
    assert caught.value.__notes__ == [f"in map: your function fails_at_20, {place}"]

    def numbers() -> Iterator[int]:
        yield 1
        raise LookupError

    with pytest.raises(LookupError) as lost:
        list(around(Dataset.from_generator(numbers)))
    (note,) = lost.value.__notes__
    assert note.startswith("in from_generator: your function test_an_error")
    assert note.endswith("numbers, after 1 elements of this run")


def test_an_error_after_a_batch_has_the_place_of_the_first_record(files: list[str]) -> None:
    def fails(frames: Any) -> None:
        if frames[0] == b"4.12":
            raise LookupError

    with pytest.raises(LookupError) as caught:
        list(TFRecordDataset(files[4]).batch(4).map(fails))
    assert caught.value.__notes__[0].endswith(f"element 3 of this run: {files[4]}, record 12")


def test_an_error_that_has_no_place_in_a_shard(files: list[str]) -> None:
    records = list(TFRecordDataset(files))
    with pytest.raises(ZeroDivisionError) as caught:
        list(Dataset.from_generator(lambda: records).batch(7).unbatch().map(fails_at_20))
    assert caught.value.__notes__ == ["in map: your function fails_at_20, element 40 of this run"]


def test_an_error_of_the_data_has_its_own_place(files: list[str]) -> None:
    data = bytearray(Path(files[2]).read_bytes())
    data[-6] ^= 1
    Path(files[2]).write_bytes(data)
    with pytest.raises(CorruptRecordError) as caught:
        list(TFRecordDataset(files).map(len))
    assert (caught.value.path, caught.value.record) == (files[2], 11)
    assert not hasattr(caught.value, "__notes__")


async def test_an_error_is_the_same_in_async_code(files: list[str]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        async for _ in TFRecordDataset(files).map(fails_at_20).batch(3):
            pass
    assert len(caught.value.__notes__) == 1
