"""streamrec.grain; `test_in_processes.py` runs these tests in a process of their own."""

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from absl import flags

import streamrec.tfds
from streamrec import Dataset, TFRecordDataset, bridge
from streamrec.errors import PositionMismatchError
from streamrec.grain import IterDataset
from tests.adapters.conftest import FEATURES, LeavingServer, check_bad_input, ids_of, write_numbered
from tests.runs import in_new_interpreter, until_error
from tests.tfds.folders import ROBOT_URL

# Grain asks for flags of absl, which a program reads from its command line
flags.FLAGS.mark_as_parsed()


def rows(name: str) -> Dataset[Any]:
    return (
        TFRecordDataset(name)
        .distribute()
        .shuffle(10, seed=3)
        .batch(4)
        .parse_example(FEATURES)
        .unbatch()
    )


def with_doubled_id(row: Any) -> Any:
    return {"id": row["id"] * 2}


def batches_of(dataset: Dataset[Any]) -> Any:
    return IterDataset(dataset).map(with_doubled_id).batch(3)


def in_workers(dataset: Any, workers: int = 2) -> Any:
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def in_one_worker(dataset: Any) -> Any:
    return in_workers(dataset, 1)


def test_a_state_of_any_step_resumes_there(tmp_path: Path) -> None:
    dataset = rows(write_numbered(tmp_path / "a", 25))
    whole = ids_of(batches_of(dataset))
    assert sorted(whole) == list(range(0, 50, 2))
    first, before = iter(batches_of(dataset)), []
    start = json.loads(json.dumps(first.get_state()))
    for batch in first:
        before += batch["id"].tolist()
        again = iter(batches_of(dataset))
        next(again)  # elsewhere
        again.set_state(json.loads(json.dumps(first.get_state())))
        assert before + ids_of(again) == whole
    first.set_state(start)
    assert ids_of(first) == whole


def test_each_iterator_gives_the_same_epoch_and_repeat_gives_several() -> None:
    dataset = IterDataset(Dataset.range(20).shuffle(20))
    assert list(dataset) == list(dataset)
    assert "Shuffle" in str(dataset)
    twice = list(IterDataset(Dataset.range(20).shuffle(20).repeat(2)))
    assert sorted(twice[:20]) == sorted(twice[20:]) == list(range(20))
    assert twice[:20] != twice[20:]


def test_worker_processes_share_the_records_and_resume(tmp_path: Path) -> None:
    name = write_numbered(tmp_path / "a", 40)
    whole = ids_of(in_workers(batches_of(rows(name))))
    assert sorted(whole) == list(range(0, 80, 2))
    elements = iter(in_workers(batches_of(rows(name))))
    before = [number for _ in range(3) for number in next(elements)["id"].tolist()]
    state = elements.get_state()
    elements.close()
    again = iter(in_workers(batches_of(rows(name))))
    again.set_state(state)
    assert before + ids_of(again) == whole
    again.close()


def test_several_workers_need_distribute(tmp_path: Path) -> None:
    records = TFRecordDataset(write_numbered(tmp_path / "a", 4))
    dataset = IterDataset(records)
    dataset.set_slice(slice(1, None, 2))
    with pytest.raises(ValueError, match=r"2 processes .* would each read all"):
        iter(dataset)
    assigned = IterDataset(records.distribute().with_options(rank=1, world_size=2))
    assigned.set_slice(slice(1, None, 2))
    assert len(list(assigned)) == 1


def test_a_wrong_state_and_a_closed_iterator_are_errors() -> None:
    elements = iter(IterDataset(Dataset.range(3)))
    with pytest.raises(PositionMismatchError, match="has the key 'streamrec'"):
        elements.set_state({"step": 1})
    elements.close()
    elements.close()
    with pytest.raises(ValueError, match="was closed"):
        next(elements)


@pytest.mark.parametrize("load", [iter, in_one_worker])
def test_bad_input_is_one_error(tmp_path: Path, leaving_server: LeavingServer, load: Any) -> None:
    check_bad_input(tmp_path, leaving_server, lambda dataset: load(IterDataset(dataset)))


def test_an_iterator_that_is_open_at_exit_prints_nothing() -> None:
    code = "import sys; sys.stderr = sys.stdout; from streamrec import Dataset, grain\n"
    code += "it = iter(grain.IterDataset(Dataset.range(10**9))); print(next(it))"
    assert in_new_interpreter(code) == "0\n"


def test_a_worker_that_is_killed_is_an_error(tmp_path: Path) -> None:
    dataset = rows(write_numbered(tmp_path / "a", 10_000)).repeat()
    elements = iter(in_one_worker(batches_of(dataset)))
    next(elements)
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    until_error(elements, RuntimeError, "terminated unexpectedly with exit code -9")
    elements.close()


def test_an_iteration_may_be_dropped_on_the_loops_thread() -> None:
    """The garbage collector does that: an error there would only be printed."""
    elements = iter(IterDataset(Dataset.range(4)))
    assert next(elements) == 0

    async def drop() -> None:
        elements.close()

    bridge.run(drop)


def test_steps_of_a_data_set_are_the_same() -> None:
    steps = streamrec.tfds.open_sync(ROBOT_URL).steps("train")
    wanted = list(steps)
    assert len(wanted) > 20
    for ours, theirs in zip(wanted, IterDataset(steps), strict=True):
        assert int(theirs["step"]) == int(ours["step"])
        np.testing.assert_array_equal(theirs["action"], ours["action"])
        images = theirs["observation"]["image"]
        np.testing.assert_array_equal(images, ours["observation"]["image"])
