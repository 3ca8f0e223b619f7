"""Episodes of RLDS data sets: steps, windows, filters, statistics, in order, shuffled, resumed."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
import streamrec.tfds
from streamrec import Dataset, FeatureError
from streamrec.errors import ManifestError
from streamrec.tfds import Folder, skip
from streamrec.tfds.episodes import StepWindow, steps_around
from tests.runs import in_new_interpreter
from tests.tfds.compare import assert_same
from tests.tfds.folders import KINDS_URL, ROBOT_SPLITS, ROBOT_URL, episode, step_list

IMAGE = "steps/observation/image"


@pytest.fixture(scope="module")
def robot() -> Folder:
    return streamrec.tfds.open_sync(ROBOT_URL)


def identity(step: Any) -> tuple[int, int]:
    return int(step["episode_metadata"]["episode_id"]), int(step["step"])


def written(split: str = "train") -> set[tuple[int, int]]:
    """The identities of all steps."""
    return {
        (number, step)
        for number in ROBOT_SPLITS[split]
        for step in range(len(episode(number)["steps"]["action"]))
    }


def test_steps_have_their_features_and_those_of_their_episode(robot: Folder) -> None:
    found = list(robot.steps("train", decoders={IMAGE: skip}))
    assert {identity(step) for step in found} == written()
    assert len(found) == len(written())
    for step in found:
        number, at = identity(step)
        expected = episode(number)
        wanted = step_list(expected["steps"])[at]
        del wanted["observation"]["image"]
        assert step["observation"].pop("image").startswith(b"\xff\xd8")
        assert_same(
            step, wanted | {"episode_metadata": expected["episode_metadata"], "step": np.int64(at)}
        )


def test_steps_of_an_episode_follow_each_other(robot: Folder) -> None:
    found = [
        identity(step)
        for step in robot.steps("train", features=["steps/action", "episode_metadata"])
    ]
    for (number, step), (next_number, next_step) in zip(found, found[1:], strict=False):
        assert (next_number, next_step) == (number, step + 1) or next_step == 0


def test_batches_are_the_steps_in_columns(robot: Folder) -> None:
    steps = iter(robot.steps("val"))
    for batch in robot.steps("val", batch_size=4):
        assert batch["observation"]["image"].shape[1:] == (8, 8, 3)
        for row in range(len(batch["step"])):
            assert_same(
                {"image": batch["observation"]["image"][row], "action": batch["action"][row]},
                {"image": (step := next(steps))["observation"]["image"], "action": step["action"]},
            )
    assert next(steps, None) is None


@pytest.mark.parametrize(("history", "future"), [(2, 4), (1, 1), (None, 3), (3, None), (9, 9)])
def test_windows_do_not_leave_their_episode(
    robot: Folder, history: int | None, future: int | None
) -> None:
    found = 0
    for batch in robot.steps("train", batch_size=7, history=history, future=future):
        for row in range(len(batch["step"])):
            found += 1
            number, at = identity(
                {
                    "episode_metadata": {
                        "episode_id": batch["episode_metadata"]["episode_id"][row]
                    },
                    "step": batch["step"][row],
                }
            )
            steps = step_list(episode(number)["steps"])
            last = len(steps) - 1
            before = range(at - (history or 1) + 1, at + 1)
            after = range(at, at + (future or 1))
            states = np.array([steps[max(step, 0)]["observation"]["state"] for step in before])
            actions = np.array([steps[min(step, last)]["action"] for step in after])
            assert_same(
                batch["observation"]["state"][row], states[0] if history is None else states
            )
            assert_same(batch["action"][row], actions[0] if future is None else actions)
            if history is not None:
                assert batch["timestep_pad_mask"][row].tolist() == [step >= 0 for step in before]
                assert batch["observation"]["image"][row].shape == (history, 8, 8, 3)
            if future is not None:
                assert batch["action_pad_mask"][row].tolist() == [step <= last for step in after]
            assert ("timestep_pad_mask" in batch, "action_pad_mask" in batch) == (
                history is not None,
                future is not None,
            )
    assert found == len(written())


@given(st.integers(0, 20), st.integers(1, 5), st.integers(1, 5))
def test_masks_tell_the_steps_that_exist(count: int, history: int, future: int) -> None:
    masks = StepWindow(history=history, future=future).masks(count)
    assert masks["timestep_pad_mask"].tolist() == [
        [step - back >= 0 for back in reversed(range(history))] for step in range(count)
    ]
    assert masks["action_pad_mask"].tolist() == [
        [step + ahead < count for ahead in range(future)] for step in range(count)
    ]
    assert steps_around(count, range(future)).shape == (count, future)


def test_window_of_images_has_the_images_of_its_steps(robot: Folder) -> None:
    alone = {identity(step): step["observation"]["image"] for step in robot.steps("train")}
    for step in robot.steps("train", history=3, shuffle=8, seed=4):
        number, at = identity(step)
        for back, image in enumerate(reversed(step["observation"]["image"])):
            np.testing.assert_array_equal(image, alone[number, max(at - back, 0)])


def test_shuffled_steps_come_once_and_resume_exactly(robot: Folder) -> None:
    def steps() -> Dataset[Any]:
        # A Dataset of its own each time: a second pass is another epoch, with another order.
        features = ["steps/action", "episode_metadata", IMAGE]
        return robot.steps("train", batch_size=3, shuffle=10, seed=7, features=features)

    def identities(batch: Any) -> list[tuple[int, int]]:
        ids = batch["episode_metadata"]["episode_id"].tolist()
        return list(zip(ids, batch["step"].tolist(), strict=True))

    everything = [identities(batch) for batch in steps()]
    flat = [each for batch in everything for each in batch]
    assert sorted(flat) == sorted(written())
    assert flat != sorted(flat)
    for taken in (1, 4, 9):
        iterator = steps().iterate()
        begun = [identities(next(iterator)) for _ in range(taken)]
        state = json.loads(json.dumps(iterator.state_dict()))
        iterator.close()
        rest = [identities(batch) for batch in steps().iterate(state)]
        assert begun + rest == everything


def test_episodes_are_filtered_by_their_own_features(robot: Folder) -> None:
    kept = robot.steps(
        "train",
        features=["steps/action", "episode_metadata"],
        where=lambda episode: (
            episode["num_steps"] > 2 and episode["episode_metadata"]["episode_id"] < 8
        ),
    )
    expected = {each for each in written() if each[0] < 8 and each[0] % 5 >= 2}
    assert {identity(step) for step in kept} == expected


def test_ranks_read_their_own_episodes(robot: Folder) -> None:
    shares = [
        {
            identity(step)
            for step in robot.steps(
                robot.records("train").distribute(rank, 2, even="drop"),
                features=["steps/action", "episode_metadata"],
            )
        }
        for rank in range(2)
    ]
    assert not shares[0] & shares[1]
    assert shares[0] | shares[1] == written()


def test_mixture_draws_steps_of_several_data_sets_by_weight(robot: Folder) -> None:
    def simple(step: Any) -> Any:
        return {"action": step["action"], "from": step["episode_metadata"]["episode_id"]}

    parts = [robot.steps(split).repeat().map(simple) for split in ("train", "val")]
    mixed = Dataset.sample_from_datasets(parts, weights=[3, 1], seed=2).take(400)
    from_train = sum(int(step["from"]) < 50 for step in mixed)
    assert 250 < from_train < 350


def test_data_set_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no steps of episodes"):
        streamrec.tfds.open_sync(KINDS_URL).steps("train")


def test_damaged_image_names_its_feature(robot: Folder) -> None:
    def cut(step: Any) -> Any:
        raise FeatureError("no such pixels")

    with pytest.raises(FeatureError, match="no such pixels") as caught:
        list(robot.steps("train", batch_size=4, decoders={IMAGE: cut}))
    assert caught.value.feature == "observation/image"


def test_statistics_are_those_of_all_steps(robot: Folder, tmp_path: Path) -> None:
    actions = np.concatenate(
        [episode(number)["steps"]["action"] for number in ROBOT_SPLITS["train"]]
    )
    path = tmp_path / "actions.json"
    names = ["steps/action", "steps/reward"]
    for _ in range(2):
        found = streamrec.tfds.statistics_sync(robot, "train", names, path=str(path))
        action = found["steps/action"]
        assert action.count == len(actions)
        np.testing.assert_allclose(action.mean, actions.mean(axis=0, dtype=np.float64))
        np.testing.assert_allclose(action.std, actions.std(axis=0, dtype=np.float64))
        np.testing.assert_array_equal(action.min, actions.min(axis=0))
        np.testing.assert_array_equal(action.max, actions.max(axis=0))
        np.testing.assert_allclose(
            action.quantiles[0.99], np.quantile(actions.astype(np.float64), 0.99, axis=0)
        )
        assert found["steps/reward"].mean.shape == ()


def test_kept_statistics_are_read_and_never_replaced(robot: Folder, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    streamrec.tfds.statistics_sync(robot, "train", ["steps/action"], path=str(path))
    value = json.loads(path.read_text())
    value["statistics"]["steps/action"]["count"] = 77
    path.write_text(json.dumps(value))
    found = streamrec.tfds.statistics_sync(robot, "train", ["steps/action"], path=str(path))
    assert found["steps/action"].count == 77
    with pytest.raises(ManifestError, match="another data set, split or version"):
        streamrec.tfds.statistics_sync(robot, "val", ["steps/action"], path=str(path))
    path.write_text("my notes")
    with pytest.raises(ManifestError, match="has no statistics, and is left as it is"):
        streamrec.tfds.statistics_sync(robot, "train", ["steps/action"], path=str(path))
    assert path.read_text() == "my notes"
    with pytest.raises(ValueError, match="no numbers of one shape"):
        streamrec.tfds.statistics_sync(robot, "train", ["steps/language_instruction"])


LONG_EPISODES = """
import json, re, sys
import numpy as np
import streamrec, streamrec.tfds

