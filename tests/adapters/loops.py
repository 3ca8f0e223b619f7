"""One of several ranks in loops of other libraries and in a bare one: prints what each loop got, as
lines of its rank and JSON.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m tests.adapters.loops DATA FOLDER

Each loop trains with gradients that are averaged over the ranks; one that cannot go on hangs.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from streamrec import Dataset, FixedLenFeature, TFRecordDataset
from streamrec.torch import IterableDataset, Loader
from tests.pages import ROOT, blocks

PAGE = ROOT / "docs/pytorch.md"
FEATURES = {"id": FixedLenFeature([], "int64")}
BATCH = 8
EPOCHS = 2
STOP = 13


def batches(data: str) -> Dataset[Any]:
    """Batches of a rank's part, of which each rank has the same number."""
    records = TFRecordDataset(f"{data}/train-*", num_parallel_reads=2)
    records = records.distribute(even="drop", manifest=f"{data}/manifest.json")
    return records.shuffle(20, seed=3).batch(BATCH).parse_example(FEATURES)


class Model(torch.nn.Module):
    """Keeps the ids that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: Any) -> Any:
        self.seen.append(id.tolist())
        return self.linear(id[:, None] / 320.0).square().mean()


def bare(data: str, folder: str) -> Any:
    """The program of docs/pytorch.md: ranks with different numbers of batches, one `join` an
    epoch. It sets up the process group of the loops after it.
    """
    [text] = [each.text for each in blocks(PAGE) if each.title == "train_join.py"]
    torch.manual_seed(1)
    names: dict[str, Any] = {}
    exec(text.replace('"data/', f'"{data}/'), names)
    return names["seen"], [each.sum().item() for each in names["model"].parameters()]


def fabric(data: str, folder: str) -> Any:
    """Lightning Fabric: loaders that it sets up, and a checkpoint with a Loader in it."""
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=dist.get_world_size(), strategy="ddp")
    fabric.launch()
    found: dict[str, Any] = {}
    for workers in (0, 1):
        shared = DataLoader(IterableDataset(batches(data)), batch_size=None, num_workers=workers)
        loader = fabric.setup_dataloaders(shared)
        found[f"{workers} workers"] = [batch["id"].tolist() for batch in loader]

    def made() -> Any:
        module = Model()
        model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
        loader = Loader(batches(data), device=fabric.device, gather_states=True)
        return module, {"model": model, "optimizer": optimizer, "loader": loader}

    def train(state: Any, path: str = "") -> None:
        for step, batch in enumerate(state["loader"], 1):
            state["optimizer"].zero_grad()
            fabric.backward(state["model"](batch["id"]))
            state["optimizer"].step()
            if path and step == STOP:
                return fabric.save(path, state)
        return None

    path = f"{folder}/fabric.ckpt"
    whole, state = made()
    train(state)
    stopped, state = made()
    train(state, path)
    resumed, state = made()
    fabric.load(path, state)
    train(state)
    return found, whole.seen, stopped.seen, resumed.seen


def trainer(data: str, folder: str) -> Any:
    """Lightning's Trainer with a Loader, which it resumes without hooks."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self, path: str = "") -> None:
            super().__init__()
            self.model = Model()
            self.path = path

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(batch["id"])

        def on_train_batch_end(self, *arguments: Any) -> None:
            if self.path and self.global_step == STOP:
                self.trainer.save_checkpoint(self.path)
                raise KeyError("stopped")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(module: Module, path: str | None = None) -> Any:
        lightning.Trainer(
            max_epochs=EPOCHS,
            strategy="ddp",
            accelerator="cpu",
            devices=dist.get_world_size(),
            use_distributed_sampler=False,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        ).fit(module, Loader(batches(data), gather_states=True), ckpt_path=path)
        return module.model.seen

    path = f"{folder}/lightning.ckpt"
    whole = fit(Module())
    stopped = Module(path)
    try:
        fit(stopped)
    except KeyError:
        return whole, stopped.model.seen, fit(Module(), path)
    raise AssertionError("it was not stopped")


LOOPS: dict[str, Callable[[str, str], Any]] = {
    "bare": bare,
    "fabric": fabric,
    "trainer": trainer,
}


def main(data: str, folder: str) -> Iterator[str]:
    os.environ |= {"TORCHELASTIC_RUN_ID": "loops", "GROUP_RANK": "0"}  # as torchrun sets them
    environment = dict(os.environ)
    for name, loop in LOOPS.items():
        yield json.dumps([name, loop(data, folder)])
        os.environ |= environment


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(exist_ok=True)
    rank = os.environ["RANK"]
    for line in main(*sys.argv[1:]):
        print(rank, line, flush=True)
