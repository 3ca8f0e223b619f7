"""What happens to a run when somebody changes a local file that it reads."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamrec import Dataset, Frames, TFRecordDataset, encode_records
from streamrec.errors import ObjectChangedError


def rewrite(path: Path) -> None:
    """Writes other records of the same size in place."""
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    os.utime(path, ns=(1, 1))


def cut_off(path: Path) -> None:
    os.truncate(path, 5000)


@pytest.fixture(params=["", ".gz"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Larger than what a run of a small budget reads ahead."""
    path = tmp_path / f"train.tfrecord{request.param}"
    data = encode_records([b"%04d" % index + os.urandom(10_000) for index in range(4000)])
    path.write_bytes(gzip.compress(data, 0) if request.param else data)
    return path


def reading(shard: Path, size: int) -> Dataset[Frames]:
    """Batches of records from a buffer of `size` of them."""
    records = TFRecordDataset(str(shard), buffer_size=100_000).with_options(memory_budget=8_000_000)
    return records.shuffle(size, seed=1).batch(4)


@pytest.mark.parametrize("change", [rewrite, cut_off])
def test_nothing_that_changed_is_handed_out(shard: Path, change: Callable[[Path], None]) -> None:
    wanted = set(TFRecordDataset(str(shard)))
    batches = reading(shard, 20).iterate()
    assert set(next(batches)) <= wanted
    change(shard)
    with pytest.raises(ObjectChangedError, match="replaced while it was being read") as caught:
        for batch in batches:
            assert set(batch) <= wanted
    assert caught.value.path == str(shard)


def test_a_name_that_goes_to_another_file_is_no_change(shard: Path) -> None:
    wanted = list(TFRecordDataset(str(shard)))
    records = iter(TFRecordDataset(str(shard), buffer_size=100_000))
    found = [next(records)]
    other = shard.with_suffix(".new")
    other.write_bytes(encode_records([b"new"] * 10))
    other.replace(shard)
    assert [*found, *records] == wanted
