"""Dataset.shuffle: the order, its seeds and epochs, what stays columnar, its memory, and that it resumes everywhere."""

import gzip
import json
import logging
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, Frames, StreamrecError, TFRecordDataset, encode_example, encode_records
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.engine import budget
from streamrec.pipeline.engine.ranks import warn_once
from tests.effort import thorough
from tests.pipeline.small_shards import ALL
from tests.servers.resuming import assert_resumes_everywhere, plain, stop_after

pytestmark = pytest.mark.usefixtures("both_layouts")


def numbers(dataset: Dataset[Any]) -> list[int]:
    return [int(number) for number in dataset]


def test_each_element_comes_once_and_not_too_early() -> None:
    for size in (1, 2, 7, 100, 1000):
        found = numbers(Dataset.range(100).shuffle(size, seed=5))
        assert sorted(found) == list(range(100))
        assert all(number - place < size for place, number in enumerate(found))
    assert numbers(Dataset.range(100).shuffle(1, seed=5)) == list(range(100))
    assert list(Dataset.range(0).shuffle(3)) == []


def test_epochs_differ_unless_they_should_not() -> None:
    for seed in (5, None):
        found = numbers(Dataset.range(50).shuffle(20, seed).repeat(3))
        epochs = [found[first : first + 50] for first in (0, 50, 100)]
        assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        found = numbers(Dataset.range(50).shuffle(20, seed, reshuffle_each_iteration=False).repeat(2))
        assert found[:50] == found[50:]


