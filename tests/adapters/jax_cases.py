"""streamrec.jax on eight devices of the CPU; `test_in_processes.py` runs these tests in a process
of their own.
"""

import json
from functools import partial
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import streamrec.tfds
from streamrec import (
    Dataset,
    FixedLenFeature,
    RaggedTensor,
    SparseTensor,
    TFRecordDataset,
    VarLenFeature,
)
from streamrec.jax import Loader, rank_among
from tests.adapters.conftest import (
    LeavingServer,
    check_bad_input,
    check_states,
    ids_of,
    write_examples,
)
from tests.runs import until_error
from tests.tfds.folders import ROBOT_URL

FEATURES = {"id": FixedLenFeature((), np.int64), "pair": FixedLenFeature((2,), np.float32)}
ROWS = NamedSharding(jax.make_mesh((8,), ("data",)), PartitionSpec("data"))


def examples(path: Path, count: int) -> str:
    return write_examples(path, ({"id": n, "pair": [n / 2, n / 4]} for n in range(count)))


def test_batches_are_global_arrays(tmp_path: Path) -> None:
    dataset = TFRecordDataset(examples(tmp_path / "a", 48)).batch(16).parse_example(FEATURES)
    batches = list(Loader(dataset, ROWS))
    assert len(batches) == 3
    for number, batch in enumerate(batches):
        assert isinstance(batch["id"], jax.Array)
        assert batch["pair"].shape == (16, 2)
        assert batch["pair"].sharding == ROWS
        assert [shard.data.shape for shard in batch["pair"].addressable_shards] == [(2, 2)] * 8
        assert batch["id"].tolist() == list(range(16 * number, 16 * number + 16))
    step = jax.jit(lambda batch: (batch["pair"].sum(axis=1) * batch["id"]).sum())
    assert float(step(batches[0])) == sum(0.75 * n * n for n in range(16))


def test_a_sharding_for_each_column(tmp_path: Path) -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    both, rows = (
        NamedSharding(mesh, PartitionSpec(*names)) for names in (("data", "model"), ("data",))
    )
    dataset = TFRecordDataset(examples(tmp_path / "a", 8)).batch(8).parse_example(FEATURES)
    [batch] = Loader(dataset, {"pair": both, "id": rows})
    assert {shard.data.shape for shard in batch["pair"].addressable_shards} == {(2, 1)}
    assert {shard.data.shape for shard in batch["id"].addressable_shards} == {(2,)}
    with pytest.raises(
        ValueError, match=r"column 'id' has no sharding; there are those of \['pair'\]"
    ):
        next(iter(Loader(dataset, {"pair": both})))


def test_without_a_sharding_batches_are_on_the_default_device() -> None:
    rows = [{"n": np.array([number]), "name": np.array([b"x"], object)} for number in range(3)]
    batches = list(Loader(Dataset.from_generator(lambda: rows), prefetch=0))
    assert [int(batch["n"][0]) for batch in batches] == [0, 1, 2]
    assert batches[0]["name"] == [b"x"]


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_state_of_any_step_resumes_there(tmp_path: Path, prefetch: int) -> None:
    dataset = TFRecordDataset(examples(tmp_path / "a", 80)).distribute().shuffle(20, seed=2)
    dataset = dataset.batch(8).parse_example(FEATURES)
    check_states(lambda: Loader(dataset.with_options(epoch=0), ROWS, prefetch=prefetch))


def test_integers_that_do_not_fit_are_an_error() -> None:
    dataset = Dataset.range(3).map(lambda n: {"id": np.full(8, 2**31 - 2 + n)})
    said = r"column 'id': values from 2,147,483,648 .* do not fit the int32"
    seen, _ = until_error(Loader(dataset, ROWS), OverflowError, said)
    assert [batch["id"].tolist()[0] for batch in seen] == [2**31 - 2, 2**31 - 1]
    with jax.enable_x64(True):
        assert [batch["id"].tolist()[0] for batch in Loader(dataset, ROWS)] == [
            2**31 - 2,
            2**31 - 1,
            2**31,
        ]


