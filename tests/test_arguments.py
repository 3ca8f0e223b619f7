"""What is wrong with a call is said by the call: the argument's name, what came, and what is
expected.
"""

import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

import streamrec
from streamrec import (
    Dataset,
    RetryPolicy,
    ShardWriter,
    TFRecordDataset,
    TFRecordWriter,
    arguments,
    encode_records,
)
from streamrec.example import FixedLenSequenceFeature, parse_example, parse_sequence_example
from streamrec.example.columns import BytesColumn
from streamrec.pipeline.loading import Epochs
from streamrec.pipeline.runnable import COUNTERPARTS
from streamrec.shards import shard_path
from streamrec.tfrecord import TFRecordOptions
from streamrec.tfrecord.inflater import decode_compressed

RECORD = streamrec.encode_example({"image": b"\xff\xd8\xff", "label": 3})


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (5, r"int 5: write it as bytes"),
        ("text", r"str 'text': write it with \.encode\(\)"),
        ({"a": 1}, r"dict: write streamrec\.encode_example\(\.\.\.\) of it"),
        (streamrec.Example(), r"the message Example: write its \.SerializeToString\(\)"),
        ([1, 2], r"list: write its elements one by one, or all of them with write_batch"),
        (None, r"NoneType None: write it as bytes"),
        (1.5, r"float 1\.5: write it as bytes"),
        (np.array([b"a"], object), r"an array of objects"),
    ],
)
async def test_a_record_is_bytes(tmp_path: Path, value: Any, advice: str) -> None:
    wanted = f"a record is bytes, not {advice}"
    with TFRecordWriter(tmp_path / "sync") as writer:
        with pytest.raises(TypeError, match=wanted):
            writer.write(value)
        writer.write(b"good")
    async with ShardWriter(tmp_path / "async") as several:
        with pytest.raises(TypeError, match=wanted):
            await several.write(value)
        with pytest.raises(TypeError, match=wanted):
            await several.write_batch([b"before", value, b"behind"])
        await several.write(b"good")
    with pytest.raises(TypeError, match=wanted):
        encode_records([value])
    assert list(TFRecordDataset(tmp_path / "sync")) == [b"good"]
    assert list(TFRecordDataset(tmp_path / "async")) == [b"before", b"good"]


@pytest.mark.parametrize(
    "value", [bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)]
)
def test_whatever_is_bytes_like_is_a_record(tmp_path: Path, value: Any) -> None:
    with TFRecordWriter(tmp_path / "x") as writer:
        writer.write(value)
    assert list(TFRecordDataset(tmp_path / "x")) == [b"abc"]


ds: Dataset[Any] = Dataset.range(5)
SHARDS = TFRecordDataset("a")
FILESYSTEM_AND_OPTIONS: Any = {
    "filesystem": LocalFileSystem(),
    "storage_options": {"auto_mkdir": True},
}
INT, LIST = streamrec.FixedLenFeature([], "int64"), FixedLenSequenceFeature([], "int64")
STEPS = streamrec.encode_sequence_example({}, {"label": [[1], [2]]})
LONG: Any = "x" * 10_000
MANY = streamrec.encode_example({f"name{number}": 1 for number in range(5000)})
NUMBERED = "a-{shard}-of-{shards}"
SMALL = ds.with_options(memory_budget=1 << 28)
COLUMN = BytesColumn.of([b"a", b"b"])
POLICY = (
    "retry is {'attempts': 2} (dict): it must be a RetryPolicy, such as RetryPolicy(attempts=2)"
)


