"""What is typed wrong in the first minutes: one clear line says what, where and what to do."""

import collections.abc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    CorruptRecordError,
    FeatureError,
    FixedLenFeature,
    RaggedFeature,
    SparseFeature,
    TFRecordDataset,
    encode_example,
    encode_examples,
    encode_records,
    encode_sequence_example,
    parse_example,
    parse_sequence_example,
    parse_single_example,
)
from streamrec.errors import TruncatedShardError
from tests.runs import in_new_interpreter

EXAMPLE = encode_example({"label": 3})
LABEL = {"label": FixedLenFeature([], "int64")}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(encode_records([EXAMPLE] * 5))
    return path


def test_next_of_a_dataset_says_how_to_iterate(shard: Path) -> None:
    with pytest.raises(TypeError, match=r"write `elements = iter\(dataset\)` once"):
        next(TFRecordDataset(shard))  # type: ignore[call-overload]
    elements = iter(TFRecordDataset(shard))
    assert next(elements) == EXAMPLE
    assert isinstance(elements, collections.abc.Iterator)
    elements.close()


@pytest.mark.parametrize("value", ["int64", int, np.int64, FixedLenFeature, None])
def test_a_description_is_checked_before_the_first_record(shard: Path, value: Any) -> None:
    with pytest.raises(FeatureError, match=r"feature 'label': .* such as FixedLenFeature\(\[\]"):
        TFRecordDataset(shard).batch(2).parse_example({"label": value})
    with pytest.raises(FeatureError, match=r"such as FixedLenFeature\(\[\], 'int64'\)"):
        parse_example([EXAMPLE], {"label": value})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: encode_example([1]), r"features is \[1\] \(list\): it must be a dict"),  # type: ignore[arg-type]
        (lambda: encode_example(None), "features is None"),  # type: ignore[arg-type]
        (lambda: encode_example("ab"), "features is 'ab'"),  # type: ignore[arg-type]
        (lambda: encode_examples([{"a": 1}]), "columns is .* it must be a dict"),  # type: ignore[arg-type]
        (lambda: encode_sequence_example({}, [1]), "feature_lists is .* it must be a dict"),  # type: ignore[arg-type]
        (lambda: encode_sequence_example([1], {}), "context is .* it must be a dict"),  # type: ignore[arg-type]
    ],
)
def test_only_a_dict_can_be_encoded(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedLenFeature(["a"], "int64"), "a size in shape is 'a' .*: it must be a whole"),
        (lambda: FixedLenFeature([1.5], "int64"), "a size in shape is 1.5"),
        (lambda: FixedLenFeature([[1]], "int64"), r"a size in shape is \[1\]"),
        (lambda: SparseFeature("i", "v", "int64", ["a"]), "a size is 'a'"),
        (lambda: SparseFeature("i", "v", "int64", None), "size is None"),  # type: ignore[arg-type]
        (lambda: SparseFeature(3, "v", "int64", 3), "index_key is 3 .*: give a name"),  # type: ignore[arg-type]
        (
            lambda: RaggedFeature("int64", partitions=[RaggedFeature.UniformRowLength("a")]),  # type: ignore[arg-type]
            "a UniformRowLength is 'a'",
        ),
    ],
)
def test_sizes_of_features_are_whole_numbers(make: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        make()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"junk", "the record is 4 bytes that are not an Example"),
        (b"\x09" + bytes(8) + b"\x2a\x05hello", "of another message type, with the fields 1, 5"),
    ],
)
def test_a_missing_feature_of_another_message_says_what_it_is(record: bytes, said: str) -> None:
    features = {"other": FixedLenFeature([], "int64")}
    for parse in (
        lambda: parse_example([EXAMPLE, record], {"label": features["other"]}),
        lambda: parse_single_example(record, features),
        lambda: parse_sequence_example([record], features),
    ):
        with pytest.raises(FeatureError, match=said):
            parse()
    with pytest.raises(FeatureError, match=r"feature 'other': .*this record has 'label'"):
        parse_single_example(EXAMPLE, features)


