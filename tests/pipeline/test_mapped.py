"""memory_map: the same records as by reading, the same order and states, over the pages of the file."""

import gzip
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, TFRecordDataset, encode_example, encode_records
from streamrec.testing.resuming import assert_resumes_everywhere, plain

FEATURES = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([], np.int64)}
SHARDS, RECORDS = 5, 40


@pytest.fixture
def images(tmp_path: Path) -> list[str]:
    """Shards of long records, and one of none."""
    paths = [tmp_path / f"{shard}.tfrecord" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        examples = [
            encode_example({"image": bytes([shard]) * (9000 + 17 * index), "label": shard * RECORDS + index})
            for index in range(RECORDS)
        ]
        path.write_bytes(encode_records(examples if shard else []))
    return [str(path) for path in paths]


def chain(paths: list[str], memory_map: bool, **options: Any) -> Dataset[Any]:
    records = TFRecordDataset(paths, num_parallel_reads=3, buffer_size=30_000, memory_map=memory_map, **options)
    return records.shuffle(30, seed=4).repeat(2).batch(7)


@pytest.mark.parametrize("string_columns", [False, True])
def test_elements_are_those_that_are_read(images: list[str], string_columns: bool) -> None:
    found, wanted = (
        [plain(batch) for batch in chain(images, mapped).parse_example(FEATURES, string_columns=string_columns)]
        for mapped in (True, False)
    )
    assert found == wanted
    assert sum(len(batch["label"][1]) for batch in found) == 2 * (SHARDS - 1) * RECORDS


def test_it_resumes_everywhere(images: list[str]) -> None:
    assert_resumes_everywhere(chain(images, True))


def test_states_of_either_go_on_in_the_other(images: list[str]) -> None:
    wanted = [plain(batch) for batch in chain(images, False)]
    for mapped in (False, True):
        batches = chain(images, mapped).iterate()
        first = [plain(next(batches)) for _ in range(9)]
        rest = chain(images, not mapped).iterate(batches.state_dict())
        assert first + [plain(batch) for batch in rest] == wanted


def test_long_records_are_never_copied(images: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the page cache to the batch."""

    def refuse(*_: object) -> None:
        raise AssertionError("copied")

    for name in ("pick", "gather", "interleave"):
        monkeypatch.setattr(f"streamrec.kernels.{name}", refuse)
    records = TFRecordDataset(images, num_parallel_reads=SHARDS, memory_map=True).shuffle(500, seed=1)
    for batch in records.batch(8).parse_example(FEATURES, string_columns=True):
        assert batch["image"].scattered
        assert all(buffer.readonly for buffer in batch["image"].buffers)


def test_what_cannot_be_mapped_is_read(images: list[str], tmp_path: Path) -> None:
    compressed = str(tmp_path / "x.tfrecord.gz")
    Path(compressed).write_bytes(gzip.compress(Path(images[1]).read_bytes()))
    remote = f"memory://{uuid.uuid4()}/x.tfrecord"
    with fsspec.open(remote, "wb") as file:
        file.write(Path(images[2]).read_bytes())
    paths = [compressed, remote, images[3]]
    assert list(TFRecordDataset(paths, memory_map=True)) == list(TFRecordDataset(paths))


def test_pieces_of_shards_are_read(images: list[str]) -> None:
    parts = [TFRecordDataset(images[1:2], memory_map=True).distribute(index, 3) for index in range(3)]
    assert [record for part in parts for record in part] == list(TFRecordDataset(images[1:2]))
