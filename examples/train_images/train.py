"""Trains: `python -m examples.train_images.train URL --checkpoint FILE`. Run it again to resume
from the file.

The checkpoint contains the model, the optimizer and the loader's state. It is written under another
name and then renamed, so a kill leaves a complete one. The program prints a line of JSON for each
step, and one for the result.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from examples.train_images.records import batches_of
from streamrec.torch import Loader

__all__ = ["train"]

BATCH = 32
EVERY = 5
"""Steps from one checkpoint to the next."""


class Run:
    """The content of a checkpoint: the model, the optimizer, the loader and the step."""

    def __init__(self, loader: Loader, device: str) -> None:
        torch.manual_seed(0)
        layers = [
            nn.Conv2d(1, 8, 5, 2),
            nn.ReLU(),
            nn.Conv2d(8, 16, 5, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2704, 10),
        ]
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.loader = loader
        self.step = 0

    def save(self, file: Path) -> None:
        """Writes the checkpoint, completely or not at all."""
        parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}
        states = {name: part.state_dict() for name, part in parts.items()}
        fresh = file.with_suffix(".new")
        torch.save({**states, "step": self.step}, fresh)
        os.replace(fresh, file)

    def load(self, file: Path) -> None:
        """Resumes from a checkpoint, if there is one."""
        if not file.exists():
            return
        saved = torch.load(file)
        for name in ("model", "optimizer", "loader"):
            getattr(self, name).load_state_dict(saved[name])
        self.step = saved["step"]


def train(
    url: str, storage_options: Mapping[str, Any], checkpoint: Path, epochs: int, device: str
) -> None:
    """Trains to the end of the last epoch, from the checkpoint if there is one."""
    run = Run(Loader(batches_of(url, storage_options, BATCH), device=device), device)
    run.load(checkpoint)
    right: list[float] = []
    for _ in range(run.loader.epoch, epochs):
        for batch in run.loader:
            loss, share = learn(run, batch)
            right.append(share)
            print(
                json.dumps({"step": run.step, "loss": round(loss, 6), "ids": batch["id"].tolist()}),
                flush=True,
            )
            run.step += 1
            if run.step % EVERY == 0:
                run.save(checkpoint)
    weights = sum(float(values.double().abs().sum()) for values in run.model.state_dict().values())
    print(
        json.dumps(
            {
                "steps": run.step,
                "accuracy": sum(right[-10:]) / max(1, len(right[-10:])),
                "weights": weights,
            }
        )
    )


def learn(run: Run, batch: Any) -> tuple[float, float]:
    """Takes one step; returns the loss, and the share of the batch that was right before it."""
    scores = run.model(batch["image"])
    loss = nn.functional.cross_entropy(scores, batch["label"])
    run.optimizer.zero_grad()
    loss.backward()
    run.optimizer.step()
    return loss.item(), float((scores.argmax(1) == batch["label"]).float().mean())


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--storage-options", type=json.loads, default={})
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)  # so that a resumed run computes the very same numbers
    train(given.url, given.storage_options, given.checkpoint, given.epochs, given.device)


if __name__ == "__main__":
    main()
