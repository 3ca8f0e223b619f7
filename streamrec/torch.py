"""torch: a Dataset in PyTorch: in a DataLoader (`IterableDataset`), or straight on a device (`Loader`).

    loader = streamrec.torch.Loader(dataset.batch(256).parse_example(features), device="cuda")
    for batch in loader: ...

`Loader` needs no worker processes: fetching, checking and parsing run in threads that do not hold the interpreter's
lock. `IterableDataset` is for a `DataLoader`: use it if your own Python code takes most of the time.
Needs `pip install 'streamrec[torch]'`.

Rules of `IterableDataset`:
- Each process that iterates runs the pipeline for itself. Where several do, `distribute` must assign the data to them:
  a Dataset that each of them would read whole is refused.
- The rank is looked up in the process that makes the DataLoader's workers and goes with the data set to them, because
  a spawned worker has no process group; each worker finds out its own number.
- The epoch is in shared memory, so that `set_epoch` reaches workers that are kept (`persistent_workers`). Each
  iteration that begins without `set_epoch` is the next epoch.
- A state is one reader's. `StatefulDataLoader` calls `state_dict` and `load_state_dict` in each worker. Of those of a
  global shuffle, `job_state` makes one from which any number of ranks and workers can go on.
- From a state that is loaded before the workers are made, each of them goes on once: which have is in shared memory.

Rules of `Loader`:
- On the CPU a tensor shares its memory with the column, where that may be written to.
- On a CUDA device batches go through pinned memory and a side stream, some of them ahead of their turn. A copy from
  ordinary memory holds up the caller and the device; from pinned (page-locked) memory it delays neither.
- Torch's allocator of pinned memory keeps what is freed, and hands it out again only when the copies from it are done.
- What was copied belongs to the side stream until `finish` has the stream that the caller computes on wait for it
  (the host does not wait), and keeps the memory from being given out again before the caller's own work is done
  (`record_stream`).
- CUDA is first used in the first iteration, so that a Loader may be made before a fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from inspect import currentframe
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import data

from streamrec import Dataset
from streamrec.arguments import integer
from streamrec.pipeline import DatasetIterator, stages
from streamrec.pipeline.dataset import check_dataset
from streamrec.pipeline.engine.description import parts_of
from streamrec.pipeline.engine.ranks import Rank, rank_here, warn_once, worker_here
from streamrec.pipeline.engine.states import check_state
from streamrec.pipeline.loading import Epochs, check_assigned, convert_leaves
from streamrec.pipeline.sources.global_shuffle.steps import job_state as job_state_of

__all__ = ["IterableDataset", "Loader", "job_state", "to_tensors"]

MAX_WORKERS = 4096

NOT_NUMPYS: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of ml_dtypes that torch has too: it takes their bits."""


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
        check_dataset("dataset", dataset)
        self._dataset = dataset
        self._tensors = tensors
        self._rank: Rank | None = None
        self._first = shared_zeros(1)
        self._begun = shared_zeros(MAX_WORKERS)
        self._loaded = shared_zeros(MAX_WORKERS)
        self._state: Mapping[str, Any] | None = None
        self._run: DatasetIterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration begins, from 0, or goes on with after `load_state_dict`.

        A state saved at the end of an epoch continues that epoch, of which nothing is left. Iterations in the workers
        of a DataLoader count, too. A `StatefulDataLoader` passes its state on only when iterated: save the epoch, too.
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
            ValueError: Other processes iterate too, and `distribute` does not assign the data to them.
        """
        rank = self._find_rank()
        check_assigned(self._dataset, rank)
        caller = currentframe()
        if caller and caller.f_back and caller.f_back.f_locals.get("auto_collation") and is_batched(self._dataset):
            warn_once("a DataLoader makes batches of the batches of this dataset: pass batch_size=None to it")
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

    def __len__(self) -> int:
        """How many elements an epoch of this rank has, where `len(dataset)` is known; else a TypeError.

        The workers of a DataLoader may give up to one batch each more, since each of them ends with a batch of its own.
        """
        rank = self._find_rank()
        return len(self._dataset.with_options(rank=rank.rank, world_size=rank.world_size))

    def __bool__(self) -> bool:
        """True, as a Dataset is."""
        return True

    def _find_rank(self) -> Rank:
        return self._dataset.options.rank or self._rank or rank_here()

    def state_dict(self) -> dict[str, Any]:
        """The position of this process's iteration, as JSON; {} where there was none."""
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
        if get_spawning_popen() is not None:  # a worker of this process: this process's rank is its own
            check_picklable(self._dataset)
            here = rank or rank_here()
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


