"""An index as a by-product: whoever reads all shards in a first epoch has it at the end."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import RecordSource, TFRecordDataset, encode_records
from streamrec.pipeline.sources.shards import ranks
from tests.pipeline.sources.global_shuffle.indexed import numbered

SHARDS = numbered([900, 0, 1500, 333, 5, 1], 300)
ALL = [record for shard in SHARDS for record in shard]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, records in enumerate(SHARDS):
        (tmp_path / f"{number:03d}.tfrecord").write_bytes(encode_records(records))
    return tmp_path


def dataset(folder: Path, **arguments: Any) -> streamrec.Dataset[bytes]:
    return TFRecordDataset(f"{folder}/*.tfrecord", write_index=f"{folder}/own.index", **arguments)


def test_a_first_epoch_writes_the_index(folder: Path) -> None:
    """The same that a pass for nothing else writes, in any order of reading; and a second epoch writes none."""
    records = dataset(folder, num_parallel_reads=3, buffer_size=1 << 16)
    assert sorted(records.batch(100).unbatch()) == sorted(ALL)
    index = folder / "own.index"
    alone = streamrec.write_index_sync(f"{folder}/*.tfrecord", f"{folder}/alone.index")
    assert RecordSource(index).index.digest == alone.digest
    assert list(RecordSource(index)) == ALL
    index.unlink()
    assert len(list(records)) == len(ALL)
    assert not index.exists()


def test_an_epoch_that_is_left_early_writes_none_and_loses_nothing(folder: Path) -> None:
    """Nor does one that is resumed in another process; the next epoch is whole."""
    records = dataset(folder)
    run = records.iterate()
    list(islice(run, 950))
    state = run.state_dict()
    run.close()
    assert not (folder / "own.index").exists()
    resumed = dataset(folder)
    assert list(resumed.iterate(state)) == ALL[950:]
    assert not (folder / "own.index").exists()
    assert list(resumed) == ALL
    assert list(RecordSource(folder / "own.index")) == ALL


def ranked(folder: Path, size: int) -> Iterator[streamrec.Dataset[bytes]]:
    for rank in range(size):
        yield dataset(folder).distribute(rank, size)


@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_and_workers_write_parts_and_the_last_one_joins_them(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index holds each record once; the global shuffle takes it."""
    for number in range(8):  # as many bytes for each reader: else some shards are cut in pieces
        (folder / f"{number:03d}.tfrecord").write_bytes(encode_records(ALL))
    for worker in range(workers):
        monkeypatch.setattr(ranks, "worker_here", lambda here=(worker, workers): here)
        for own in ranked(folder, 2):
            assert not (folder / "own.index").exists()
            list(own)
    monkeypatch.undo()
    everything = sorted(ALL * 8)
    assert len(list(folder.glob("own.index.part-*"))) == 2 * workers
    assert sorted(RecordSource(folder / "own.index")) == everything
    shuffled = TFRecordDataset(f"{folder}/*.tfrecord").global_shuffle(1, index=f"{folder}/own.index")
    assert sorted(shuffled) == everything


@pytest.mark.parametrize(("harm", "why"), [("damage", "damage in it was left out"), ("gzip", "it is compressed")])
def test_what_has_no_index_is_said(folder: Path, harm: str, why: str, caplog: pytest.LogCaptureFixture) -> None:
    """All good records come, and the log says why no index was written."""
    shard = folder / "003.tfrecord"
    if harm == "damage":
        data = bytearray(shard.read_bytes())
        data[14] ^= 1
        shard.write_bytes(data)
    else:
        with streamrec.TFRecordWriter(shard, "GZIP") as writer:
            for record in SHARDS[3]:
                writer.write(record)
    with caplog.at_level(logging.WARNING, "streamrec"):
        found = list(dataset(folder, on_error="skip_record"))
    assert len(found) == len(ALL) - (harm == "damage")
    assert not (folder / "own.index").exists()
    assert any("003.tfrecord" in line and why in line for line in caplog.messages)


def test_compressed_by_its_own_word(folder: Path) -> None:
    """It is refused before anything is read."""
    with pytest.raises(ValueError, match=r"compressed shards have no index.*streamrec reshard"):
        dataset(folder, compression_type="GZIP")
