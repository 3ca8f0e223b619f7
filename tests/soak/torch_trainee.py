"""As `trainee.py`, with the workers of a `StatefulDataLoader` between the data and the steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from torchdata.stateful_dataloader import StatefulDataLoader

from streamrec.torch import IterableDataset
from tests.soak.trainee import Job, saved, train

__all__ = ["run_torch_trainee"]

WORKERS = 2


def run_torch_trainee(parent: Connection, job: Job) -> None:
    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # by torchdata, of torch
    epochs = Epochs(job)
    step, state = saved(job)
    epochs.load(state)
    train(parent, job, step, epochs, iter(epochs))


class Epochs:
    """Epoch after epoch of a loader, as a training loop has it."""

    def __init__(self, job: Job) -> None:
        self._epochs = job.epochs
        self._epoch = 0
        self._dataset = IterableDataset(job.dataset(1))
        self._loader: Any = StatefulDataLoader(
            self._dataset, batch_size=None, num_workers=WORKERS, multiprocessing_context="fork"
        )

    def load(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self._epoch = state["epoch"]
            self._loader.load_state_dict(state["loader"])

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "loader": self._loader.state_dict()}

    def __iter__(self) -> Iterator[Any]:
        while self._epoch < self._epochs:
            self._dataset.set_epoch(self._epoch)
            yield from self._loader
            self._epoch += 1
