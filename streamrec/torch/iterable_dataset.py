"""IterableDataset: a Dataset as a `torch.utils.data.IterableDataset`, in one process or in the workers of a DataLoader.

Rules:
- Each process that iterates runs the pipeline for itself. Where several do, `distribute` must deal the data to them:
  a Dataset that every one of them would read whole is refused.
- The rank is looked up in the process that makes the DataLoader's workers and goes with the data set to them, because
  a spawned worker has no process group; which worker it is, each finds out for itself.
- The epoch lies in shared memory, so that `set_epoch` reaches workers that are kept (`persistent_workers`). Each
  iteration that begins without `set_epoch` is the next epoch.
- A state is one reader's. `StatefulDataLoader` calls `state_dict` and `load_state_dict` in each worker. Of those of a
  global shuffle, `job_state` makes one that any number of ranks and workers can go on from.
- A state that is loaded before the workers are made is gone on from once by each of them: who has, lies in shared
  memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch.utils import data

from streamrec import Dataset, DatasetIterator
from streamrec.pipeline.engine.ranks import Rank, rank_here, worker_here
from streamrec.pipeline.engine.states import check_state
from streamrec.pipeline.loading import check_dealt
from streamrec.pipeline.sources.global_shuffle.job_state import job_state as job_state_of
from streamrec.torch.tensors import to_tensors

__all__ = ["IterableDataset", "job_state"]

MOST_WORKERS = 4096


class IterableDataset(data.IterableDataset[Any]):
    """A Dataset for PyTorch: iterate it, or pass it to a DataLoader.

    The pipeline makes the batches, so pass `batch_size=None` to the DataLoader:

        dataset = streamrec.TFRecordDataset("s3://b/train-*").distribute().batch(256).parse_example(features)
        loader = torch.utils.data.DataLoader(streamrec.torch.IterableDataset(dataset), batch_size=None)

    Args:
        dataset: What is read. Where there are several ranks, or workers, it must hold `distribute`.
        tensors: Whether arrays become tensors; see `to_tensors`. False leaves elements as they are.

    Examples:
        >>> numbers = IterableDataset(Dataset.range(4).batch(2))
        >>> list(numbers)
        [tensor([0, 1]), tensor([2, 3])]
    """

    def __init__(self, dataset: Dataset[Any], *, tensors: bool = True) -> None:
        super().__init__()
        self._dataset = dataset
        self._tensors = tensors
        self._rank: Rank | None = None
        self._first = shared(1)
        self._begun = shared(MOST_WORKERS)
        self._loaded = shared(MOST_WORKERS)
        self._state: Mapping[str, Any] | None = None
        self._run: DatasetIterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration begins, from 0, or goes on with after `load_state_dict`.

        A state that was saved at the end of an epoch goes on with that epoch, of which nothing is left. The workers of
        a DataLoader count, too. A `StatefulDataLoader` hands its state on when it is iterated, and not before: save the
        epoch beside it.
        """
        state = self._state if self._loaded[0] else None
        return int(self._first[0] + self._begun[0]) if state is None else int(state["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch: in all workers, also in those that are kept."""
        self._first[0] = epoch
        self._begun.zero_()

    def __iter__(self) -> Iterator[Any]:
        """Begins an iteration; or goes on, once, where `load_state_dict` said.

        Raises:
            ValueError: Others iterate beside this process, and the data is not dealt to them.
        """
        rank = self._dataset.options.rank or self._rank or rank_here()
        check_dealt(self._dataset, rank)
        state = self._state if self._loaded[worker_here()[0]] else None
        self._state = None
        self._loaded[worker_here()[0]] = 0
        if state is not None:
            check_state(state)
        epoch = self._epoch(state)
        dataset = self._dataset.with_options(epoch=epoch, rank=rank.rank, world_size=rank.world_size)
        run = dataset.iterate(state)
        self._run = run
        return self._elements(run)

    def state_dict(self) -> dict[str, Any]:
        """Where this process's iteration stands, as JSON; {} where there was none."""
        if self._run is not None:
            return self._run.state_dict()
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where the state was saved; {} for the start.

        Called in a process that makes workers, before it does, each of them goes on there; for a global shuffle, whose
        states hold for any number of workers (see `job_state`).
        """
        self._state = dict(state) or None
        worker = data.get_worker_info()
        self._loaded[slice(None) if worker is None else worker.id] = 1
        self._run = None

    def __getstate__(self) -> dict[str, Any]:
        rank = self._rank
        if (
            rank is None and get_spawning_popen() is not None
        ):  # a worker of this process: this process's rank is its own
            here = rank_here()
            rank = here if here.world_size > 1 else None
        return {**self.__dict__, "_rank": rank, "_run": None}

    def _elements(self, run: DatasetIterator[Any]) -> Iterator[Any]:
        with run:
            for element in run:
                yield to_tensors(element) if self._tensors else element

    def _epoch(self, state: Mapping[str, Any] | None) -> int:
        """The epoch of the iteration that begins now; the next one counts on from it."""
        info = data.get_worker_info()
        worker = 0 if info is None else info.id
        first, begun = int(self._first[0]), int(self._begun[worker])
        epoch = first + begun if state is None else int(state["epoch"])
        self._begun[worker] = epoch + 1 - first
        return epoch


def job_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """One state of the whole job, of what a rank's `StatefulDataLoader.state_dict()` says, or an `IterableDataset`'s.

    It is the same on all ranks after the same step, and any number of ranks and loader workers goes on from it:

        shared = streamrec.torch.IterableDataset(dataset)       # whose dataset holds global_shuffle(...)
        shared.load_state_dict(saved)                           # what job_state gave, in a job of any size
        loader = StatefulDataLoader(shared, batch_size=None, num_workers=3)

    Raises:
        ValueError: It is no such state, or not of a global shuffle, or a stage has a state of its own.
        PositionMismatchError: It was changed.
    """
    snapshot = state.get("_snapshot")
    if snapshot is None:
        return job_state_of([state.get("dataset_state", state)])
    workers: Sequence[Mapping[str, Any]] = [
        worker["dataset_state"] for worker in snapshot["_worker_snapshots"].values()
    ]
    return job_state_of([worker for worker in workers if worker], state["_steps_since_snapshot"])


def shared(count: int) -> Any:
    """Zeros that all workers see, and may change."""
    numbers: Any = torch.zeros(count, dtype=torch.int64)  # share_memory_ has no types
    return numbers.share_memory_()