def is_batched(dataset: Dataset[Any]) -> bool:
    """Whether elements are batches, by what the dataset says of itself."""
    makers = stages.Batch, stages.PaddedBatch, stages.RaggedBatch, stages.CyclicBatch, stages.Bucket
    parts = list(parts_of(dataset.chain))
    return any(isinstance(part, makers) for part in parts) and not any(
        isinstance(part, stages.Unbatch) for part in parts
    )


def check_picklable(dataset: Dataset[Any]) -> None:
    """Refuses a dataset that cannot go to a process that is not a fork of this one.

    Raises:
        TypeError: It holds a lambda, or what else cannot be pickled.
    """
    try:
        ForkingPickler.dumps(dataset)
    except (AttributeError, PicklingError, TypeError) as error:
        raise TypeError(
            f"this dataset cannot be sent to a worker process ({error}): define its functions with def, at the top of "
            "a module; or pass num_workers=0, or use streamrec.torch.Loader"
        ) from error


def job_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """One state of the whole job, of what a rank's `StatefulDataLoader.state_dict()` says, or an `IterableDataset`'s.

    It is the same on all ranks after the same step, and any number of ranks and loader workers goes on from it:

        shared = streamrec.torch.IterableDataset(dataset)       # whose dataset holds global_shuffle(...)
        shared.load_state_dict(saved)                           # what job_state gave, in a job of any size
        loader = StatefulDataLoader(shared, batch_size=None, num_workers=3)

    Raises:
        ValueError: It is not such a state, or not of a global shuffle, or a stage has a state of its own.
        PositionMismatchError: It was changed.
    """
    snapshot = state.get("_snapshot")
    if snapshot is None:
        return job_state_of([state.get("dataset_state", state)])
    workers: Sequence[Mapping[str, Any]] = [
        worker["dataset_state"] for worker in snapshot["_worker_snapshots"].values()
    ]
    return job_state_of([worker for worker in workers if worker], state["_steps_since_snapshot"])


def shared_zeros(count: int) -> Any:
    """Zeros that all workers see, and may change."""
    numbers: Any = torch.zeros(count, dtype=torch.int64)  # share_memory_ has no types
    return numbers.share_memory_()


class Loader(Epochs[Any]):
    """A Dataset's elements as tensors on a device: iterate it, once for each epoch.

    The pipeline makes the batches, in threads of this process; no worker processes are needed, and none of their
    memory, start-up time and copying.

    Args:
        dataset: What is read. Where there are several ranks, it must hold `distribute`.
        device: Where the tensors are: "cpu", "cuda", "cuda:1", a `torch.device`.
        prefetch: How many elements are copied to the device ahead of the one that is worked on. That many batches and
            one more are in its memory, and about as many in torch's pinned memory. On the CPU nothing is copied.

    Shapes and dtypes are those of the columns; `to_tensors` says what else becomes of an element.

    Raises:
        ValueError: This machine has no such device.

    Examples:
        >>> loader = Loader(Dataset.range(4).batch(2))
        >>> for batch in loader:
        ...     print(batch)
        tensor([0, 1])
        tensor([2, 3])

        It is saved after any element, and goes on from there:

        >>> batches = iter(loader)
        >>> _ = next(batches)
        >>> again = Loader(Dataset.range(4).batch(2))
        >>> again.load_state_dict(loader.state_dict())
        >>> list(again)
        [tensor([2, 3])]
    """

    def __init__(self, dataset: Dataset[Any], *, device: Any = "cpu", prefetch: int = 2) -> None:
        self.device = torch.device(device)
        check_device(self.device)
        self._copies: CudaCopies | None = None
        prefetch = integer("prefetch", prefetch, 0)
        ahead = 0 if self.device.type == "cpu" else prefetch
        super().__init__(dataset, self._begin, self._finish, ahead, rank_here)

    def _begin(self, element: Any) -> Any:
        if self.device.type == "cpu":
            return to_tensors(element)
        if self.device.type == "cuda":
            if self._copies is None:
                self._copies = CudaCopies(self.device)
            return self._copies.begin(element)
        return convert_leaves(element, lambda array, name: to_tensor(array, name).to(self.device))

    def _finish(self, element: Any) -> Any:
        return element if self._copies is None else self._copies.finish(element)