def test_a_column_that_cannot_be_divided_is_an_error(tmp_path: Path) -> None:
    dataset = TFRecordDataset(examples(tmp_path / "a", 21)).batch(16).parse_example(FEATURES)
    seen, _ = until_error(
        Loader(dataset, ROWS),
        ValueError,
        r"column 'id': an array of shape \[5\] .*drop_remainder=True",
    )
    assert ids_of(seen) == list(range(16))
    with pytest.raises(
        ValueError, match=r"column 'id': a single int64 has no rows to divide .* batch\("
    ):
        list(Loader(dataset.unbatch(), ROWS))
    ragged = (
        TFRecordDataset(examples(tmp_path / "a", 8))
        .batch(8)
        .parse_example({"pair": VarLenFeature(np.float32)})
    )
    with pytest.raises(ValueError, match="column 'pair': a SparseTensor cannot be divided"):
        list(Loader(ragged, ROWS))


def test_ragged_and_sparse_tensors_are_trees_of_arrays() -> None:
    tensors = (
        RaggedTensor(np.arange(3), (np.array([0, 1, 3]),)),
        SparseTensor(np.array([[0, 0], [1, 1]]), np.array([1.0, 2.0]), np.array([2, 2])),
    )
    [placed] = Loader(Dataset.from_generator(lambda: [tensors]))
    doubled = jax.jit(lambda element: jax.tree.map(lambda array: 2 * array, element))(placed)
    assert [type(each) for each in doubled] == [RaggedTensor, SparseTensor]
    assert doubled[0].nested_row_splits[0].tolist() == [0, 2, 6]
    assert doubled[1].values.tolist() == [2, 4]


def test_bfloat16_stays_bfloat16() -> None:
    [batch] = Loader(Dataset.range(1).map(lambda _: np.full((8, 3), 1.5, ml_dtypes.bfloat16)), ROWS)
    assert batch.dtype == jax.numpy.bfloat16
    assert float(batch.sum()) == 36


def test_bad_input_is_one_error(tmp_path: Path, leaving_server: LeavingServer) -> None:
    check_bad_input(tmp_path, leaving_server, partial(Loader, prefetch=1))


def test_processes_with_the_same_rows_are_one_rank() -> None:
    assert [rank_among({0: {(0, 4)}, 1: {(4, 8)}}, process).rank for process in (0, 1)] == [0, 1]
    assert rank_among({0: {(0, 4)}, 1: {(0, 4)}}, 1).world_size == 1
    with pytest.raises(ValueError, match="share some of their rows but not all"):
        rank_among({0: {(0, 2), (2, 4)}, 1: {(2, 4), (4, 6)}}, 0)


def test_a_loader_counts_what_it_gave_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = TFRecordDataset(examples(tmp_path / "a", 48)).batch(16).parse_example(FEATURES)
    loader = Loader(dataset, ROWS, progress=True, trace=tmp_path / "run.json", tokens="id")
    assert loader.stats().bottleneck == "nothing yet"
    next(batches := iter(loader))
    assert batches.stats().samples == 16  # not those that were sent ahead
    assert len(list(batches)) == 2
    assert (loader.stats().samples, loader.stats().tokens) == (48, sum(range(48)))
    assert "streamrec: 3 elements (48 records read)" in capsys.readouterr().err
    assert json.loads((tmp_path / "run.json").read_text())


def test_steps_of_a_data_set_become_global_arrays() -> None:
    steps = streamrec.tfds.open_sync(ROBOT_URL).steps("train", batch_size=8, drop_remainder=True)
    for ours, theirs in zip(steps, Loader(steps, ROWS), strict=True):
        assert theirs["action"].sharding == ROWS
        np.testing.assert_array_equal(theirs["action"], ours["action"])
        images = theirs["observation"]["image"]
        np.testing.assert_array_equal(images, ours["observation"]["image"])
