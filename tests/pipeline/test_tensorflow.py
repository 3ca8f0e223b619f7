"""Beside TensorFlow, where it is installed: the same files, the same order, the same records."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import Frames, TFRecordDataset, TFRecordOptions, TFRecordWriter, encode_records

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer

RECORDS = [b"", b"\0\0", b"x" * 100_000, *(b"%d" % index for index in range(2000))]


def elements_of(dataset: Any) -> list[Any]:
    found = []
    for element in dataset.as_numpy_iterator():
        found.append(element.tolist() if hasattr(element, "tolist") else element)
    return found


def ours(dataset: Any) -> list[Any]:
    return [list(element) if isinstance(element, Frames) else element for element in dataset]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("shards")
    rng = random.Random(5)
    for shard, length in enumerate([40, 0, 3, 170, 1, 40, 77]):
        records = [b"%d.%d" % (shard, index) * rng.randrange(1, 50) for index in range(length)]
        (folder / f"{shard}").write_bytes(encode_records(records))
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("cycle_length", [1, 2, 3, 7, 9])
@pytest.mark.parametrize("block_length", [1, 4, 50])
def test_interleave_has_tensorflows_order(files: list[str], cycle_length: int, block_length: int) -> None:
    theirs = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset, cycle_length=cycle_length, block_length=block_length
    )
    dataset = TFRecordDataset(files, cycle_length=cycle_length, block_length=block_length)
    assert ours(dataset) == elements_of(theirs)


@pytest.mark.parametrize("parallel", [None, 1, 3])
def test_num_parallel_reads_means_the_same(files: list[str], parallel: int | None) -> None:
    theirs = tf.data.TFRecordDataset(files, num_parallel_reads=parallel)
    assert ours(TFRecordDataset(files, num_parallel_reads=parallel)) == elements_of(theirs)


def test_stages_mean_the_same(files: list[str]) -> None:
    theirs, mine = tf.data.TFRecordDataset(files), TFRecordDataset(files)
    assert ours(mine.batch(32)) == elements_of(theirs.batch(32))
    assert ours(mine.batch(32, drop_remainder=True)) == elements_of(theirs.batch(32, drop_remainder=True))
    assert ours(mine.take(50).repeat(2).batch(7)) == elements_of(theirs.take(50).repeat(2).batch(7))
    assert ours(mine.batch(7).take(3)) == elements_of(theirs.batch(7).take(3))
    assert ours(mine.map(len)) == elements_of(theirs.map(tf.strings.length))


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_tensorflow_reads_what_we_write(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "x")
    options = tf.io.TFRecordOptions(kind, compression_level=9)
    assert TFRecordOptions.of(options) == TFRecordOptions(kind, compression_level=9)
    with TFRecordWriter(path, options) as writer:
        for record in RECORDS:
            writer.write(record)
    assert elements_of(tf.data.TFRecordDataset(path, kind)) == RECORDS


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_we_read_what_tensorflow_writes(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "x")
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=kind)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert ours(TFRecordDataset(path)) == RECORDS


def test_options_have_tensorflows_fields() -> None:
    theirs = set(vars(tf.io.TFRecordOptions("GZIP")))
    assert theirs <= set(TFRecordOptions.__dataclass_fields__)


@pytest.mark.parametrize("order", ["tensorflow, streamrec", "streamrec, tensorflow"])
def test_both_live_in_one_process(order: str) -> None:
    code = (
        f"import {order}; tensorflow.train.Example.FromString(b'');"
        f"streamrec.TFRecordDataset; print(tensorflow.io.TFRecordWriter)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert streamrec.__version__
