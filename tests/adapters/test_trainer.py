"""transformers.Trainer and Accelerate's loops: a killed job of two ranks continues with the batches
and losses of one that was not killed; what a Trainer cannot do with a stream is refused.
"""

import json
import os
import random
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import Dataset
from tests.adapters.conftest import ROOT, free_port
from tests.effort import thorough
from tests.pages import blocks

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
]

RANKS = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainer")
    examples = Dataset.range(320).map(training_row)
    examples.write_sync(
        f"{folder}/data/train-{{shard:02d}}",
        num_shards=4,
        manifest=f"{folder}/data/manifest.json",
        batched=False,
    )
    return folder


def training_row(number: int) -> dict[str, Any]:
    return {"x": [number / 320, 1.0], "labels": number % 2, "id": number}


def run_ranks(command: list[str], folder: Path, lines: int | None = None) -> list[str]:
    """What the ranks print, to the end; with `lines`, all are killed when rank 0 has printed that
    many.
    """
    folder.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    ranks = []
    for rank in range(RANKS):
        with (folder / f"errors-{rank}").open("a") as errors:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    cwd=folder,
                )
            )
    output = ranks[0].stdout
    assert output is not None
    found = [line for _, line in zip(range(lines or sys.maxsize), output, strict=False)]
    if lines is not None:
        for each in ranks:
            each.kill()
    found += [line for each in ranks for line in each.communicate()[0].splitlines(keepends=True)]
    ended = {each.returncode for each in ranks}
    errors = (folder / "errors-0").read_text()[-3000:]
    assert ended == {0 if lines is None else -signal.SIGKILL}, errors
    # Others print, too; and a killed process may have begun a line.
    return [line for line in found if line[0] in "01" and line.endswith("\n")]


def check_killed_runs(command: list[str], folder: Path, kills: int) -> list[str]:
    """Killed runs together print what a run that was not killed prints; the last prints less.

    Returns the lines of the latter.
    """
    expected = run_ranks(command, folder / "whole")
    steps = len(expected) // RANKS
    chance = random.Random(5)
    runs = [
        run_ranks(command, folder / "killed", chance.randrange(steps // 3, steps // 2))
        for _ in range(kills)
    ]
    runs.append(run_ranks(command, folder / "killed"))
    assert len(set(expected)) == len(expected)
    assert len(runs[-1]) < len(expected)
    assert sorted(set().union(*runs)) == sorted(expected)
    return expected


def test_a_killed_trainer_with_a_loader_continues_exactly(data: Path, tmp_path: Path) -> None:
    """The program of docs/guides/trainer.md, with gradients accumulated up to an epoch's end."""
    [block] = [
        block
        for block in blocks(ROOT / "docs/guides/trainer.md")
        if block.title == "train_trainer.py"
    ]
    (tmp_path / "train.py").write_text(block.text.replace('"data/', f'"{data}/data/'))
    check_killed_runs(["../train.py"], tmp_path, kills=1)
    saved = sorted(path.name for path in tmp_path.glob("killed/checkpoints/*/loader-*.json"))
    assert saved == ["loader-0.json", "loader-0.json", "loader-1.json", "loader-1.json"]


def test_a_killed_loop_of_language_models_continues_exactly(tmp_path: Path) -> None:
    """The program of docs/guides/language-models.md: mixed sources, packed rows, accumulation."""
    found = list(blocks(ROOT / "docs/guides/language-models.md"))
    [program] = [block.text for block in found if block.title == "train_tokens.py"]
    first = next(block.text for block in found if block.kind == "python")
    (tmp_path / "train.py").write_text(program.replace('"data/', f'"{tmp_path}/data/'))
    (tmp_path / "write.py").write_text(first)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "write.py"], cwd=tmp_path, env=environment, check=True)
    check_killed_runs(["../train.py"], tmp_path, kills=1)


@pytest.mark.parametrize(
    "way",
    [
        "trainer dataset workers",
        "accelerate",
        *thorough("trainer dataset", "trainer loader unknown", "trainer loader without states"),
    ],
)
def test_a_killed_loop_continues_exactly(data: Path, tmp_path: Path, way: str) -> None:
    command = ["-m", "tests.adapters.resumed", way, str(data / "data"), "."]
    expected = check_killed_runs(command, tmp_path, kills=1)
    if way != "accelerate":
        # `write_sync` puts every fourth record into the last shard.
        evaluated = [line for line in expected if "evaluated" in line]
        assert len(evaluated) > 1
        for line in evaluated:
            assert json.loads(line[line.index("[") :]) == list(range(3, 320, 4))


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    """Makes a Trainer of one process."""
    from transformers import Trainer, TrainingArguments

    from tests.adapters.resumed import Model

    def make(train_dataset: Any = None, loader: Any = None, **options: Any) -> Any:
        callbacks = options.pop("callbacks", None)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            remove_unused_columns=False,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **{"max_steps": 4, "per_device_train_batch_size": 4, **options},
        )

        class LoaderTrainer(Trainer):
            def get_train_dataloader(self) -> Any:
                return super().get_train_dataloader() if loader is None else loader

            def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
                given = eval_dataset or self.eval_dataset
                is_loader = isinstance(given, streamrec.torch.Loader)
                return given if is_loader else super().get_eval_dataloader(given)

        model = Model()
        made = LoaderTrainer(
            model=model, args=arguments, train_dataset=train_dataset, callbacks=callbacks
        )
        model.step = lambda: (0, made.state.global_step)
        return made

    return make