folder = sys.argv[1]
opened = streamrec.tfds.open_sync(folder)
skip = {"steps/image": streamrec.tfds.skip}


def most_held():
    # Of this program alone: the maximum that getrusage tells is also of the one that started it.
    return int(re.search("VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10


before = most_held()
steps = opened.steps("train", batch_size=8, decoders=skip).with_options(memory_budget=64 << 20)
count = sum(len(batch["step"]) for batch in steps)
print(json.dumps([count, most_held() - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory so far")
@pytest.mark.parametrize(
    ("episodes", "steps", "held"),
    [
        # The one that is taken, one that is read, and those between: not all twelve.
        (12, 200, 6),
        # An episode of a gigabyte is in memory once, and its steps are parts of it.
        pytest.param(1, 5000, 1.3, marks=pytest.mark.thorough),
        pytest.param(5, 5000, 3.2, marks=pytest.mark.thorough),
    ],
)
def test_memory_does_not_grow_with_the_number_of_long_episodes(
    tmp_path: Path, episodes: int, steps: int, held: float
) -> None:
    image = np.random.default_rng(0).bytes(200_000)
    example = {"steps/image": [image] * steps, "steps/action": np.zeros((steps, 2), np.float32)}
    record = streamrec.encode_example(example)
    folder = tmp_path / "long" / "1.0.0"
    with streamrec.TFRecordWriter(folder / "long-train.tfrecord-00000-of-00001") as writer:
        for _ in range(episodes):
            writer.write(record)
    info = {"name": "long", "splits": [{"name": "train", "shardLengths": [f"{episodes}"]}]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    tensor = {"dtype": "float32", "shape": {"dimensions": ["2"]}}
    step = {"image": {"image": {}}, "action": {"tensor": tensor}}
    sequence = {"feature": {"featuresDict": {"features": step}}}
    tree = {"steps": {"pythonClassName": "dataset_feature.Dataset", "sequence": sequence}}
    text = json.dumps({"featuresDict": {"features": tree}})
    (folder / "features.json").write_text(text)
    count, memory = json.loads(in_new_interpreter(LONG_EPISODES, str(folder)))
    assert count == episodes * steps
    assert memory < held * len(record)