def test_names_of_other_writers_arguments_are_translated(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    with pytest.raises(TypeError, match="argument 'compression_type': write compression='GZIP'"):
        streamrec.ShardWriter(path, compression_type="GZIP")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="argument 'compresion': write compression='GZIP'"):
        streamrec.ShardWriter(path, compresion="GZIP")  # type: ignore[call-arg]
    for name in ("compression", "compression_type"):
        with pytest.raises(TypeError, match=f"argument '{name}': write options='GZIP'"):
            streamrec.TFRecordWriter(path, **{name: "GZIP"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"did you mean storage_options=\?"):
        streamrec.ShardWriter(path, storage_option={})  # type: ignore[call-arg]


def test_record_sources_are_context_managers(shard: Path) -> None:
    index = shard.with_suffix(".index")
    streamrec.write_index_sync(shard, index)
    with streamrec.RecordSource(index) as source:
        assert source[4] == EXAMPLE


async def test_record_sources_are_async_context_managers(shard: Path) -> None:
    index = shard.with_suffix(".index")
    await streamrec.write_index(shard, index)
    async with await streamrec.RecordSource.open(index) as source:
        assert list(await source.get([0, 4])) == [EXAMPLE] * 2


def test_damage_is_a_value_error(shard: Path) -> None:
    """So catch loops that were written for other libraries."""
    data = shard.read_bytes()
    for damaged, kind in (
        (data[:-1], TruncatedShardError),
        (data[:-1] + b"?", CorruptRecordError),
    ):
        shard.write_bytes(damaged)
        with pytest.raises(ValueError, match="record 4, byte") as caught:
            list(TFRecordDataset(shard))
        assert type(caught.value) is kind


@pytest.mark.parametrize("text", [b"hello\n", b"a,b\n", b"<html></htm", '{"día": 1}'.encode()])
def test_a_short_text_is_not_an_unfinished_shard(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "notes.tfrecord"
    path.write_bytes(text)
    with pytest.raises(CorruptRecordError, match=f"not a TFRecord file: it has only {len(text)}"):
        list(TFRecordDataset(path))


@pytest.mark.parametrize("left", range(1, 12))
def test_a_cut_header_is_an_unfinished_shard(tmp_path: Path, left: int) -> None:
    path = tmp_path / "cut.tfrecord"
    path.write_bytes(encode_records([b"x" * 0x4142])[:left])
    with pytest.raises(TruncatedShardError, match=f"the shard ends after {left} of at least 12"):
        list(TFRecordDataset(path))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        *(
            (f"{scheme}://b/k", r"write s3://BUCKET/NAME .*endpoint_url")
            for scheme in ("ais", "swift", "cos", "r2", "minio", "wasabi", "b2", "ceph")
        ),
        ("wasb://c@a/k", "write az://CONTAINER/NAME"),
        ("azure://c/k", "write az://CONTAINER/NAME"),
        ("gcp://b/k", "write gs://BUCKET/NAME"),
        ("htpp://h/k", "did you mean 'http'"),
        ("nfs://h/k", "known are s3, .*: *|a store that speaks S3"),
    ],
)
def test_unknown_schemes_name_what_to_write(url: str, said: str) -> None:
    with pytest.raises(streamrec.errors.StorageError, match=said) as caught:
        list(TFRecordDataset(url))
    assert "did you mean" not in str(caught.value) or "htpp" in url


def test_misspelt_names_get_a_proposal() -> None:
    """Python prints it where the error says which name of which module was asked for."""
    for package, written, meant in (
        ("streamrec", "TfRecordDataset", "TFRecordDataset"),
        ("streamrec.example", "FixedLenFeatures", "FixedLenFeature"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"import {package}\n{package}.{written}"],
            capture_output=True,
            text=True,
        )
        assert f"Did you mean: '{meant}'?" in done.stderr


def test_help_of_a_dataset_shows_no_internal_parameters() -> None:
    code = "import pydoc, streamrec\nprint(pydoc.render_doc(streamrec.Dataset))"
    assert "chain" not in in_new_interpreter(code)[:400]