def test_evaluations_read_each_example_once(trainer: Any) -> None:
    """A data set of single examples, and a Loader from `get_eval_dataloader`."""
    dataset = Dataset.range(30).map(numbered_row).batch(8)
    found = []

    def evaluated(prediction: Any) -> dict[str, float]:
        found.append(prediction.label_ids.tolist())
        return {}

    made = trainer(streamrec.torch.IterableDataset(dataset.unbatch()), label_names=["id"])
    made.compute_metrics = evaluated
    for data in (
        streamrec.torch.IterableDataset(dataset.unbatch()),
        streamrec.torch.Loader(dataset),
    ):
        for _ in range(2):
            made.evaluate(data)
    assert found == [list(range(30))] * 4


def test_epochs_and_accumulation_give_the_number_of_steps(trainer: Any) -> None:
    """From the length of a data set or a Loader, as from a list; `max_steps` ends before."""
    from streamrec.transformers import TrainerState

    dataset = Dataset.range(48).map(numbered_row)
    shared = streamrec.torch.IterableDataset(dataset)
    loader = streamrec.torch.Loader(dataset.batch(4))
    assert (len(shared), len(loader)) == (48, 12)
    several = {"num_train_epochs": 2, "gradient_accumulation_steps": 5}
    for given in ({"train_dataset": shared}, {"loader": loader, "callbacks": [TrainerState()]}):
        made = trainer(**given, **several, max_steps=-1)
        made.train()
        assert made.state.global_step == 2 * 3  # the last step of an epoch has two batches
        assert made.state.epoch == 2
        made = trainer(**given, **several, max_steps=4)
        made.train()
        assert made.state.global_step == 4


def numbered_row(number: Any) -> Any:
    return {"id": number}


def test_a_trainer_refuses_batches_of_batches(trainer: Any) -> None:
    shared = streamrec.torch.IterableDataset(Dataset.range(64).map(numbered_row).batch(4))
    with pytest.raises(ValueError, match=r"elements of this dataset are batches already: pass"):
        trainer(shared).train()


def test_a_trainer_cannot_order_a_stream_by_length(trainer: Any) -> None:
    from streamrec.transformers import TrainerState

    grouped = {"train_sampling_strategy": "group_by_length"}
    dataset = Dataset.range(64).map(numbered_row)
    said = r"'group_by_length' needs a data set that is indexed.*bucket_by_sequence_length"
    with pytest.raises(ValueError, match=said):
        trainer(streamrec.torch.IterableDataset(dataset), **grouped).train()
    loader = streamrec.torch.Loader(dataset.batch(4))
    with pytest.raises(ValueError, match=said):
        trainer(loader=loader, callbacks=[TrainerState()], **grouped).train()


def test_the_callback_says_what_it_needs(
    trainer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from streamrec.transformers import TrainerState

    dataset = Dataset.range(64).map(numbered_row)
    with pytest.raises(TypeError, match=r"but get_train_dataloader\(\) returned a DataLoader"):
        trainer(streamrec.torch.IterableDataset(dataset), callbacks=[TrainerState()]).train()
    loader = streamrec.torch.Loader(dataset.batch(4))
    trainer(loader=loader, callbacks=[TrainerState()], save_steps=2).train()
    (tmp_path / "checkpoint-2/loader-0.json").unlink()
    capsys.readouterr()
    again = trainer(loader=loader, callbacks=[TrainerState()], save_steps=9)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    printed = capsys.readouterr().out.splitlines()
    rows = [json.loads(line[line.index("[") :]) for line in printed if line.startswith("0 ")]
    assert rows == [[8, 9, 10, 11], [12, 13, 14, 15]]
    with pytest.raises(FileNotFoundError, match=r"loader-0\.json is not there"):
        trainer(loader=loader, callbacks=[TrainerState()], ignore_data_skip=True).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )
    with pytest.raises(AttributeError, match=r"callbacks=\[streamrec.transformers.TrainerState\("):
        trainer(loader=streamrec.torch.Loader(dataset.batch(4))).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-2")
        )
