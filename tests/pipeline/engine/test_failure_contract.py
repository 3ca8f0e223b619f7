"""The failure contract of the driver (top of `pipeline/engine/run.py`), for whole pipelines before
real stores.

Runs end in each way in a process of their own, which counts what is left: threads, tasks of the
loop, files and sockets. Errors are looked at here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

import pytest

from streamrec import Dataset, TFRecordDataset, TFRecordWriter
from tests.effort import SECONDS_TO_END
from tests.runs import until_error, write_shards
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore
from tests.servers.real import Store

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("scripts") / "failures.py"
NOTHING_LEFT: list[list[str]] = [[], [], []]
"""Tasks, threads, files."""


RECORDS = [b"%05d" % number for number in range(500)]


Stored = tuple[str, dict[str, Any]]
"""A pattern of shards, and storage options."""


def serve(root: Path, shards: int, records: list[bytes], faults: Faults) -> Iterator[Stored]:
    write_shards(root / "bucket", [records] * shards, "s-{:02}")
    with ObjectStore(root, faults) as store:
        yield "s3://bucket/s-*", store.options()


@pytest.fixture(scope="module")
def slow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """A store whose bodies take their time, so that runs are left with requests under way."""
    faults = replace(NO_FAULTS, first_byte=0.01, rate=2e6)
    yield from serve(tmp_path_factory.mktemp("long"), 6, [bytes(2000), *RECORDS] * 20, faults)


@pytest.fixture(scope="module")
def short_shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """A store of shards that are each read whole, by a response that takes its time."""
    faults = replace(NO_FAULTS, first_byte=0.01, jitter=0.1)
    yield from serve(tmp_path_factory.mktemp("short"), 60, RECORDS[:50], faults)


@pytest.fixture(scope="module")
def seaweed_shards(s3_store: Store) -> Stored:
    for shard in range(3):
        url = f"{s3_store.url}/contract/s-{shard}"
        with TFRecordWriter(url, storage_options=s3_store.options) as writer:
            for record in RECORDS * 4:
                writer.write(record)
    return f"{s3_store.url}/contract/s-*", dict(s3_store.options)


def run_to_end(ways: str, shards: Stored) -> tuple[list[Any], str]:
    """What the script prints for each way, which must end well, and what it writes to standard
    error.
    """
    url, options = shards
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-W",
        "error",
        str(SCRIPT),
        ways,
        url,
        json.dumps(options),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=160
    )
    assert done.returncode == 0, done.stderr
    return list(map(json.loads, done.stdout.splitlines())), done.stderr


WAYS = {
    "slow_store": "breaks ends stage_raises closes collected leaves_a_long_chunk interrupts "
    "async_break async_end async_close async_stage_raises async_cancel",
    "short_shards": "breaks closes collected interrupts async_cancel",
    "seaweed_shards": "breaks closes interrupts async_cancel",
}
"""The shards that runs read one after the other, and how they end."""


@pytest.mark.parametrize("shards", WAYS)
def test_nothing_is_left_of_a_run(shards: str, request: pytest.FixtureRequest) -> None:
    names = WAYS[shards].split()
    left, errors = run_to_end(WAYS[shards], request.getfixturevalue(shards))
    assert dict(zip(names, left, strict=True)) == dict.fromkeys(names, NOTHING_LEFT)
    assert errors == ""


def test_the_interpreter_leaves_in_time(slow_store: Stored) -> None:
    [seconds], errors = run_to_end("exits_with_progress_and_trace", slow_store)
    assert seconds < SECONDS_TO_END
    assert "streamrec: 1 elements" in errors


# An error arrives once, after what came before it, with its traceback and its place.


def fails_at_20(record: bytes) -> bytes:
    if record.startswith(b"4.20."):
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
    found, error = until_error(iterator, ZeroDivisionError)
    assert "fails_at_20" in [entry.name for entry in extract_tb(error.__traceback__)]
    place = f"element {len(found)} of this run: {files[4]}, record 20"
    assert error.__notes__ == [f"in {verb}: your function fails_at_20, {place}"]
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


def test_an_error_that_has_no_place_in_a_shard(files: list[str]) -> None:
    records = list(TFRecordDataset(files))
    with pytest.raises(ZeroDivisionError) as caught:
        list(Dataset.from_generator(lambda: records).batch(7).unbatch().map(fails_at_20))
    assert caught.value.__notes__ == ["in map: your function fails_at_20, element 40 of this run"]
