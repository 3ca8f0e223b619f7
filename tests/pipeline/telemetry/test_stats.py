"""Statistics of a run: the rule for the bottleneck on made-up figures, and figures of real
pipelines.
"""

import hashlib
import threading
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from streamrec import Dataset, TFRecordDataset
from streamrec.pipeline import StageStats, Stats
from streamrec.pipeline.telemetry.stats import DISK, NETWORK, READING, ChainStats, find_bottleneck
from tests.runs import write_shards
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore

RECORDS = [b"%06d" % index + bytes(78) for index in range(20_000)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path, [RECORDS] * 4)


def reader_stats(busy: float, waited: float) -> StageStats:
    return StageStats(title="TFRecordDataset", line="Shards()", busy=busy, waited_for_input=waited)


def stage_stats(title: str, busy: float) -> StageStats:
    return StageStats(title=title, line=title, busy=busy)


def chain_of(*stages: StageStats, asked: float = 10.0) -> ChainStats:
    return ChainStats(stages, asked)


FIGURES_AND_BOTTLENECKS = [
    (chain_of(reader_stats(1, 8), stage_stats("map: your function f", 1)), 9.0, ["s3"], NETWORK),
    (chain_of(reader_stats(1, 8), stage_stats("map: your function f", 1)), 9.0, ["file"], DISK),
    (chain_of(reader_stats(1, 8)), 9.0, ["file", "gs"], NETWORK),
    (chain_of(reader_stats(8, 1)), 9.0, ["s3"], READING),
    (chain_of(reader_stats(1, 8)), 9.0, ["memory"], READING),
    (chain_of(reader_stats(1, 8)), 9.0, [], "TFRecordDataset"),
    (
        chain_of(StageStats(title="from_generator: f", line="", waited_for_input=8)),
        9.0,
        ["s3"],
        "from_generator: f",
    ),
    (
        chain_of(reader_stats(1, 2), stage_stats("batch", 3), stage_stats("parse_example", 4)),
        9.0,
        ["s3"],
        "parse_example",
    ),
    (
        chain_of(reader_stats(1, 2), stage_stats("map", 3), stage_stats("batch", 2)),
        9.0,
        ["s3"],
        NETWORK,
    ),
    (chain_of(reader_stats(1, 8)), 0.9, ["s3"], "the consumer"),
    (chain_of(reader_stats(1, 1), asked=2.0), 4.0, ["s3"], "the consumer"),
]


@pytest.mark.parametrize(("chain", "waited", "backends", "expected"), FIGURES_AND_BOTTLENECKS)
def test_the_rule_on_made_up_figures(
    chain: ChainStats, waited: float, backends: list[str], expected: str
) -> None:
    assert find_bottleneck(chain, waited, 10.0, backends) == expected


def test_the_rule_before_anything_was_asked_for() -> None:
    assert find_bottleneck(chain_of(reader_stats(0, 0)), 0.0, 0.0, []) == "nothing yet"


def test_the_rule_follows_the_chain_that_was_waited_for() -> None:
    slow = chain_of(reader_stats(0, 1), stage_stats("map: your function slow", 8), asked=9.0)
    quick = chain_of(reader_stats(0, 8), asked=2.0)
    zipped = StageStats(title="zip", line="Zip()", busy=1, waited_for_input=8, chains=(quick, slow))
    assert (
        find_bottleneck(chain_of(zipped, stage_stats("batch", 1)), 9.0, 10.0, ["s3"])
        == "map: your function slow"
    )
    assert find_bottleneck(chain_of(replace(zipped, busy=9)), 9.0, 10.0, ["s3"]) == "zip"


def upper(record: bytes) -> bytes:
    return record.upper()


def test_every_stage_counts_what_passed(files: list[str]) -> None:
    records = TFRecordDataset(files, num_parallel_reads=2).map(upper)
    chain = records.batch(1000).repeat(2).prefetch(buffer_bytes=1 << 20).take(150)
    with chain.iterate() as batches:
        assert len(list(batches)) == 150
        stats = batches.stats()
    titles = ["TFRecordDataset", "map: your function upper", "batch", "repeat", "prefetch", "take"]
    assert [stage.title for stage in stats.stages] == titles
    source, mapped, batched, repeated, fetched, taken = stats.stages
    assert source.elements_out == mapped.elements_in == stats.records
    assert source.bytes_out == mapped.bytes_in > 150 * 1000 * 84
    assert mapped.elements_out == batched.elements_in >= 150_000
    assert batched.elements_out == repeated.elements_in >= repeated.elements_out >= 150
    assert repeated.elements_out == fetched.elements_in >= fetched.elements_out == taken.elements_in
    assert taken.elements_out == stats.elements == 150
    assert fetched.queue_limit in (0, 1 << 20)  # 0 where its queue is gone by now
    assert mapped.busy > 0 < source.busy
    assert stats.storage.backends["file"].bytes == stats.bytes_read >= 160 * 1000 * 84


