"""An error after any source and stage names the shard and the record that the element was made
of.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    FeatureError,
    TFRecordDataset,
    encode_example,
    encode_records,
    write_index_sync,
)
from tests.runs import until_error, write_shards
from tests.servers.resuming import stop_after

FEATURES = {"id": streamrec.FixedLenFeature((), np.int64)}
RECORDS = 100
SHARD, RECORD = 2, 37

Chain = Callable[[list[str]], Dataset[Any]]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Shards, in one of which one record lacks the feature."""
    shards = [[encode_example({"id": number}) for number in range(RECORDS)] for _ in range(4)]
    shards[SHARD][RECORD] = encode_example({"another": RECORD})
    return write_shards(tmp_path, shards)


def parse_one(record: bytes) -> Any:
    return streamrec.parse_single_example(record, FEATURES)


def batches(dataset: Dataset[Any], size: int = 8) -> Dataset[Any]:
    return dataset.batch(size).parse_example(FEATURES)


def indexed(files: list[str], **options: Any) -> Dataset[Any]:
    index = str(Path(files[0]).with_name("index"))
    write_index_sync(files, index)
    return TFRecordDataset(files).global_shuffle(seed=1, index=index, **options)


def files_as_elements(files: list[str]) -> Dataset[Any]:
    return Dataset.from_tensor_slices(files)


CHAINS: dict[str, Chain] = {
    "batch": lambda files: batches(TFRecordDataset(files)),
    "a batch of several chunks": lambda files: batches(TFRecordDataset(files).map(bytes), 300),
    "in turn": lambda files: batches(TFRecordDataset(files, num_parallel_reads=3)),
    "in no order": lambda files: batches(
        TFRecordDataset(files, num_parallel_reads=3, deterministic=False)
    ),
    "distribute": lambda files: batches(TFRecordDataset(files).distribute().shuffle(50)),
    "shuffle": lambda files: batches(TFRecordDataset(files, num_parallel_reads=3).shuffle(50)),
    "a shuffle of all": lambda files: batches(TFRecordDataset(files).shuffle(1000)),
    "shuffles": lambda files: batches(TFRecordDataset(files).shuffle(20).repeat(2).shuffle(50)),
    "a shuffle of batches": lambda files: (
        TFRecordDataset(files).batch(8).shuffle(5).parse_example(FEATURES)
    ),
    "a shuffle by number": lambda files: batches(
        files_as_elements(files).interleave(TFRecordDataset, 3).shuffle(50)
    ),
    "global_shuffle": lambda files: batches(indexed(files)),
    "batches of global_shuffle": lambda files: indexed(files, global_batch_size=8).parse_example(
        FEATURES
    ),
    "interleave": lambda files: batches(files_as_elements(files).interleave(TFRecordDataset, 3, 2)),
    "flat_map": lambda files: batches(files_as_elements(files).flat_map(TFRecordDataset)),
    "sample": lambda files: batches(
        Dataset.sample_from_datasets([TFRecordDataset(file) for file in files], seed=3)
    ),
    "concatenate": lambda files: batches(
        TFRecordDataset(files).take(3).concatenate(TFRecordDataset(files))
    ),
    "prefetch": lambda files: batches(TFRecordDataset(files).shuffle(20).prefetch(2)).prefetch(2),
    "cache": lambda files: batches(TFRecordDataset(files).cache()),
    "filter": lambda files: batches(
        TFRecordDataset(files).filter(lambda record: record[-1] % 2 == 1)
    ),
    "unique": lambda files: batches(TFRecordDataset(files).skip(SHARD * RECORDS).unique()),
    "map": lambda files: TFRecordDataset(files).shuffle(50).map(parse_one),
    "parallel map": lambda files: (
        TFRecordDataset(files).shuffle(50).map(parse_one, num_parallel_calls=3)
    ),
    "after a parallel map": lambda files: batches(
        TFRecordDataset(files).map(bytes, num_parallel_calls=3).shuffle(9)
    ),
    "unbatch": lambda files: TFRecordDataset(files).batch(8).unbatch().map(parse_one),
    "unbatch of lists": lambda files: (
        TFRecordDataset(files).map(bytes).batch(7).unbatch().map(parse_one)
    ),
    "a shuffle of unbatched": lambda files: batches(
        TFRecordDataset(files).batch(8).unbatch().shuffle(50)
    ),
    "window": lambda files: (
        TFRecordDataset(files).window(10).flat_map(lambda window: batches(window, 4))
    ),
    "group_by_window": lambda files: TFRecordDataset(files).group_by_window(
        len, lambda key, window: batches(window, 4), 8
    ),
    "bucket": lambda files: (
        TFRecordDataset(files)
        .bucket_by_sequence_length(len, [20], [5, 5], no_padding=True)
        .parse_example(FEATURES)
    ),
}
"""All that gives elements in another order or number than they had."""


def note_of(dataset: Any) -> str:
    """The note of the error that a run ends with."""
    _, error = until_error(dataset, FeatureError, "feature 'id': found nothing")
    (note,) = error.__notes__
    return str(note)


@pytest.mark.parametrize("name", CHAINS)
def test_the_record_is_named(files: list[str], name: str) -> None:
    assert note_of(CHAINS[name](files)).endswith(f" of this run: {files[SHARD]}, record {RECORD}")


def test_records_of_several_sources_are_all_named(files: list[str]) -> None:
    """And each that a zip took."""
    zipped = Dataset.zip(TFRecordDataset(files), TFRecordDataset(files).skip(3)).shuffle(10)
    places = f"{files[SHARD]}, record {RECORD} and {files[SHARD]}, record {RECORD + 3}"
    assert note_of(zipped.map(lambda record, other: parse_one(record))).endswith(places)


def test_a_row_of_a_batch_in_which_a_run_was_resumed(files: list[str]) -> None:
    dataset = TFRecordDataset(files[SHARD]).batch(RECORD + 5).unbatch().map(parse_one)
    note = note_of(dataset.iterate(stop_after(dataset, RECORD - 2)[1]))
    assert note.endswith(f"element 2 of this run: {files[SHARD]}, record {RECORD}")


def test_an_element_of_a_cache_file_is_named(files: list[str], tmp_path: Path) -> None:
    """What it was made of is not in the file: its number there is, also where the run was
    resumed.
    """
    cached = TFRecordDataset(files).cache(str(tmp_path / "cache"))
    assert len(list(cached)) == 4 * RECORDS
    element = SHARD * RECORDS + RECORD
    place = f"{tmp_path / 'cache'}, element {element}"
    assert note_of(cached.shuffle(50).map(parse_one)).endswith(place)
    assert note_of(batches(cached)).endswith(place)
    mapped = cached.map(parse_one)
    resumed = mapped.iterate(stop_after(mapped, element - 2)[1])
    assert note_of(resumed).endswith(f"element 2 of this run: {place}")


def test_of_what_a_resumed_shuffle_held_the_byte_is_named(files: list[str]) -> None:
    """What was in the buffer when the state was saved did not come through this run."""
    dataset = (
        TFRecordDataset(files[SHARD]).shuffle(RECORDS - 1, seed=1).batch(1).parse_example(FEATURES)
    )
    offset = len(encode_records([encode_example({"id": number}) for number in range(RECORD)]))
    note = note_of(dataset.iterate(stop_after(dataset, 1)[1]))
    assert note.endswith(f"{files[SHARD]}, byte {offset:,}")
