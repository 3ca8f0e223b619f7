"""Each argument of a public function that is checked is refused by its name, if it is wrong."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamrec import (
    Dataset,
    Framer,
    RecordSource,
    ShardWriter,
    TFRecordDataset,
    open_shard,
    write_index_sync,
)

# Wrong values: a text for a flag, half a number, and a number for a function.
FLAG = "yes"
NUMBER = 1.5
FUNCTION = 5

numbers = Dataset.range(5)
shards = TFRecordDataset("a")

CALLS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (partial(numbers.padded_batch, batch_size=2), {"batch_size": 0, "drop_remainder": FLAG}),
    (partial(numbers.ragged_batch, batch_size=2), {"batch_size": 0, "drop_remainder": FLAG}),
    (
        partial(
            numbers.bucket_by_sequence_length,
            element_length_func=len,
            bucket_boundaries=[2],
            bucket_batch_sizes=[1, 2],
        ),
        {
            "element_length_func": FUNCTION,
            "bucket_boundaries": [NUMBER],
            "bucket_batch_sizes": [1, 0],
            "pad_to_bucket_boundary": FLAG,
            "no_padding": FLAG,
            "drop_remainder": FLAG,
        },
    ),
    (partial(numbers.rebatch, [2, 1]), {"drop_remainder": FLAG}),
    (
        partial(numbers.window, size=2),
        {"size": 0, "shift": 0, "stride": 0, "drop_remainder": FLAG},
    ),
    (
        partial(numbers.group_by_window, key_func=int, reduce_func=numbers.concatenate),
        {"window_size": 0, "window_size_func": FUNCTION},
    ),
    (
        partial(numbers.group_by_window, window_size=2),
        {
            "key_func": {"key_func": FUNCTION, "reduce_func": numbers.concatenate},
            "reduce_func": {"key_func": int, "reduce_func": FUNCTION},
        },
    ),
    (
        partial(numbers.rejection_resample, class_func=int, target_dist=[0.5, 0.5]),
        {
            "class_func": FUNCTION,
            "seed": NUMBER,
            "target_dist": [-1, 2],
            "initial_dist": ["a", 1],
        },
    ),
    (partial(numbers.parse_example, {}), {"string_columns": FLAG}),
    (numbers.ignore_errors, {"log_warning": FLAG}),
    (numbers.prefetch, {"buffer_size": -2, "buffer_bytes": 0}),
    (partial(shards.global_shuffle, index="i"), {"seed": NUMBER}),
    (
        partial(shards.global_shuffle, seed=1, index="i"),
        {"global_batch_size": 0, "block_bytes": 0, "window_bytes": 0, "slot_groups": 0},
    ),
    (Dataset.random, {"seed": NUMBER, "rerandomize_each_iteration": FLAG}),
    (partial(Dataset.list_files, "a"), {"seed": NUMBER}),
    (
        partial(Dataset.sample_from_datasets, [numbers, numbers]),
        {"rerandomize_each_iteration": FLAG, "stop_on_empty_dataset": FLAG},
    ),
    (
        partial(Dataset.choose_from_datasets, [numbers], numbers),
        {"stop_on_empty_dataset": FLAG},
    ),
    (
        partial(numbers.write_sync, "memory://each/{shard}"),
        {
            "batched": FLAG,
            "num_shards": 0,
            "max_shard_bytes": 0,
            "max_shard_records": 0,
            "overwrite": FLAG,
        },
    ),
    (
        partial(TFRecordDataset, "a"),
        {"cycle_length": -2, "verify": FLAG, "max_record_bytes": 0, "max_connections": 0},
    ),
    (partial(ShardWriter, "a-{shard}"), {"max_shard_records": 0, "max_shard_bytes": 0}),
    (
        partial(open_shard, "a"),
        {
            "verify": FLAG,
            "max_record_bytes": 0,
            "block_bytes": 0,
            "buffer_bytes": -1,
            "on_error": "ignore",
            "max_skipped": -1,
            "on_loss": FUNCTION,
        },
    ),
    (partial(RecordSource, "a"), {"verify": FLAG, "parallel": 0, "cache_bytes": -1}),
    (partial(write_index_sync, "a", "i"), {"update": FLAG, "parallel": 0}),
    (Framer, {"on_error": "ignore", "max_skipped": -1}),
]
"""Functions with the arguments that they need, and one wrong value for each argument."""

CASES = [(call, name, value) for call, wrong in CALLS for name, value in wrong.items()]


@pytest.mark.parametrize(("call", "name", "value"), CASES)
def test_a_wrong_argument_is_refused_by_its_name(
    call: Callable[..., Any], name: str, value: Any
) -> None:
    arguments = value if isinstance(value, dict) else {name: value}
    with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b") as caught:
        call(**arguments)
    assert not re.search("missing|unexpected", str(caught.value)), "this call is wrong itself"
