"""streamrec.torch: a Dataset in a DataLoader and a StatefulDataLoader, in one process and in
workers.
"""

import copy
import gzip
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    Frames,
    RaggedTensor,
    SparseTensor,
    TFRecordDataset,
    encode_records,
    write_manifest_sync,
)
from tests.adapters.conftest import FEATURES, LOADER_WARNINGS, ids_of, write_numbered
from tests.effort import THOROUGH
from tests.runs import in_new_interpreter, until_error, write_shards

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")

from torch.utils.data import DataLoader  # noqa: E402

from streamrec.torch import IterableDataset, Loader, to_tensors  # noqa: E402

pytestmark = [pytest.mark.peer, *LOADER_WARNINGS]


def shards(folder: Path, counts: Sequence[int], compressed: Sequence[int] = ()) -> str:
    for shard, count in enumerate(counts):
        data = encode_records([b"%02d/%04d" % (shard, number) for number in range(count)])
        (folder / f"train-{shard:02d}").write_bytes(
            gzip.compress(data) if shard in compressed else data
        )
    return str(folder / "train-*")


def records_of_all(counts: Sequence[int]) -> list[bytes]:
    return [
        b"%02d/%04d" % (shard, number)
        for shard, count in enumerate(counts)
        for number in range(count)
    ]