def enter(manager: Any) -> None:
    with manager:
        pass


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: ds.batch(1.5), "batch_size is 1.5 (float): it must be a whole number, 1 or more"),
    (lambda: ds.batch(True), "batch_size is True (bool): it must be a whole number, 1 or more"),
    (
        lambda: ds.batch(2, drop_remainder="no"),
        "drop_remainder is 'no' (str): it must be True or False",
    ),  # type: ignore[arg-type]
    (lambda: ds.ragged_batch(None), "batch_size is None (NoneType): it must be a whole number"),  # type: ignore[arg-type]
    (lambda: ds.rebatch(1.5), "batch_size is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: ds.rebatch(0), "batch_size is 0: it must be a whole number, 1 or more"),
    (lambda: ds.padded_batch(0), "batch_size is 0: it must be a whole number, 1 or more"),
    (lambda: ds.ragged_batch(0), "batch_size is 0: it must be a whole number, 1 or more"),
    (lambda: ds.shuffle(1.5), "buffer_size is 1.5 (float): it must be a whole number, 1 or more"),  # type: ignore[arg-type]
    (lambda: ds.shuffle(5, seed="a"), "seed is 'a' (str): it must be a whole number, or None"),  # type: ignore[arg-type]
    (lambda: ds.shuffle(5, 1, 2), "reshuffle_each_iteration is 2 (int): it must be True or False"),  # type: ignore[arg-type]
    (lambda: ds.take("3"), "count is '3' (str): it must be a whole number"),  # type: ignore[arg-type]
    (lambda: ds.skip(None), "count is None (NoneType)"),  # type: ignore[arg-type]
    (lambda: ds.repeat(1.5), "count is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: ds.prefetch(1.5), "buffer_size is 1.5 (float)"),  # type: ignore[arg-type]
    (
        lambda: ds.prefetch(1, buffer_bytes=2),
        "buffer_size=1 and buffer_bytes=2: pass only one of them",
    ),
    (lambda: ds.enumerate("a"), "start is 'a' (str)"),  # type: ignore[arg-type]
    (lambda: ds.shard(2.0, 0), "num_shards is 2.0 (float)"),  # type: ignore[arg-type]
    (lambda: ds.shard(2, "0"), "index is '0' (str)"),  # type: ignore[arg-type]
    (lambda: ds.shard(0, 0), "num_shards is 0: it must be a whole number, 1 or more"),
    (lambda: ds.shard(2, 2), "less than num_shards=2"),
    (lambda: ds.map(None), "function is None (NoneType): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.map(5, 2), "function is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.map(len, 1.5), "num_parallel_calls is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: ds.filter(5), "predicate is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.take_while(5), "predicate is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.interleave(5), "map_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.interleave(TFRecordDataset, 1.5), "cycle_length is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: ds.interleave(TFRecordDataset, 2, "1"), "block_length is '1' (str)"),  # type: ignore[arg-type]
    (lambda: ds.flat_map(5), "map_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.concatenate(5), "dataset is 5 (int): a streamrec Dataset is expected"),  # type: ignore[arg-type]
    (lambda: ds.rebatch([2, 1.5]), "batch_size is 1.5 (float)"),  # type: ignore[list-item]
    (lambda: ds.rebatch([]), "batch_size=[] must hold at least one number"),
    (lambda: ds.window(0), "size is 0: it must be a whole number, 1 or more"),
    (lambda: ds.window(2, shift="1"), "shift is '1' (str)"),  # type: ignore[arg-type]
    (lambda: ds.window(2, stride=0), "stride is 0"),
    (lambda: ds.group_by_window(5, len, 2), "key_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.group_by_window(len, 5, 2), "reduce_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.group_by_window(len, len), "takes either window_size or window_size_func"),  # type: ignore[arg-type]
    (lambda: ds.scan(0, 5), "scan_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.scan(object(), len), "which a position cannot hold"),
    (lambda: ds.reduce(0, 5), "reduce_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: ds.repeat().reduce(0, max), "reduce would never end"),
    (lambda: ds.apply(5), "transformation_func is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (
        lambda: ds.rejection_resample(len, [0.5, 0.6]),
        "target_dist=[0.5, 0.6] must hold a probability for each class",
    ),
    (
        lambda: ds.rejection_resample(len, [0.5, 0.5], [1.0]),
        "initial_dist has 1 classes and target_dist has 2",
    ),
    (
        lambda: ds.rejection_resample(len, [0.5, 0.5], [1, 0]),
        "class 1 has probability 0.5 in target_dist and 0 in ini",
    ),
    (lambda: Dataset.counter("5"), "start is '5' (str)"),  # type: ignore[arg-type]
    (lambda: Dataset.random(1.5), "seed is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: Dataset.load("a*"), "load() takes the name of one file"),
    (lambda: streamrec.TensorSpec("5", "int64"), "shape is '5' (str): it must be a list of sizes"),
    (lambda: streamrec.TensorSpec([], "int65"), "dtype is 'int65' (str)"),
    (
        lambda: ds.parse_example([1]),
        "features is [1] (list): it must be a dict of feature configurations",
    ),  # type: ignore[arg-type]
    (lambda: ds.with_options(epoch="1"), "epoch is '1' (str)"),  # type: ignore[arg-type]
    (lambda: ds.with_options(rank="0", world_size=1), "rank is '0' (str)"),  # type: ignore[arg-type]
    (lambda: ds.with_options(memory_budget=1.5), "memory_budget is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: ds.with_options(deterministic=1), "deterministic is 1 (int)"),  # type: ignore[arg-type]
    (lambda: ds.bucket_by_sequence_length(5, [1], [1, 2]), "element_length_func is 5 (int)"),  # type: ignore[arg-type]
    (lambda: ds.bucket_by_sequence_length(len, [1.5], [1, 2]), "bucket_boundaries is 1.5 (float)"),  # type: ignore[list-item]
    (lambda: ds.bucket_by_sequence_length(len, [1], [1, 2.5]), "bucket_batch_sizes is 2.5 (float)"),  # type: ignore[list-item]
    (
        lambda: ds.bucket_by_sequence_length(len, [1, 2], [1, 2]),
        "2 bucket_batch_sizes for 2 bucket_boundaries",
    ),
    (lambda: ds.bucket_by_sequence_length(len, [2, 2], [1, 2, 3]), "must increase"),
    (
        lambda: ds.bucket_by_sequence_length(len, [2], [1, 0]),
        "it must be a whole number, 1 or more",
    ),
    (lambda: Dataset.range("5"), "range is '5' (str): it must be a whole number"),  # type: ignore[arg-type]
    (lambda: Dataset.range(), "one to three numbers"),
    (lambda: Dataset.range(1, 2, 0), "step=0"),
    (lambda: Dataset.from_tensor_slices((np.zeros(2), np.zeros(3))), "[2, 3] rows"),
    (lambda: Dataset.from_tensor_slices(5), "has no rows"),
    (lambda: Dataset.zip(()), "at least one dataset"),
    (lambda: Dataset.sample_from_datasets([]), "at least one dataset"),
    (lambda: Dataset.choose_from_datasets([], ds), "at least one dataset"),
    (lambda: Dataset.sample_from_datasets([ds] * 3, [1, 2]), "weights="),
    (lambda: Dataset.sample_from_datasets([ds] * 3, [1, -2, 3]), "weights="),
    (lambda: Dataset.sample_from_datasets([ds] * 3, [1, float("nan"), 1]), "weights="),
    (lambda: Dataset.sample_from_datasets([ds] * 3, [1, float("inf"), 1]), "weights="),
    (lambda: ds.interleave(Dataset.range, 0), "1 or more"),
    (lambda: ds.interleave(Dataset.range, 1, 0), "1 or more"),
    (lambda: ds.interleave(Dataset.range, 1, 1, 0), "1 or more"),
    (lambda: TFRecordDataset("a").distribute(even="pad"), "pass manifest="),
    (lambda: TFRecordDataset("a").distribute(even="fair", manifest="m"), "must be one of"),  # type: ignore[arg-type]
    (lambda: TFRecordDataset("a").distribute(rank=1), "pass both"),
    (lambda: TFRecordDataset("a").distribute(2, 2), "less than world_size=2"),
    (lambda: ds.distribute(), "directly after TFRecordDataset"),
    (lambda: SHARDS.batch(2).global_shuffle(1, index="i"), "directly after"),
    (lambda: SHARDS.global_shuffle(1, index="i", quality="best"), "quality is 'best'"),  # type: ignore[arg-type]
    (
        lambda: SHARDS.global_shuffle(1, index="i", slot_groups=5, global_batch_size=12),
        "slot_groups=5 must divide",
    ),
    (lambda: SHARDS.global_shuffle(1, index="i", even="odd"), "even is 'odd'"),  # type: ignore[arg-type]
    (lambda: TFRecordDataset("a", "GZIP").global_shuffle(1, index="i"), "compress"),
    (lambda: ds.write_sync("x", num_shards=2), "gives all shards the same name: add '{shard:05d}'"),
    (lambda: ds.write_sync("{shard}", num_shards=2, max_shard_records=4), "exclude each other"),
    (lambda: ds.write_sync("x", progress=3), "progress is 3"),  # type: ignore[arg-type]
    (lambda: ds.cache("a*"), "is a pattern"),
    (lambda: ds.cache("a-{0..3}"), "is a pattern"),
    (lambda: ds.cache("a-{shard}"), "is a pattern"),
    (lambda: ds.with_options(memory_budget=0), "memory_budget is 0"),
    (lambda: ds.batch(3, deterministic=1), "deterministic is 1"),  # type: ignore[arg-type]
    (lambda: ds.batch(3, num_parallel_calls=0), "num_parallel_calls is 0"),
    (lambda: Dataset.from_generator(5), "generator is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (lambda: Dataset.zip(ds, 5), "datasets is 5 (int): a streamrec Dataset is expected"),
    (
        lambda: Dataset.choose_from_datasets([ds], 5),
        "choice_dataset is 5 (int): a streamrec Dataset is expected",
    ),  # type: ignore[arg-type]
    (
        lambda: Dataset.sample_from_datasets([ds, 5]),
        "datasets is 5 (int): a streamrec Dataset is expected",
    ),  # type: ignore[list-item]
    (lambda: Dataset.sample_from_datasets([ds], seed=1.5), "seed is 1.5 (float)"),  # type: ignore[arg-type]
    (
        lambda: Dataset.list_files(5),
        "a file name is 5 (int): give a URL or path, a pattern, or a list of them",
    ),  # type: ignore[arg-type]
    (lambda: Dataset.list_files("a", shuffle="yes"), "shuffle is 'yes' (str)"),  # type: ignore[arg-type]
    (lambda: TFRecordDataset(None), "a file name is None (NoneType): give a URL or path"),  # type: ignore[arg-type]
    (lambda: TFRecordDataset(["a", 5]), "a file name is 5 (int)"),  # type: ignore[list-item]
    (lambda: TFRecordDataset("a", num_parallel_reads=1.5), "num_parallel_reads is 1.5 (float)"),  # type: ignore[arg-type]
    (
        lambda: TFRecordDataset("a", num_parallel_reads=0),
        "num_parallel_reads is 0: it must be 1 or more, AUTOTUNE, or",
    ),
    (lambda: TFRecordDataset("a", buffer_size="1"), "buffer_size is '1' (str)"),  # type: ignore[arg-type]
    (lambda: TFRecordDataset("a", on_loss=5), "on_loss is 5 (int): it must be a function"),  # type: ignore[arg-type]
    (
        lambda: TFRecordDataset("a", storage_options="abc"),
        "storage_options is 'abc' (str): it must be a dict of",
    ),  # type: ignore[arg-type]
    (
        lambda: TFRecordDataset("a", filesystem="s3"),
        "filesystem is 's3' (str): it must be an fsspec filesystem",
    ),  # type: ignore[arg-type]
    (
        lambda: TFRecordDataset("a", **FILESYSTEM_AND_OPTIONS),
        "filesystem= and storage_options= exclude each other",
    ),
    (
        lambda: Dataset.list_files("a", **FILESYSTEM_AND_OPTIONS),
        "filesystem= and storage_options= exclude each other",
    ),
    (lambda: TFRecordDataset("a", retry={"attempts": 2}), POLICY),  # type: ignore[arg-type]
    (lambda: ShardWriter("a", retry={"attempts": 2}), POLICY),  # type: ignore[arg-type]
    (lambda: streamrec.verify_sync("a", retry={"attempts": 2}), POLICY),  # type: ignore[arg-type]
    (lambda: TFRecordDataset(""), "a file name is '': give a URL or path"),
    (lambda: TFRecordWriter(""), "the name to write is '': give a URL or path"),
    (
        lambda: ds[0],
        "elements of a Dataset have no numbers: list(dataset.skip(n).take(1)) gives element n",
    ),
    (lambda: enter(ds), "write `with dataset.iterate() as run`"),
    (
        lambda: enter(ShardWriter("a")),
        "write `async with ShardWriter(...)`; without asyncio, `with TFRecordWriter",
    ),
    (
        lambda: enter(streamrec.open_shard("a")),
        "write `async with open_shard(...) as shard`; without asyncio",
    ),
    (
        lambda: list(streamrec.open_shard("a")),
        "write `async with open_shard(...) as shard`; without asyncio",
    ),  # type: ignore[call-overload]
    (
        lambda: streamrec.__getattr__("torch"),
        "has no attribute 'torch': write `import streamrec.torch`",
    ),  # type: ignore[attr-defined]
    (
        lambda: streamrec.infer_features("s3://b/a"),
        "records is 's3://b/a' (str): give the records, such as TFRecordD",
    ),  # type: ignore[arg-type]
    (
        lambda: streamrec.infer_features(ds.batch(2)),
        "records holds an ndarray where a serialized Example is expected",
    ),
    (lambda: TFRecordDataset("a", compression_type=LONG), "compression_type is 'xxxx"),
    (lambda: ds.batch(LONG), "batch_size is 'xxxx"),
    (lambda: TFRecordDataset([LONG]).shuffle(None), "number is unknown here: pass buffer_size"),  # type: ignore[arg-type]
    (
        lambda: streamrec.encode_example({"a": [LONG, None]}),
        "feature 'a': None where bytes, str, bool",
    ),  # type: ignore[dict-item]
    (lambda: streamrec.encode_example({LONG: None}), "xxx': None where bytes, str, bool"),  # type: ignore[dict-item]
    (lambda: streamrec.FixedLenFeature([], LONG), "is not a kind that an Example holds"),
    (
        lambda: parse_example([RECORD], {LONG: INT}),
        "found nothing where 1 int64 values are expected: give a default_",
    ),
    (
        lambda: parse_example([MANY], {"name": INT}),
        "this record has 'name9', 'name8', 'name7', 'name0'",
    ),
    (
        lambda: parse_example([RECORD], {"a": streamrec.FixedLenFeature([], int, LONG)}),
        "(str): it must be an int64",
    ),
    (
        lambda: ds.state_dict(),
        "has no attribute 'state_dict': write run = dataset.iterate(), and run.state_dict()",
    ),
    (lambda: ds.map_and_batch(len, 2), "'map_and_batch': write dataset.map(...).batch(...)"),
    (
        lambda: len(ds.repeat()),
        "this dataset has no len(): it has no end. A torch DataLoader needs",
    ),
    (
        lambda: ds.iterate("{}"),
        "the state is '{}' (str): it must be a dict that `state_dict()` returned",
    ),  # type: ignore[arg-type]
    (
        lambda: Epochs([1, 2], len, len, 0, len),
        "dataset is [1, 2] (list): a streamrec Dataset is expected, such as",
    ),  # type: ignore[arg-type]
    (lambda: ds.cache("a", storage_options="abc"), "storage_options is 'abc' (str)"),  # type: ignore[arg-type]
    (lambda: ShardWriter("a{shard}", max_shard_bytes=1.5), "max_shard_bytes is 1.5 (float)"),  # type: ignore[arg-type]
    (lambda: ShardWriter("a", overwrite="no"), "overwrite is 'no' (str)"),  # type: ignore[arg-type]
    (lambda: ShardWriter("a", storage_options=[1]), "storage_options is [1] (list)"),  # type: ignore[arg-type]
    (
        lambda: streamrec.FixedLenFeature(np.int64, []),
        "a list of sizes comes first, then the dtype",
    ),  # type: ignore[arg-type]
    (lambda: streamrec.FixedLenFeature("int64", []), "a list of sizes comes first, then the dtype"),  # type: ignore[arg-type]
    (lambda: parse_example([RECORD], ["label"]), "features is ['label'] (list): it must be a dict"),  # type: ignore[arg-type]
    (
        lambda: parse_example([RECORD], {"lable": INT}),
        "a default_value if it may be missing; this record has 'label'",
    ),
    (
        lambda: list(ds.map(lambda _: None).batch(2)),
        "None where numbers or bytes are expected: does the function of map",
    ),
    (
        lambda: parse_example([STEPS], {"label": INT}),
        "a SequenceExample that has it as a feature list",
    ),
    (
        lambda: parse_sequence_example([RECORD], {}, {"label": LIST}),
        "give allow_missing=True if it may be missing; this",
    ),
    (
        lambda: streamrec.parse_single_example(RECORD, "label"),
        "features is 'label' (str): it must be a dict",
    ),  # type: ignore[arg-type]
    (lambda: list(ds.map(np.zeros).batch(4)), "cannot form one batch"),
    (
        lambda: ds.apply(lambda dataset: 5),
        "transformation_func returned 5 (int): it must return a Dataset",
    ),
    (
        lambda: Dataset.from_generator(list, output_signature="int64"),
        "output_signature holds 'int64' (str): pass st",
    ),
    (lambda: Dataset.range(5).to_arrow(), "call batch"),
    (lambda: ds.write_sync(NUMBERED), "not known before they are written: leave it out"),
    (lambda: ShardWriter(NUMBERED), "not known before they are written: leave it out"),
    (lambda: TFRecordWriter(NUMBERED), "not known before they are written: leave it out"),
    (
        lambda: SMALL.write_sync("{shard}", num_shards=500),
        "num_shards=500: that many shards at once hold",
    ),
    (
        lambda: TFRecordDataset("a", on_error="nothing"),
        "on_error is 'nothing' (str): it must be one of",
    ),
    (lambda: TFRecordDataset("a", max_skipped=-1), "max_skipped is -1"),
    (
        lambda: streamrec.open_shard("a", on_error="nothing"),
        "on_error is 'nothing' (str): it must be one of",
    ),
    (lambda: streamrec.open_shard("a", max_skipped=-1), "max_skipped is -1"),
    (lambda: streamrec.open_shard("a", start=-1, end=5), "a byte range begins at 0 or later"),
    (lambda: streamrec.open_shard("a", start=5, end=4), "a byte range begins at 0 or later"),
    (lambda: RetryPolicy(attempts=0), "pass 1 or more"),
    (lambda: RetryPolicy(patience=-1), "patience is -1; it is a time in seconds"),
    (lambda: RetryPolicy(hedge_share=1.5), "from 0 to 1"),
    (lambda: RetryPolicy(hedge_allowance=-1), "0 or more"),
    (lambda: RetryPolicy(first_byte_floor=0.0), "above 0"),
    (lambda: RetryPolicy(stall_floor=-0.5), "above 0"),
    (lambda: ShardWriter("s", "GZIP", index="x.index"), "x.index: compressed shards have no index"),
    (lambda: ShardWriter("s3://b/x", max_shard_bytes=1), "gives all shards the same name"),
    (lambda: shard_path("x-{shard:zz}", 0), "write {shard:05d}"),
    (lambda: np.asarray(COLUMN, copy=False), "without a copy: leave copy=False out"),
    (lambda: COLUMN.reshape(2, 1).__arrow_c_array__(), "reshape it"),
    (
        lambda: TFRecordOptions("SNAPPY"),
        "'SNAPPY' (str): it must be one of '', 'GZIP', 'ZLIB', 'ZSTD', None",
    ),
    (
        lambda: TFRecordOptions("GZIP", compression_threads=2),
        "compression_threads applies to ZSTD only, not to",
    ),
    (
        lambda: TFRecordOptions(None, compression_threads=2),
        "compression_threads applies to ZSTD only, not to",
    ),
    (
        lambda: TFRecordOptions("ZSTD", compression_threads=0),
        "compression_threads is 0: it must be a whole number, 1 or",
    ),
    (lambda: TFRecordOptions("GZIP", library="zopfli"), "it must be one of 'zlib', 'isal'"),
    (lambda: TFRecordOptions("ZSTD", library="isal"), "compresses GZIP and ZLIB, not 'ZSTD'"),
    (lambda: TFRecordOptions("GZIP", compression_level=9, library="isal"), "it is 0 to 3"),
    (lambda: decode_compressed(5, "GZIP"), "must be compressed bytes"),
    (lambda: decode_compressed(b"", "LZ4"), "compression_type is 'LZ4'"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError), match=re.escape(message)) as caught:
        call()
    assert len(str(caught.value)) < 270


def test_numbers_of_numpy_are_numbers() -> None:
    dataset = (
        ds.batch(np.int64(2), np.bool_(True))
        .shuffle(np.int32(3), seed=np.uint8(1))
        .take(np.int8(5))
    )  # type: ignore[arg-type]
    assert dataset == ds.batch(2, True).shuffle(3, seed=1).take(5).prefetch(0)
    assert pickle.loads(pickle.dumps(dataset)) == dataset


def test_scalars_of_a_single_example_are_scalars() -> None:
    """`io.BytesIO(parsed["image"])` reads the image."""
    features = {
        "image": streamrec.FixedLenFeature([], bytes),
        "label": streamrec.FixedLenFeature([], np.int64, 7),
    }
    for parsed in (
        streamrec.parse_single_example(RECORD, features),
        streamrec.parse_single_example(RECORD, features, string_columns=True),
        streamrec.parse_single_sequence_example(RECORD, features)[0],
        *Dataset.from_tensor_slices([RECORD]).map(
            lambda record: streamrec.parse_single_example(record, features)
        ),
    ):
        assert type(parsed["image"]) is bytes
        assert parsed["image"] == b"\xff\xd8\xff"
        assert type(parsed["label"]) is np.int64
        assert parsed["label"] == 3


def test_a_name_that_exists_is_not_a_pattern(tmp_path: Path) -> None:
    for name in ("[b].tfrecord", "b.tfrecord", "x*.tfrecord", "xy.tfrecord"):
        (tmp_path / name).write_bytes(encode_records([name.encode()]))
    assert list(TFRecordDataset(f"{tmp_path}/[b].tfrecord")) == [b"[b].tfrecord"]
    assert list(TFRecordDataset(f"{tmp_path}/x*.tfrecord")) == [b"x*.tfrecord"]
    (tmp_path / "x*.tfrecord").unlink()
    assert list(TFRecordDataset(f"{tmp_path}/x*.tfrecord")) == [b"xy.tfrecord"]
    assert list(Dataset.list_files(f"{tmp_path}/[b].tfrecord")) == [
        f"{tmp_path}/b.tfrecord".encode()
    ]  # as TensorFlow


def test_local_is_a_scheme(tmp_path: Path) -> None:
    with TFRecordWriter(f"local://{tmp_path}/a b.tfrecord") as writer:
        writer.write(b"a")
    assert (tmp_path / "a b.tfrecord").exists()
    assert list(TFRecordDataset(f"local://{tmp_path}/*.tfrecord")) == [b"a"]


async def test_a_bare_path_is_one_of_the_users_filesystem(tmp_path: Path) -> None:
    for filesystem in (
        fsspec.filesystem("memory"),
        DirFileSystem(str(tmp_path), LocalFileSystem()),
    ):
        for name in ("bare/0.tfrecord", "bare/1.tfrecord"):
            filesystem.makedirs("bare", exist_ok=True)
            filesystem.pipe_file(name, encode_records([name.encode()]))
        both = [b"bare/0.tfrecord", b"bare/1.tfrecord"]
        assert list(TFRecordDataset("bare/*.tfrecord", filesystem=filesystem)) == both
        assert list(TFRecordDataset("bare/0.tfrecord", filesystem=filesystem)) == both[:1]
        async with streamrec.open_shard("bare/1.tfrecord", filesystem=filesystem) as shard:
            assert [record async for record in shard] == both[1:]
        async with ShardWriter(
            "bare/2.tfrecord", filesystem=filesystem, manifest="bare/manifest.json"
        ) as writer:
            await writer.write(b"two")
        assert filesystem.cat_file("bare/2.tfrecord") == encode_records([b"two"])
        report = await streamrec.verify("bare/manifest.json", filesystem=filesystem)
        assert report.ok
        await streamrec.write_manifest("bare/?.tfrecord", "bare/all.json", filesystem=filesystem)
        names = Dataset.list_files("bare/?.tfrecord", filesystem=filesystem)
        assert [name.rpartition(b"/")[2] for name in names] == [
            b"0.tfrecord",
            b"1.tfrecord",
            b"2.tfrecord",
        ]


@pytest.mark.parametrize(
    "call",
    [
        lambda **more: streamrec.matching_files("x-*", **more),
        lambda **more: streamrec.write_index_sync("x-*", "x.index", **more),
        lambda **more: streamrec.write_manifest_sync("x-*", "m.json", **more),
        lambda **more: streamrec.verify_sync("x-*", **more),
        lambda **more: streamrec.ShardWriter("x-{shard}", **more),
        lambda **more: streamrec.RecordSource("x.index", **more),
        lambda **more: streamrec.TFRecordWriter("x", **more),
    ],
)
@pytest.mark.parametrize("name", ["storage_option", "max_connections"])
def test_a_keyword_that_is_not_one_is_refused_by_the_function_that_was_called(
    call: Any, name: str
) -> None:
    with pytest.raises(
        TypeError, match=rf"^(?!Storages)\w+\(\) got an unexpected keyword argument '{name}'"
    ):
        call(**{name: 1})


def test_a_replacement_is_proposed_only_for_what_a_dataset_does_not_have() -> None:
    assert [name for name in COUNTERPARTS if hasattr(Dataset, name)] == []


def documented() -> Iterator[tuple[str, str]]:
    """Each public name with its docstring; those of a class's methods, too."""
    for module in (streamrec, streamrec.pipeline, streamrec.shards, streamrec.tfrecord):
        for name in module.__all__:
            found = getattr(module, name)
            yield name, getattr(found, "__doc__", None) or ""
            if isinstance(found, type):
                for method, value in inspect.getmembers(found):
                    yield f"{name}.{method}", inspect.getdoc(value) or ""


def test_public_docstrings_name_no_function_that_checks_arguments() -> None:
    """A rename of such a function must not change sentences that users read."""
    functions = {name for name, _ in inspect.getmembers(arguments, inspect.isfunction)}
    assert len(functions) > 8
    wrong = [
        (name, word)
        for name, text in documented()
        for word in re.findall(r"\w+", text)
        if word in functions
    ]
    assert wrong == []