def test_the_order_is_the_same_where_a_thread_lets_chunks_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where to resume, and what comes before an error."""
    path = tmp_path / "a.tfrecord"
    path.write_bytes(encode_records([b"%d" % number for number in range(60)])[:-3])
    damaged = TFRecordDataset(path).shuffle(20, seed=5)
    whole = TFRecordDataset(path).take(59).shuffle(20, seed=5)
    expected = list(whole)
    monkeypatch.setattr("streamrec.pipeline.sources.shuffle.shuffle.MIN_HOP_BYTES", 0)
    assert list(whole.with_options(epoch=0)) == expected
    assert_resumes_everywhere(whole)
    found: list[Any] = []
    with pytest.raises(StreamrecError):
        found.extend(damaged)
    assert found == expected


@pytest.mark.parametrize("taken", [0, 5, 37])
def test_batches_of_large_records_are_copied_once(tmp_path: Path, taken: int) -> None:
    """Chunks end between two batches, from the start and behind a place in the middle; so few batches are joined."""
    for shard in range(4):
        (tmp_path / f"{shard}").write_bytes(encode_records([bytes([shard, number]) * 10_000 for number in range(100)]))
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    dataset = TFRecordDataset(paths, num_parallel_reads=4).shuffle(50, seed=1).batch(7)
    iterator = dataset.iterate()
    for _ in range(taken):
        next(iterator)
    batches = list(dataset.iterate(iterator.state_dict()))
    assert sum(map(len, batches)) == 400 - 7 * taken
    joined = [batch for batch in batches if isinstance(batch.buffer, memoryview)]  # what was joined is part of a block
    assert len(joined) <= 8  # where shards end, and in what the buffer gives last


def test_shuffles_without_a_seed_have_nothing_to_do_with_each_other() -> None:
    one = Dataset.range(50).shuffle(20)
    pairs = [(int(a), int(b)) for a, b in Dataset.zip(one, one)]
    assert [a for a, _ in pairs] != [b for _, b in pairs]
    found = numbers(one.concatenate(one))
    assert found[:50] != found[50:]


def test_every_place_of_the_buffer_is_as_likely() -> None:
    """Chi-square of which of eight comes first, over 400 seeds: 7 degrees of freedom, 99.9 % point 24; all is fixed."""
    counts = np.zeros(8)
    for seed in range(400):
        counts[int(next(iter(Dataset.range(20).shuffle(8, seed).take(1))))] += 1
    assert ((counts - 50) ** 2 / 50).sum() < 24


def test_a_buffer_of_all_is_a_permutation_of_which_none_is_likelier() -> None:
    found = {tuple(numbers(Dataset.range(3).shuffle(10, seed))) for seed in range(60)}
    assert len(found) == 6


def test_records_stay_frames(files: list[str]) -> None:
    batches = list(TFRecordDataset(files, num_parallel_reads=2).shuffle(13).batch(8))
    assert all(isinstance(batch, Frames) for batch in batches)
    assert sorted(record for batch in batches for record in batch) == sorted(ALL)
    pairs = list(TFRecordDataset(files).enumerate().shuffle(13).batch(8))
    assert all(isinstance(records, Frames) for _, records in pairs)
    assert sorted((int(n), r) for batch in pairs for n, r in zip(*batch, strict=True)) == list(enumerate(ALL))


def test_parsed_columns_are_shuffled_row_by_row(tmp_path: Path) -> None:
    records = [encode_example({"n": [number], "name": [b"%d" % number]}) for number in range(40)]
    (tmp_path / "x").write_bytes(encode_records(records))
    features = {"n": FixedLenFeature((), np.int64), "name": FixedLenFeature((), bytes)}
    dataset = TFRecordDataset(f"{tmp_path}/x").batch(8).parse_example(features).unbatch().shuffle(30, seed=1)
    found = list(dataset)
    assert sorted(int(row["n"]) for row in found) == list(range(40))
    assert all(row["name"] == b"%d" % row["n"] for row in found)
    (batch,) = dataset.batch(50)
    assert batch["n"].dtype == np.int64
    assert_resumes_everywhere(dataset)


def upper(record: bytes) -> bytes:
    return record.upper()


@pytest.mark.parametrize("kind", ["GZIP", *thorough("ZLIB")])
def test_compressed_shards_resume_everywhere(tmp_path: Path, kind: str) -> None:
    paths = []
    for shard in range(3):
        paths.append(str(tmp_path / str(shard)))
        Path(paths[-1]).write_bytes(compressed(encode_records(ALL[shard * 10 : shard * 10 + 10]), kind))
    assert_resumes_everywhere(TFRecordDataset(paths, num_parallel_reads=2).shuffle(12).repeat(2))


def compressed(data: bytes, kind: str) -> bytes:
    return gzip.compress(data) if kind == "GZIP" else zlib.compress(data)


@pytest.mark.parametrize("mapped", [False, True])
def test_in_any_order_each_record_comes_once_though_resumed(files: list[str], mapped: bool) -> None:
    """Records, and what comes as it is ready, are held by reference."""
    records = TFRecordDataset(files, num_parallel_reads=3, deterministic=False)
    dataset = (records.map(upper, num_parallel_calls=3, deterministic=False) if mapped else records).shuffle(9)
    before, state = stop_after(dataset, 17)
    assert sorted(before + list(dataset.iterate(state))) == sorted(map(upper, ALL) if mapped else ALL)


def test_numbers_mean_nothing_where_there_is_no_order(files: list[str], caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    mapped = Dataset.range(50).map(lambda number: number, num_parallel_calls=3).shuffle(9)
    with mapped.iterate() as iterator:
        next(iterator)
        assert iterator.state_dict()
    assert not caplog.records
    batches = TFRecordDataset(files, num_parallel_reads=3, deterministic=False).batch(2).shuffle(4)
    for dataset in (mapped.with_options(deterministic=False), batches):
        with dataset.iterate() as iterator:
            next(iterator)
            with pytest.raises(StreamrecError, match="has no fixed order"):
                iterator.state_dict()
    [said] = caplog.messages
    assert said.startswith("state_dict() of this run will be an error: the input of this shuffle")


def test_a_small_budget_holds_fewer_and_says_so(files: list[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "streamrec"):
        found = list(TFRecordDataset(files).shuffle(1000, seed=1).with_options(memory_budget=1 << 13))
    assert sorted(found) == sorted(ALL)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "shuffle(buffer_size=1000) holds only about" in message
    assert "raise memory_budget" in message
    caplog.clear()
    assert sorted(TFRecordDataset(files).shuffle(1000)) == sorted(ALL)
    assert not caplog.records


def test_the_order_does_not_follow_the_memory_of_the_machine(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With less than others have, what does not fit is an error, before all elements; with as much, it is shorter."""
    large = Dataset.range(64).map(lambda n: np.full(1 << 20, n, np.uint8)).shuffle(50, seed=1)
    orders = []
    for memory in (1 << 30, 4 << 30, 8 << 30, 1 << 40):
        monkeypatch.setattr(budget, "machine_memory", lambda memory=memory: memory)
        with large.with_options(epoch=0).iterate() as run:
            if memory == 1 << 30:
                with pytest.raises(MemoryError, match=r"shuffle\(buffer_size=50\) does not fit: \d+ elem.*global_"):
                    next(run)
                continue
            orders.append([int(element[0]) for element in run])
        with large.with_options(epoch=0, memory_budget=1 << 29).iterate() as run:
            orders.append([int(element[0]) for element in run])
        small = TFRecordDataset(files).shuffle(10, seed=1)
        assert list(small) == list(small.with_options(epoch=0, memory_budget=1 << 30))
    assert orders == orders[:1] * 6