def load(dataset: Any, workers: int, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize(
    ("counts", "compressed", "world", "workers"),
    [
        ([50], (), 1, 0),
        ([50, 20], (), 1, 2),
        ([50], (), 2, 3),  # one shard, six readers
        ([5, 0, 30, 0], (), 3, 1),
        ([20, 20, 20], (0, 1, 2), 2, 2),  # compressed: more readers than shards
        ([200, 40, 40], (1,), 2, 2),
    ],
)
def test_ranks_and_workers_read_each_record_once(
    tmp_path: Path, counts: list[int], compressed: tuple[int, ...], world: int, workers: int
) -> None:
    dataset = TFRecordDataset(shards(tmp_path, counts, compressed)).distribute()
    seen = [
        list(load(IterableDataset(dataset.with_options(rank=rank, world_size=world)), workers))
        for rank in range(world)
    ]
    assert sorted(record for own in seen for record in own) == records_of_all(counts)


def test_workers_of_even_ranks_give_the_same_number_of_batches(tmp_path: Path) -> None:
    names = shards(tmp_path, [31, 12, 5])
    write_manifest_sync(names, str(tmp_path / "manifest.json"))
    dataset = (
        TFRecordDataset(names)
        .distribute(even="pad", manifest=str(tmp_path / "manifest.json"))
        .batch(4)
    )
    loaders = [
        load(IterableDataset(dataset.with_options(rank=rank, world_size=3)), 2) for rank in range(3)
    ]
    seen = list(map(list, loaders))
    assert list(map(len, loaders)) == [len(batches) for batches in seen] == [4, 4, 4]
    assert {record for batches in seen for batch in batches for record in batch} == set(
        records_of_all([31, 12, 5])
    )


def test_a_warning_names_workers_that_get_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two compressed shards for four workers."""
    dataset = IterableDataset(
        TFRecordDataset(shards(tmp_path, [9, 9], compressed=[0, 1])).distribute().batch(3)
    )
    with closing(logging.FileHandler(tmp_path / "log")) as log:
        monkeypatch.setattr(logging.getLogger("streamrec"), "handlers", [log])  # workers inherit it
        assert sum(map(len, load(dataset, 4, multiprocessing_context="fork"))) == 18
    assert (
        "of 4 readers (ranks times loader workers), these get nothing of"
        in (tmp_path / "log").read_text()
    )


def test_a_dataloader_that_batches_batches_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    numbers = Dataset.range(8)
    assert [batch.shape for batch in DataLoader(IterableDataset(numbers), batch_size=4)] == [
        (4,),
        (4,),
    ]
    assert [batch.shape for batch in load(IterableDataset(numbers.batch(8)), 0)] == [(8,)]
    assert not caplog.messages
    for batched in (
        numbers.batch(8),
        numbers.batch(8).take(1).prefetch(1),
        numbers.batch(4).repeat(2),
    ):
        with pytest.raises(ValueError, match=r"pass batch_size=None.*append \.unbatch\(\)"):
            next(iter(DataLoader(IterableDataset(batched), batch_size=4)))
    assert not caplog.messages
    pairs = numbers.batch(2).map(sum)  # a function may make one example of a batch
    assert [batch.tolist() for batch in DataLoader(IterableDataset(pairs), batch_size=4)] == [
        [1, 5, 9, 13]
    ]
    assert caplog.messages == [
        "a DataLoader makes batches of the batches of this dataset: pass batch_size=None to it"
    ]


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")  # torch 2.13
def test_a_lambda_for_a_spawned_worker_is_refused() -> None:
    dataset = IterableDataset(Dataset.range(8).map(lambda number: number))
    said = r"cannot be sent to a worker process \(.*lambda.*\): define .* with def, at the"
    with pytest.raises(TypeError, match=said):
        next(iter(load(dataset, 1, multiprocessing_context="spawn")))


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_kept_workers_read_each_epoch_once(tmp_path: Path, context: str) -> None:
    records = records_of_all([20])
    dataset = IterableDataset(TFRecordDataset(shards(tmp_path, [20])).distribute().batch(3))
    loader = load(dataset, 2, multiprocessing_context=context, persistent_workers=True)
    for _ in range(2):
        assert sorted(record for batch in loader for record in batch) == records


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [(1, 1), (1, 2), (1, 3)])
def test_with_the_epoch_next_to_its_state_a_resumed_loop_trains_three(
    tmp_path: Path, workers: int, stop: tuple[int, int]
) -> None:
    """Killed within an epoch, after its last batch (2), and at its end (3)."""
    dataset = TFRecordDataset(shards(tmp_path, [10, 10])).distribute().batch(10)

    def train(
        saved: dict[str, Any], stop: tuple[int, int] | None
    ) -> tuple[list[int], dict[str, Any]]:
        loader = stateful.StatefulDataLoader(
            IterableDataset(dataset), batch_size=None, num_workers=workers
        )
        if saved:
            loader.load_state_dict(saved["loader"])
        trained = []
        for epoch in range(saved.get("epoch", 0), 3):
            for number, _ in enumerate(loader, 1):
                trained.append(epoch)
                if stop == (epoch, number):
                    return trained, {"loader": loader.state_dict(), "epoch": epoch}
            if stop == (epoch, 3):
                return trained, {"loader": loader.state_dict(), "epoch": epoch + 1}
        return trained, {}

    killed, state = train({}, stop)
    rest, _ = train(state, None)
    assert killed + rest == [0, 0, 1, 1, 2, 2]


class EpochOfRun(IterableDataset):
    """Gives the epoch that its run is in, from each process that iterates."""

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        epoch = self.state_dict()["epoch"]
        yield from (epoch for _ in iterator)


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_iteration_is_the_next_epoch(
    tmp_path: Path, workers: int, options: dict[str, Any]
) -> None:
    spy = EpochOfRun(TFRecordDataset(shards(tmp_path, [2, 2])).distribute().batch(2))
    loader = load(spy, workers, **(options if workers else {}))
    assert [list(loader) for _ in range(2)] == [[0, 0], [1, 1]]
    spy.set_epoch(7)
    assert [list(loader) for _ in range(2)] == [[7, 7], [8, 8]]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_stateful_loaders_resume_exactly(tmp_path: Path, workers: int) -> None:
    dataset = (
        TFRecordDataset(shards(tmp_path, [20, 9, 14]), num_parallel_reads=2).distribute().batch(4)
    )

    def loader() -> Any:
        return stateful.StatefulDataLoader(
            IterableDataset(dataset), batch_size=None, num_workers=workers
        )

    whole = list(loader())
    assert sorted(record for batch in whole for record in batch) == records_of_all([20, 9, 14])
    for stop in range(len(whole)) if THOROUGH or not workers else (0, 1, 4, len(whole) - 1):
        first = loader()
        batches = iter(first)
        before = [next(batches) for _ in range(stop)]
        second = loader()
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert before + list(second) == whole
        assert list(second) == whole  # the next epoch begins at its beginning
        del batches, first


def test_several_processes_need_distribute(tmp_path: Path) -> None:
    dataset = IterableDataset(TFRecordDataset(shards(tmp_path, [20])))
    assert len(list(load(dataset, 1))) == 20
    with pytest.raises(ValueError, match=r"2 processes .* would each read all"):
        list(load(dataset, 2))
    with pytest.raises(ValueError, match=r"call .distribute\(\)"):
        list(IterableDataset(Dataset.range(3).with_options(rank=0, world_size=2)))
    with pytest.raises(TypeError, match=r"dataset is .x. \(str\): a streamrec Dataset is expected"):
        IterableDataset("x")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [IterableDataset, Loader])
def test_an_unknown_length_is_no_attribute(kind: Any) -> None:
    known = Dataset.range(100).batch(4)
    assert hasattr(kind(known), "__len__")
    assert len(kind(known)) == 25
    unknown = kind(known.filter(lambda batch: batch[0] % 8 == 0))
    assert not hasattr(unknown, "__len__")
    with pytest.raises(TypeError, match="depends on its data"):
        len(unknown)
    assert len(list(unknown)) == 13


def test_two_workers_below_a_distribution_cache_in_files_of_their_own(tmp_path: Path) -> None:
    for shard in range(4):
        records = [b"%d" % number for number in range(shard, 40, 4)]
        (tmp_path / f"{shard}.tfrecord").write_bytes(encode_records(records))
    dataset = TFRecordDataset(f"{tmp_path}/*.tfrecord").distribute().cache(tmp_path / "cache")
    loader = DataLoader(IterableDataset(dataset), batch_size=None, num_workers=2)
    epochs = [sorted(map(int, loader)) for _ in range(2)]
    assert epochs == [list(range(40))] * 2


def test_leaving_the_loop_ends_the_run() -> None:
    elements = iter(IterableDataset(Dataset.range(10**9)))
    assert int(next(elements)) == 0
    elements.close()  # type: ignore[attr-defined]
    assert next(elements, None) is None


def test_arrays_become_tensors_without_a_copy() -> None:
    array = np.arange(3)
    shared = to_tensors({"a": (array, b"x")})["a"][0]
    array[0] = 7
    assert shared.tolist() == [7, 1, 2]
    array.flags.writeable = False
    copied = to_tensors(array)
    copied[1] = 9
    assert array.tolist() == [7, 1, 2]
    with pytest.raises(
        streamrec.FeatureError, match="feature 'x': row splits from 0 to 12 must go from 0 to 3"
    ):
        to_tensors({"x": RaggedTensor(np.arange(3), (np.array([0, 12]),))})
    ragged = to_tensors(RaggedTensor(np.arange(3), (np.array([0, 1, 3]),)))
    assert isinstance(ragged, RaggedTensor)
    assert isinstance(ragged.flat_values, torch.Tensor)
    assert [row.tolist() for row in ragged] == [[0], [1, 2]]
    assert torch.equal(ragged[-1], torch.tensor([1, 2]))
    moved: Any = ragged.to("meta")
    assert {part.device.type for part in (moved.flat_values, *moved.nested_row_splits)} == {"meta"}
    sparse = to_tensors(
        SparseTensor(np.array([[0, 0], [1, 0]]), np.array([b"a", b"b"], object), np.array([3, 1]))
    )
    assert [list(row) for row in sparse] == [[b"a"], [b"b"], [b""]]
    assert to_tensors(Frames.of([b"a", b"b"])) == [b"a", b"b"]
    assert to_tensors(np.array([b"a", b"b"], dtype=object)) == [b"a", b"b"]
    assert to_tensors(np.float32(2)).dtype == torch.float32
    assert to_tensors("text") == "text"
    assert isinstance(next(iter(IterableDataset(Dataset.range(3), tensors=False))), np.integer)
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert to_tensors(np.array([1.5], bfloat16)).tolist() == [1.5]


def columns_of(numbers: Any) -> dict[str, Any]:
    """Columns of all kinds for four numbers; of the first ones, so many bytes that they are sent in
    shared memory.
    """
    images = np.empty(2, object)
    images[:] = [np.full((2, 3), 7, np.uint8), np.full((1, 1), 8, np.uint8)]
    return {
        "id": numbers,
        "half": (numbers[:, None] / 2).astype(np.float32),
        "flag": numbers % 2 == 0,
        "empty": np.zeros((4, 0)),
        "long": np.ones((4, 100_000 * (numbers[0] == 0))),
        "one": np.float64(2),
        "big-endian": numbers.astype(">i4"),
        "same": np.broadcast_to(np.int16(3), (4, 2)),
        "backwards": numbers[::-1],
        "name": np.array([b"a", b"b"], object),
        "images": images,
        "ragged": RaggedTensor(numbers.astype(np.uint8), (np.array([0, 1, 4]),)),
        "sparse": SparseTensor(
            np.array([[0, 0], [1, 0]]), np.array([b"a", b"b"], object), np.array([3, 1])
        ),
    }


def changed_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """A collate function that makes views, copies and new tensors, and changes what came and the
    copies.
    """
    copies = {
        "copied": copy.deepcopy(batch["id"]).add_(1),
        "shallow": copy.copy(batch["big-endian"]),
    }
    copies["shallow"].data = torch.tensor([5])
    batch["half"].resize_(2, 2).t_()
    batch["flag"].data = torch.tensor([True])
    return {
        **batch,
        **copies,
        "some": batch["id"][1:],
        "twice": batch["id"] * 2,
        "weight": torch.ones(2, requires_grad=True),
    }


@pytest.mark.parametrize("collate", [None, changed_batch])
@pytest.mark.parametrize(
    ("context", "strategy"),
    [("fork", "file_descriptor"), ("fork", "file_system"), ("spawn", "file_system"), ("fork", "")],
)
def test_a_worker_sends_the_same_tensors_in_one_block(
    monkeypatch: pytest.MonkeyPatch, context: str, strategy: str, collate: Any
) -> None:
    """In shared memory of both kinds, and where a forked worker gets none."""
    before = torch.multiprocessing.get_sharing_strategy()
    dataset = IterableDataset(Dataset.range(8).batch(4).map(columns_of))
    expected = list(load(dataset, 0, collate_fn=collate))
    if not strategy:
        monkeypatch.setattr(torch.Tensor, "share_memory_", lambda tensor: torch.ones(-1))
    torch.multiprocessing.set_sharing_strategy(strategy or before)
    try:
        batches = list(load(dataset, 1, collate_fn=collate, multiprocessing_context=context))
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert repr(batches) == repr(expected)
    first = batches[0]
    assert (
        first["id"].untyped_storage().data_ptr()
        == first["ragged"].flat_values.untyped_storage().data_ptr()
    )
    weight = torch.ones(4, requires_grad=True)
    product = (weight * first["half"].reshape(-1)).sum()
    first["id"].add_(100)
    product.backward()  # it still has the values that it was computed from
    assert repr(first["big-endian"]) == repr(expected[0]["big-endian"])


def test_forked_workers_inherit_the_client_of_the_store() -> None:
    """No worker imports it again; what is missing or wrong is an error only when data is read."""
    program = """
import sys, streamrec, streamrec.torch
for name in ("s3://b/x", "s4://b/x", "b\\0"):
    streamrec.torch.IterableDataset(streamrec.TFRecordDataset([name]).repeat())
print("streamrec.storage.backends.s3.backend" in sys.modules)
"""
    assert in_new_interpreter(program) == "True\n"


def test_a_loader_does_not_import_a_shuffle_that_it_does_not_use() -> None:
    """Asking whether the dataset makes batches took 20 ms of each process's first batch."""
    code = """
import sys, streamrec, streamrec.torch
dataset = streamrec.Dataset.range(4).batch(2)
assert len(list(streamrec.torch.IterableDataset(dataset))) == 2
print("streamrec.pipeline.sources.global_shuffle.source" in sys.modules)
"""
    assert in_new_interpreter(code).split() == ["False"]


def test_ranks_of_a_process_group_and_their_spawned_workers(tmp_path: Path) -> None:
    names = shards(tmp_path, [30, 10, 20])
    command = [sys.executable, "-m", "tests.adapters.ranked", "torch"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "meeting"), names], stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    output = [json.loads(rank.communicate()[0]) for rank in ranks]
    assert [here for here, _ in output] == [there for _, there in output]
    assert sorted(output[0][0] + output[1][0]) == [
        record.decode() for record in records_of_all([30, 10, 20])
    ]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_worker_that_is_killed_is_an_error(tmp_path: Path, persistent: bool) -> None:
    files = write_shards(tmp_path, [[bytes(1000)] * 20_000])
    dataset = IterableDataset(TFRecordDataset(files).distribute().repeat().batch(8))
    batches: Any = iter(load(dataset, 2, persistent_workers=persistent))
    next(batches)
    os.kill(batches._workers[1].pid, signal.SIGKILL)
    until_error(batches, RuntimeError, r"worker \(pid.* (killed|exited)")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")
def test_a_dataloader_may_pin_memory(tmp_path: Path, workers: int) -> None:
    records = TFRecordDataset(write_numbered(tmp_path / "shard", 20)).distribute()
    loader = load(
        IterableDataset(records.batch(4).parse_example(FEATURES)), workers, pin_memory=True
    )
    for _ in range(2):
        assert sorted(ids_of(loader)) == list(range(20))
