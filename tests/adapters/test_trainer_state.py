"""Which checkpoint's loader state a resumed Trainer may use: one with its own history of losses."""

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]

LOSSES = [{"loss": 2.5, "step": 10}, {"loss": 1.25, "step": 20}]


def load(directory: Path, *, losses: Any = LOSSES, ranks: int = 2, step: int = 20) -> Any:
    """What rank 1 finds for a Trainer with this history, number of ranks and step."""
    from streamrec.transformers import saved_state

    arguments = SimpleNamespace(output_dir=str(directory), process_index=1, world_size=ranks)
    return saved_state(arguments, SimpleNamespace(global_step=step, log_history=losses))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An `output_dir` with the checkpoint of step 20, saved by two ranks."""
    checkpoint = tmp_path / "checkpoint-20"
    checkpoint.mkdir()
    (checkpoint / "trainer_state.json").write_text(json.dumps({"log_history": LOSSES}))
    for rank in range(2):
        content = {"world_size": 2, "state": {"rank": rank}}
        (checkpoint / f"loader-{rank}.json").write_text(json.dumps(content))
    return tmp_path


def test_a_rank_finds_its_own_state_in_the_checkpoint_of_the_same_run(directory: Path) -> None:
    assert load(directory) == {"rank": 1}


def test_a_checkpoint_of_another_run_has_no_state(directory: Path) -> None:
    assert load(directory, losses=[*LOSSES[:1], {"loss": 1.3, "step": 20}]) is None
    assert load(directory, losses=LOSSES[:1]) is None


def test_a_checkpoint_of_another_number_of_ranks_has_no_state(directory: Path) -> None:
    assert load(directory, ranks=4) is None


def test_a_checkpoint_that_a_killed_run_did_not_complete_has_no_state(directory: Path) -> None:
    assert load(directory, step=30) is None
    (directory / "checkpoint-20" / "loader-1.json").unlink()
    assert load(directory) is None