def test_a_state_of_a_small_machine_continues_elsewhere(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TFRecordDataset(files).shuffle(10, seed=1)
    whole = list(dataset)
    for first, second in ((1 << 30, 1 << 40), (1 << 40, 1 << 30)):
        monkeypatch.setattr(budget, "machine_memory", lambda: first)  # noqa: B023 - called before the next turn
        with dataset.with_options(epoch=0).iterate() as run:
            before = [next(run) for _ in range(7)]
            state = run.state_dict()
        monkeypatch.setattr(budget, "machine_memory", lambda: second)  # noqa: B023
        assert before + list(dataset.with_options(epoch=0).iterate(state)) == whole


def test_a_resumed_run_continues_within_another_budget(files: list[str]) -> None:
    """The order is that of the budget which it began with, in the epochs that follow too."""
    small = (
        TFRecordDataset(files, num_parallel_reads=3).shuffle(1000, seed=1).repeat(2).with_options(memory_budget=1 << 13)
    )
    expected = list(small)
    before, state = stop_after(small.with_options(epoch=0), 20)
    assert before + list(small.with_options(memory_budget=1 << 28).iterate(state)) == expected
    assert list(small.with_options(memory_budget=1 << 28)) != expected


def test_a_shuffle_that_had_not_begun_has_the_same_budget_when_resumed() -> None:
    """A cache gives what it keeps the same share, be it filled or not."""
    dataset = Dataset.range(5).concatenate(Dataset.range(100).shuffle(80)).cache().repeat(2)
    assert_resumes_everywhere(dataset.with_options(memory_budget=1 << 13))


def test_another_shuffle_is_refused(files: list[str]) -> None:
    dataset = TFRecordDataset(files)
    _, state = stop_after(dataset.shuffle(5, seed=1), 1)
    for other in (
        dataset.shuffle(6, seed=1),
        dataset.shuffle(5),
        dataset.shuffle(5, 1, reshuffle_each_iteration=False),
    ):
        with pytest.raises(PositionMismatchError, match=r"it had Shuffle\(buffer_size=5, seed=1"):
            other.iterate(state)


def test_an_input_that_shrank_is_refused() -> None:
    """Where elements are held by number, and a function changed behind its name."""
    left = [60]
    dataset = Dataset.range(100).take_while(lambda number: number < left[0]).shuffle(30, seed=1)
    _, state = stop_after(dataset, 25)
    left[0] = 40
    with pytest.raises(PositionMismatchError, match=r"has 40 elements after the saved position, but had \d+"):
        list(dataset.iterate(state))


def test_an_element_that_failed_is_reported_at_once(files: list[str]) -> None:
    def fails_at_20(number: int) -> int:
        if number == 20:
            raise RuntimeError("twenty")
        return number

    found: list[int] = []
    elements = Dataset.range(50).map(fails_at_20).shuffle(8).iterate()
    with pytest.raises(RuntimeError, match="twenty"):
        for element in elements:
            found.append(int(element))
    assert len(found) == 12
    assert sorted([*found, *map(int, elements)]) == [number for number in range(50) if number != 20]


def test_arguments_out_of_range() -> None:
    with pytest.raises(ValueError, match="buffer_size is 0: it must be a whole number, 1 or more"):
        Dataset.range(5).shuffle(0)


def test_fifty_thousand_are_less_than_a_megabyte(tmp_path: Path) -> None:
    paths = [tmp_path / str(shard) for shard in range(16)]
    for shard, path in enumerate(paths):
        path.write_bytes(encode_records([b"%02d%06d" % (shard, index) + b"x" * 76 for index in range(6000)]))
    records = TFRecordDataset([str(path) for path in paths], num_parallel_reads=16)
    for dataset in (
        records.shuffle(50_000),
        records.enumerate().shuffle(50_000),
        records.shuffle(50_000).shuffle(50_000),
    ):
        iterator = dataset.batch(1000).iterate()
        for _ in range(30):
            next(iterator)
        state = json.dumps(iterator.state_dict())
        iterator.close()
        assert len(state) < 1_000_000
        rest = [plain(batch) for batch in iterator_rest(dataset, state)]
        assert sum(len(batch[1]) if batch[0] == "frames" else len(batch[1][1]) for batch in rest) == 96_000 - 30_000


def iterator_rest(dataset: Dataset[Any], state: str) -> list[Any]:
    return list(dataset.batch(1000).iterate(json.loads(state)))
