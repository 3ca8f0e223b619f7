"""torch: a Dataset as a `torch.utils.data.IterableDataset`, in one process or in the workers of a DataLoader.

Rules:
- Each process that iterates runs the pipeline for itself. Where several do, `distribute` must deal the data to them:
  a Dataset that every one of them would read whole is refused.
- The rank is looked up in the process that makes the DataLoader's workers and goes with the data set to them, because
  a spawned worker has no process group; which worker it is, each finds out for itself.
- The epoch lies in shared memory, so that `set_epoch` reaches workers that are kept (`persistent_workers`). Each
  iteration that begins without `set_epoch` is the next epoch.
- A state is one reader's. `StatefulDataLoader` calls `state_dict` and `load_state_dict` in each worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import data

from streamrec import BytesColumn, Dataset, DatasetIterator, Frames
from streamrec.pipeline.engine.iteration import check_state
from streamrec.pipeline.sources.shards.distribute import is_dealt
from streamrec.pipeline.sources.shards.ranks import Rank, rank_here, reader_here

__all__ = ["IterableDataset", "to_tensors"]

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
        self._state: Mapping[str, Any] | None = None
        self._run: DatasetIterator[Any] | None = None

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
        self._check_dealt(rank)
        state, self._state = self._state, None
        if state is not None:
            check_state(state)
        epoch = self._epoch(state)
        run = self._dataset.with_rank(rank.rank, rank.world_size).with_epoch(epoch).iterate(state)
        self._run = run
        return self._elements(run)

    def state_dict(self) -> dict[str, Any]:
        """Where this process's iteration stands, as JSON; {} where there was none."""
        if self._run is not None:
            return self._run.state_dict()
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration in this process goes on where the state was saved; {} for the start."""
        self._state = dict(state) or None
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

    def _check_dealt(self, rank: Rank) -> None:
        readers = reader_here(rank).readers
        if readers > 1 and not is_dealt(self._dataset.chain):
            raise ValueError(
                f"{readers} processes (ranks times loader workers) would each read all of {self._dataset!r}: put "
                ".distribute() right behind TFRecordDataset, or use one process"
            )


def shared(count: int) -> Any:
    """Zeros that all workers see, and may change."""
    numbers: Any = torch.zeros(count, dtype=torch.int64)  # share_memory_ has no types
    return numbers.share_memory_()


def to_tensors(element: Any) -> Any:
    """An element with its arrays and numbers as tensors, in dicts and tuples too.

    An array that may be written to shares its memory with its tensor; any other is copied. `RaggedTensor` and
    `SparseTensor` keep their kind, with tensors in it. Records (`Frames`) and byte strings become lists of `bytes`, and
    arrays of arrays, such as decoded images, lists of tensors.
    """
    if isinstance(element, Mapping):
        return {key: to_tensors(value) for key, value in element.items()}
    if isinstance(element, tuple):
        parts = [to_tensors(part) for part in element]
        return type(element)(*parts) if hasattr(element, "_fields") else tuple(parts)
    if isinstance(element, Frames):
        return list(element)
    if isinstance(element, BytesColumn):
        return element.to_numpy().tolist()
    if isinstance(element, np.ndarray | np.generic):
        return to_tensor(np.asarray(element))
    return element


def to_tensor(array: npt.NDArray[Any]) -> Any:
    """An array as a tensor: without a copy where it may be written to. Strings as lists."""
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], np.ndarray):
        return [to_tensors(each) for each in array]
    if array.dtype.kind in "OSU":
        return array.tolist()
    own = array if array.flags.writeable else array.copy()
    if array.dtype.name == "bfloat16":  # of ml_dtypes; torch takes the bits
        return torch.from_numpy(own.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(own)
