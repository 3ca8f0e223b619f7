"""One rank of a job in the loop of transformers or Accelerate, which may be killed at any time and
continues where its last checkpoint is.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m tests.adapters.resumed WAY DATA FOLDER

It prints a line for each batch that its model got: rank, step, loss, ids; and one for each
evaluation, with its ids.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from streamrec import Dataset, FixedLenFeature, TFRecordDataset
from streamrec.torch import IterableDataset, Loader
from streamrec.transformers import TrainerState

FEATURES = {"id": FixedLenFeature([], "int64")}
EPOCHS = 2
BATCH = 8
STEPS_A_CHECKPOINT = 3
EVALUATED = 9  # records in a batch of a rank; the 80 do not fill the last batches


def batches(data: str) -> Dataset[Any]:
    """Batches of one rank, of which each rank has the same number."""
    records = TFRecordDataset(f"{data}/train-*", num_parallel_reads=2)
    records = records.distribute(even="drop", manifest=f"{data}/manifest.json")
    return records.shuffle(20, seed=3).batch(BATCH).parse_example(FEATURES)


def evaluation(data: str) -> Dataset[Any]:
    """The records of one shard, which each process and worker reads a part of."""
    records = TFRecordDataset(f"{data}/train-03").distribute()
    return records.batch(BATCH).parse_example(FEATURES).unbatch()


class Model(torch.nn.Module):
    """Prints what it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.step: Any = None

    def forward(self, id: Any) -> dict[str, Any]:
        loss = self.linear(id[:, None] / 320.0).square().mean()
        if self.training:
            rank, step = self.step()
            print(rank, step, f"{loss.item():.6f}", id.tolist(), flush=True)
        return {"loss": loss, "logits": id}


class SavesNoStates(TrainerState):
    """Saves no states, as a run that is killed before."""

    def on_save(self, *arguments: Any, **keywords: Any) -> None: ...


def with_trainer(way: str, data: str, folder: Path) -> None:
    """`transformers.Trainer`, with a data set or a loader, and evaluations meanwhile."""
    dataset = batches(data)
    unknown = "unknown" in way
    if unknown:
        dataset = dataset.filter(lambda batch: batch["id"].sum() % 5 > 0)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=3,
        dataloader_num_workers=2 if "workers" in way else 0,
        num_train_epochs=EPOCHS,
        max_steps=15 if unknown else -1,
        save_steps=STEPS_A_CHECKPOINT,
        save_total_limit=2,
        eval_strategy="steps",
        eval_steps=5,
        per_device_eval_batch_size=EVALUATED,
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        label_names=["id"],  # so that evaluations have metrics
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    set_seed(1)
    model = Model()
    loader = Loader(dataset) if "loader" in way else None

    class LoaderTrainer(Trainer):
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader() if loader is None else loader

    def evaluated(prediction: Any) -> dict[str, float]:
        if arguments.process_index == 0:
            assert (prediction.predictions == prediction.label_ids).all()
            ids = sorted(prediction.label_ids.tolist())
            print(0, trainer.state.global_step, "evaluated", ids, flush=True)
        return {}

    trainer = LoaderTrainer(
        model=model,
        args=arguments,
        train_dataset=IterableDataset(dataset.unbatch()),
        eval_dataset=IterableDataset(evaluation(data)),
        compute_metrics=evaluated,
        callbacks=None
        if loader is None
        else [SavesNoStates() if "without states" in way else TrainerState()],
    )
    model.step = lambda: (arguments.process_index, trainer.state.global_step)
    whole = [int(each.parent.name[11:]) for each in folder.glob("checkpoint-*/trainer_state.json")]
    last = str(folder / f"checkpoint-{max(whole)}") if whole else None
    trainer.train(resume_from_checkpoint=last)


def with_accelerate(way: str, data: str, folder: Path) -> None:
    """A loop of Accelerate, which prepares the DataLoader, and skips what was trained on."""
    set_seed(1)
    accelerator = Accelerator()
    model = Model()
    shared = IterableDataset(batches(data).unbatch())
    prepared, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(shared, batch_size=BATCH),
    )
    first = skipped = step = 0
    for last in sorted(folder.glob("step-*"))[-1:]:
        accelerator.load_state(str(last))
        first, skipped = json.loads((last / "place.json").read_text())
        step = int(last.name[5:])
    model.step = lambda: (accelerator.process_index, step)
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        rest = accelerator.skip_first_batches(loader, skipped) if skipped else loader
        for trained, batch in enumerate(rest, skipped + 1):
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % STEPS_A_CHECKPOINT == 0:
                save(accelerator, folder, step, (epoch, trained))
        skipped = 0


def save(accelerator: Accelerator, folder: Path, step: int, place: tuple[int, int]) -> None:
    """Saves a whole checkpoint or none."""
    accelerator.save_state(str(folder / "new"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "new/place.json").write_text(json.dumps(place))
        before = list(folder.glob("step-*"))
        (folder / "new").rename(folder / f"step-{step:08d}")
        for old in before:
            shutil.rmtree(old)
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    way, data, folder = sys.argv[1:]
    train = with_trainer if way.startswith("trainer") else with_accelerate
    train(way, data, Path(folder))
