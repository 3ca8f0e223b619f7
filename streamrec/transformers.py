"""Exact resuming of a `streamrec.torch.Loader` under the Trainer of transformers.

    class LoaderTrainer(transformers.Trainer):
        def get_train_dataloader(self):
            return loader  # a streamrec.torch.Loader

    callback = streamrec.transformers.TrainerState()
    trainer = LoaderTrainer(model=model, args=arguments, callbacks=[callback])
    trainer.train(resume_from_checkpoint=True)

Rules:
- Each rank saves the state of its loader in the Trainer's checkpoint, after the Trainer has written
  its own files. A rank that is killed before leaves a checkpoint without it.
- A resumed Trainer passes over the batches of the epoch that were trained on, by Accelerate's
  `skip_first_batches`, which iterates `loader.dataset`. From a state, it gets a placeholder for
  each of these batches, which costs nothing, and the batches after them. So the Trainer's number
  of the batch is right, on which gradient accumulation depends. Without a state, it gets the
  batches themselves: as exact, but they are read again.
- The loader counts epochs by itself. The Trainer takes `max_steps` for the length of an epoch if
  the loader has none, and counts other epochs after resuming than before.

Needs transformers, which no extra installs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from inspect import currentframe
from itertools import repeat
from pathlib import Path
from typing import Any

from torch.utils import data
from transformers import TrainerCallback

from streamrec.display import logger
from streamrec.pipeline.engine.dividers import refuse_sampling
from streamrec.torch import Loader

__all__ = ["TrainerState"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


class TrainerState(TrainerCallback):
    """Saves a `Loader`'s state in a Trainer's checkpoints, and resumes from it exactly.

    Pass it as `callbacks=[TrainerState()]` to a Trainer whose `get_train_dataloader` returns a
    `streamrec.torch.Loader`. `trainer.train(resume_from_checkpoint=True)` then continues with the
    batch after the checkpoint, on each rank, and reads no batch again.

    A checkpoint of another directory than `output_dir`, one of another number of ranks, and one
    that a killed run did not complete, have no state that this rank can use: the batches before it
    are then read again, and passed over.

    Raises:
        TypeError: When training begins: `get_train_dataloader` returns another kind of loader.
        ValueError: When training begins: the Trainer was asked to choose the order of examples.
        FileNotFoundError: When training begins: `ignore_data_skip` is set, and the checkpoint has
            no state.
    """

    def __init__(self) -> None:
        self._loader: Loader | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Puts the loader where the Trainer continues."""
        loader = kwargs.get("train_dataloader")
        if not isinstance(loader, Loader):
            raise TypeError(
                "streamrec.transformers.TrainerState saves the state of a streamrec.torch.Loader, "
                f"but get_train_dataloader() returned a {type(loader).__name__}: return a Loader "
                "from it, or leave the callback out (a Trainer with train_dataset= resumes by "
                "itself)"
            )
        refuse_sampling(args)
        self._loader = loader
        loader.skip_with(None)  # since an earlier `train()`
        loader.load_state_dict({})
        # A Trainer that knows the length of an epoch counts epochs as the loader does; otherwise
        # it is in its first one.
        loader.set_epoch(int(state.epoch or 0) if state.global_step else 0)
        saved = saved_state(args, state) if state.global_step else None
        if saved is not None:
            loader.load_state_dict(saved)
        elif state.global_step and args.ignore_data_skip:
            raise FileNotFoundError(
                f"{state_path(args, state)} is not there or is of another run, so this rank does "
                "not know which batches were trained on: leave ignore_data_skip out, and they are "
                "passed over"
            )
        loader.skip_with(PassedOver(loader, has_state=saved is not None))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves the state of this rank's loader in the checkpoint that was just written."""
        if self._loader is None or state.is_hyper_param_search:
            return
        path = state_path(args, state)
        path.parent.mkdir(parents=True, exist_ok=True)  # on a disk of this machine alone
        content = {"world_size": args.world_size, "state": self._loader.state_dict()}
        # Whole or not at all: a run may be killed at any time.
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content))
        os.replace(new, path)


class PassedOver(data.IterableDataset[Any]):
    """The batches of an epoch for `skip_first_batches`, which drops the first of them.

    Args:
        loader: The loader, at its state or at the beginning of the epoch.
        has_state: Whether it is at its state.
    """

    def __init__(self, loader: Loader, *, has_state: bool) -> None:
        super().__init__()
        self._loader = loader
        self._has_state = has_state

    def __iter__(self) -> Iterator[Any]:
        skipped = number_to_skip()
        if self._has_state:
            yield from repeat(None, skipped)
            yield from self._loader
            return
        # Without a length, the Trainer counts the batches of several epochs as those of one.
        given = 0
        while True:
            before = given
            for batch in self._loader:
                given += 1
                yield batch
            if given > skipped or given == before:
                return


def number_to_skip() -> int:
    """How many batches the caller drops, a `SkipDataLoader` of Accelerate."""
    frame = currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            skipped = getattr(frame.f_locals.get("self"), "skip_batches", None)
            if isinstance(skipped, int):
                return skipped
        frame = frame.f_back
    raise RuntimeError(
        "streamrec does not know how this version of Accelerate skips the batches of a Loader: "
        "pass ignore_data_skip=True to TrainingArguments"
    )


def state_path(args: Any, state: Any) -> Path:
    """The file of this rank's state in the checkpoint of a step."""
    return Path(
        args.output_dir, f"checkpoint-{state.global_step}", f"loader-{args.process_index}.json"
    )


def saved_state(args: Any, state: Any) -> dict[str, Any] | None:
    """The state of this rank's loader in the checkpoint that a Trainer has loaded, if it is there.

    The Trainer does not tell callbacks which checkpoint that is. So one in `output_dir` must have
    the same history of losses.
    """
    path = state_path(args, state)
    try:
        content = json.loads(path.read_text())
        history = json.loads((path.parent / "trainer_state.json").read_text())["log_history"]
    except FileNotFoundError:
        logger.info("%s is not there: the batches before it are read again", path)
        return None
    if content["world_size"] != args.world_size or history != state.log_history:
        logger.warning(
            "%s is of another run or another number of ranks: the batches before it are read again",
            path,
        )
        return None
    found: dict[str, Any] = content["state"]
    return found