def check_device(device: Any) -> None:
    """Refuses a CUDA device that is not there, without making use of one that is."""
    if device.type != "cuda":
        return
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ValueError(f"device={str(device)!r}: torch finds {count} CUDA devices here; device='cpu' works anywhere")


class CudaCopies:
    """Copies elements to a CUDA device on a side stream, from pinned memory.

    Torch's allocator of pinned memory hands out a block again only when the copies from it are done.
    """

    def __init__(self, device: Any) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device: Any = torch.device("cuda", index)  # also when another one becomes the current one
        cuda: Any = torch.cuda  # its functions have no types
        self._stream = cuda.Stream(self._device)

    def begin(self, element: Any) -> tuple[Any, list[Any], Any]:
        """Begins to copy an element.

        Returns:
            The element with tensors of the device, these tensors, and an event after their copies.
        """
        tensors: list[Any] = []

        def leaf(array: npt.NDArray[Any], name: str) -> Any:
            dtype, native = dtype_of(array, name), array.dtype.newbyteorder("=")
            pinned = torch.empty(array.nbytes, dtype=torch.uint8, pin_memory=True)
            np.copyto(pinned.numpy().view(native).reshape(array.shape), array)
            with torch.cuda.stream(self._stream):
                tensors.append(pinned.view(dtype).view(array.shape).to(self._device, non_blocking=True))
            return tensors[-1]

        return convert_leaves(element, leaf), tensors, self._stream.record_event()

    def finish(self, copying: tuple[Any, list[Any], Any]) -> Any:
        """The element, for work that the device begins from now on; this thread does not wait."""
        element, tensors, event = copying
        current: Any = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)  # its memory belongs to the side stream
        return element


def to_tensors(element: Any) -> Any:
    """An element with its arrays and numbers as tensors, in dicts and tuples too.

    An array that may be written to shares its memory with its tensor; any other is copied. `RaggedTensor` and
    `SparseTensor` keep their kind, with tensors in it. Records (`Frames`) and byte strings become lists of `bytes`, and
    arrays of arrays, such as decoded images, lists of tensors.

    Examples:
        >>> import numpy as np
        >>> to_tensors({"id": np.arange(3), "name": np.array([b"a", b"b"], object)})
        {'id': tensor([0, 1, 2]), 'name': [b'a', b'b']}
    """
    return convert_leaves(element, to_tensor)


def to_tensor(array: npt.NDArray[Any], name: str = "") -> Any:
    """An array of numbers as a tensor: without a copy where it may be written to, and torch takes its layout."""
    own = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not own.flags.writeable or any(stride < 0 for stride in own.strides):
        own = own.copy()
    dtype = dtype_of(own, name)
    if own.dtype.name in NOT_NUMPYS:
        return torch.from_numpy(own.view(f"i{own.dtype.itemsize}")).view(dtype)
    return torch.from_numpy(own)


def dtype_of(array: npt.NDArray[Any], name: str) -> Any:
    """Torch's dtype of this name."""
    found = getattr(torch, array.dtype.name, None)
    if not isinstance(found, torch.dtype):
        where = f"column {name!r}: " if name else ""
        raise TypeError(f"{where}torch has no dtype {array.dtype.name}: map it to another one before it is loaded")
    return found