def test_zipped_chains_have_rows_of_their_own() -> None:
    pairs = Dataset.zip(Dataset.range(10).map(abs), Dataset.range(7)).batch(2)
    with pairs.iterate() as batches:
        assert len(list(batches)) == 4
        stats = batches.stats()
    rows = [(1, "range"), (1, "map: your function abs"), (1, "range"), (0, "zip"), (0, "batch")]
    assert [(depth, stage.title) for depth, stage in stats.chain.rows()] == rows
    assert stats.stages[3].elements_in == 17
    assert stats.stages[3].elements_out == 7


def test_chains_that_a_function_makes_share_a_row() -> None:
    with Dataset.range(100).flat_map(Dataset.range).iterate() as numbers:
        assert len(list(numbers)) == 100 * 99 // 2
        stats = numbers.stats()
    rows = [(stage.title, stage.elements_out) for stage in stats.stages]
    assert sorted(rows) == sorted([("range", 100), ("range", 4950), (stats.stages[-1].title, 4950)])


def test_figures_never_fall_and_stand_still_at_the_end(files: list[str]) -> None:
    ended, seen = threading.Event(), list[Stats]()
    with (
        TFRecordDataset(files, num_parallel_reads=4)
        .map(upper)
        .batch(100)
        .prefetch()
        .iterate() as batches
    ):

        def counter() -> None:
            while not ended.is_set():
                seen.append(batches.stats())

        watcher = threading.Thread(target=counter)
        watcher.start()
        count = len(list(batches))
        ended.set()
        watcher.join()
        seen += [batches.stats(), batches.stats()]
    assert seen[-1] == seen[-2]
    assert seen[-1].elements == count == 800
    for earlier, later in zip(seen, seen[1:], strict=False):
        change = later.since(earlier)
        assert min(change.elements, change.bytes) >= 0 <= change.consumer_busy
        assert all(
            row.elements_in >= 0 <= row.bytes_out and row.elements_out >= 0 <= row.busy
            for row in change.stages
        )


def test_a_call_that_has_not_returned_is_counted() -> None:
    called, go_on = threading.Event(), threading.Event()

    def waits(number: object) -> object:
        called.set()
        assert go_on.wait(30)
        return number

    with Dataset.range(1).map(waits).iterate() as numbers:
        consumer = threading.Thread(target=list, args=(numbers,))
        consumer.start()
        assert called.wait(30)
        burn(0.05)  # time must pass to be counted
        stats = numbers.stats()
        go_on.set()
        consumer.join()
    assert stats.stages[1].busy >= 0.05
    assert stats.stages[0].waited_for_output >= 0.05
    assert stats.consumer_waited >= 0.05
    assert stats.bottleneck.startswith("map: your function")


def test_queues_are_reported() -> None:
    ahead = threading.Event()

    def note(number: Any) -> Any:
        if number == 7:
            ahead.set()
        return bytes(1000)

    with (
        Dataset.range(10**9)
        .take(8)
        .repeat()
        .map(note)
        .prefetch(buffer_bytes=4000)
        .iterate() as elements
    ):
        next(elements)
        assert ahead.wait(30)
        stats = elements.stats()
    prefetch = stats.stages[-1]
    assert prefetch.queue_limit == 4000
    assert "queue MB" in str(stats)


def burn(seconds: float) -> None:
    until = perf_counter() + seconds
    while perf_counter() < until:
        hashlib.sha256(bytes(1000)).digest()


def heavy(frames: Any) -> Any:
    burn(0.004)
    return frames


@pytest.mark.parametrize("calls", [None, 2])
def test_a_slow_map_is_named(files: list[str], calls: int | None) -> None:
    with TFRecordDataset(files).batch(500).map(heavy, calls).iterate() as batches:
        assert len(list(batches)) == 160
        stats = batches.stats()
    assert stats.bottleneck == "map: your function heavy"
    assert str(stats).splitlines()[-1] == "bottleneck: map: your function heavy"
    assert calls or stats.waited_share > 0.5


def test_a_slow_consumer_is_named(files: list[str]) -> None:
    with TFRecordDataset(files).batch(500).iterate() as batches:
        for _ in batches:
            burn(0.006)
        stats = batches.stats()
    assert stats.bottleneck == "the consumer"
    assert stats.consumer_busy > 160 * 0.006


def test_a_slow_store_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path / "bucket", [RECORDS] * 4)
    with ObjectStore(tmp_path, replace(NO_FAULTS, rate=2e6)) as store:
        dataset = TFRecordDataset(
            "s3://bucket/s-*", num_parallel_reads=2, storage_options=store.options()
        )
        with dataset.batch(500).map(len).iterate() as batches:
            assert sum(batches) == 80_000
            stats = batches.stats()
    assert stats.bottleneck == NETWORK
    assert stats.stages[0].waited_for_input > stats.stages[0].busy
