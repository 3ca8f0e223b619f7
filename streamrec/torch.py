"""A Dataset in PyTorch: in a DataLoader (`IterableDataset`), or directly on a device (`Loader`).

    loader = streamrec.torch.Loader(dataset.batch(256).parse_example(features), device="cuda")
    for batch in loader: ...

`Loader` needs no worker processes: fetching, checking and parsing run in threads that do not hold
the GIL. `IterableDataset` is for a `DataLoader`: use it if your own Python code takes most of the
time.

Needs the extra `torch`.

Rules of `IterableDataset`:
- Each process that iterates runs its own pipeline. If several do, `distribute` must assign the data
  to them: a Dataset that each of them would read whole is refused.
- The process that makes the DataLoader's workers looks the rank up and sends it to them with the
  data set, because a spawned worker has no process group. Each worker looks up its own number.
- The epoch is in shared memory, so that `set_epoch` reaches workers that are kept
  (`persistent_workers`). Each iteration that begins without `set_epoch` is the next epoch.
- A state is that of one reader. `StatefulDataLoader` calls `state_dict` and `load_state_dict` in
  each worker. For a global shuffle, `job_state` combines them into one, which any number of ranks
  and workers can resume.
- Torch sends each tensor of a worker by itself, with a file descriptor: 0.8 ms of processor time
  each. So the tensors of an element are copied into one block when they are pickled, in the thread
  that sends them.
- Forked workers inherit modules: where workers are forked, the constructor imports the clients of
  the stores.
- If a state is loaded before the workers are made, each worker resumes from it once. A flag for
  each worker, in shared memory, says which have not yet.
- Accelerate divides any IterableDataset by itself (`dividers.py`). Where process 0 dispatches, it
  reads everything, as one rank, and the others read nothing. Where each process keeps its turns, it
  reads its own part, and gives placeholders for the rest.

Rules of `Loader`:
- On the CPU, a tensor shares the column's memory if that is writeable.
- On a CUDA device, batches go through pinned memory and a side stream, some of them ahead of their
  turn. A copy from ordinary memory blocks the caller and the device; a copy from pinned
  (page-locked) memory blocks neither.
- Torch's allocator of pinned memory keeps freed blocks, and reuses one only when the copies from it
  are done.
- A copied tensor belongs to the side stream. `finish` makes the caller's stream wait for the copy
  (the host does not wait), and `record_stream` keeps the memory until the caller's work is done.
- The first iteration is the first to use CUDA, so that a Loader may be made before a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import currentframe
from multiprocessing import get_all_start_methods, get_start_method
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from operator import getitem
from pickle import PicklingError
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils import data

from streamrec import Dataset
from streamrec.arguments import check_flag, check_integer
from streamrec.display import warn_once
from streamrec.errors import PositionMismatchError
from streamrec.pipeline import DatasetIterator
from streamrec.pipeline.dataset import check_dataset
from streamrec.pipeline.dividing import (
    check_assigned,
    check_divided,
    ends_in_batches,
    is_batched,
    named,
    refuse_to_read,
    refuse_unsendable,
)
from streamrec.pipeline.engine.description import parts_of
from streamrec.pipeline.engine.dividers import Divider, check_sampling, divider_here, in_turns
from streamrec.pipeline.engine.ranks import Rank, rank_here, worker_here
from streamrec.pipeline.engine.states import check_state
from streamrec.pipeline.lengths import absent_if_unknown
from streamrec.pipeline.loading import Epochs, LoaderIterator, convert_leaves
from streamrec.pipeline.sources.global_shuffle.job_state import job_state as job_state_of
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.watching import Tokens, Watch, nothing_yet
from streamrec.pipeline.worker_watch import WorkerWatch
from streamrec.storage import import_client

__all__ = ["IterableDataset", "Loader", "job_state", "to_tensors"]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


MAX_WORKERS = 4096

ML_DTYPES: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of ml_dtypes that torch has too, but does not take from NumPy: it takes their bits as
integers."""


class IterableDataset(data.IterableDataset[Any]):
    """A Dataset for PyTorch: iterate it, or pass it to a DataLoader.

    The pipeline makes the batches, so pass `batch_size=None` to the DataLoader:

        dataset = streamrec.TFRecordDataset("s3://b/train-*").distribute().batch(256)
        examples = streamrec.torch.IterableDataset(dataset.parse_example(features))
        loader = torch.utils.data.DataLoader(examples, batch_size=None)

    Args:
        dataset: The Dataset to read. With several ranks or workers, it must hold `distribute`.
        tensors: Whether arrays become tensors; see `to_tensors`. False leaves elements as they are.
        progress, trace, tokens: As for `Loader`. Of several workers, the first one prints the
            progress of all of them, and each writes a trace: "run-worker1.json".

    Examples:
        >>> numbers = IterableDataset(Dataset.range(4).batch(2))
        >>> list(numbers)
        [tensor([0, 1]), tensor([2, 3])]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        tensors: bool = True,
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
        tokens: Tokens = None,
    ) -> None:
        super().__init__()
        self._watch = WorkerWatch(Watch(progress=progress, trace=trace, tokens=tokens))
        check_dataset("dataset", dataset)
        if (get_start_method(allow_none=True) or get_all_start_methods()[0]) == "fork":
            import_clients(dataset)
        self._dataset = dataset
        self._tensors = tensors
        self._rank: Rank | None = None
        self._divider: Divider | None = None
        self._first_epoch = shared_zeros(1)
        self._epochs_begun = shared_zeros(MAX_WORKERS)  # by each worker, since the first epoch
        self._must_resume = shared_zeros(
            MAX_WORKERS
        )  # 1 for a worker whose next iteration begins at the loaded state
        self._state: Mapping[str, Any] | None = None
        self._run: DatasetIterator[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the next iteration begins, or continues after `load_state_dict`.

        A state saved at the end of an epoch still has the number of that epoch. Iterations in the
        workers of a DataLoader count, too. A `StatefulDataLoader` applies its state only when
        iterated: save the epoch with it.
        """
        state = self._state if self._must_resume[0] else None
        return (
            int(self._first_epoch[0] + self._epochs_begun[0])
            if state is None
            else int(state["epoch"])
        )

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next iteration, in all workers, also in persistent ones."""
        check_sampling()
        divider = divider_here()
        if divider is not None:  # here each process sees what is wrong, not only the first
            check_divided(self._dataset, divider)
        self._first_epoch[0] = epoch
        self._epochs_begun.zero_()

    def __iter__(self) -> Iterator[Any]:
        """Begins an iteration; the first one after `load_state_dict` continues from that state.

        Raises:
            ValueError: Other processes iterate too, and `distribute` does not assign the data to
                them; or a DataLoader makes batches of this dataset's batches.
        """
        check_sampling()
        divider = divider_here() or self._divider
        here = currentframe()
        caller = None if here is None else here.f_back
        collates = is_collating(caller) if divider is None else divider.batch_size is not None
        rank = self._find_rank(divider)
        check_reading(self._dataset, rank, divider, collates)
        epoch, state = self._begin_epoch()
        if divider is not None and divider.only_receives:
            refuse = partial(refuse_to_read, divider)
            return LoaderIterator(refuse, to_tensors, partial(nothing_yet, self._dataset))
        dataset = self._dataset.with_options(
            epoch=epoch, rank=rank.rank, world_size=rank.world_size
        )
        in_worker = data.get_worker_info() is not None
        self._run, counted = self._watch.iterate(dataset, state, in_worker=in_worker)
        nothing = partial(nothing_yet, dataset)
        elements = LoaderIterator(lambda: counted, self._converter(divider), nothing).start()
        if divider is None or divider.dispatches:
            return elements
        return in_turns(elements, divider)

    def _begin_epoch(self) -> tuple[int, Mapping[str, Any] | None]:
        """Counts an iteration in this process; returns its epoch, and the state that it continues
        from.
        """
        worker, _ = worker_here()
        state = self._state if self._must_resume[worker] else None
        self._state = None
        self._must_resume[worker] = 0
        if state is not None:
            check_state(state)
        first = int(self._first_epoch[0])
        epoch = first + int(self._epochs_begun[worker]) if state is None else int(state["epoch"])
        self._epochs_begun[worker] = epoch + 1 - first
        return epoch, state

    def _converter(self, divider: Divider | None) -> Callable[[Any], Any]:
        """How elements are converted, in this process or in a worker that sends them."""
        convert = self._own_converter()
        if divider is None or not divider.sends_tensors:
            return convert

        def checked(element: Any) -> Any:
            """What cannot be sent is an error here: in Accelerate it would not name the part."""
            converted = convert(element)
            refuse_unsendable(
                divider, [name for name, leaf in named(converted) if not is_sendable(leaf)]
            )
            return converted

        return checked

    def _own_converter(self) -> Callable[[Any], Any]:
        if not self._tensors:
            return lambda element: element
        if data.get_worker_info() is None:
            return to_tensors
        # In a process that torch made for loading only. All but tensors of elements are pickled by
        # torch's own function, so nothing else changes. A class of our own for these tensors would
        # need no registration for torch's, but `collate_fn` would meet it: `copy.deepcopy` of it
        # raises, `torch.save` names it, and it is not the `torch.Tensor` that user code expects.
        ForkingPickler.register(torch.Tensor, reduce_in_block)
        return to_joined_tensors

    @absent_if_unknown
    def __len__(self) -> int:
        """The number of elements of an epoch of this rank; a TypeError if `len(dataset)` is not
        known.

        Each worker of a DataLoader may add up to one batch, because its last batch may be
        incomplete. Asked by Accelerate, which divides it, this is the number of all ranks together.
        """
        divider = divider_here()
        rank = self._find_rank(divider)
        count = len(self._dataset.with_options(rank=rank.rank, world_size=rank.world_size))
        return count if divider is None or divider.dispatches else count * rank.world_size

    def __bool__(self) -> bool:
        """True, as a Dataset is."""
        return True

    def _find_rank(self, divider: Divider | None = None) -> Rank:
        if divider is not None:
            return divider.reader
        return self._dataset.options.rank or self._rank or rank_here()

    def stats(self) -> Stats:
        """The statistics of the current iteration, or of the last one; of all workers together,
        where workers read.

        Workers report about once a second, and at the end of an epoch. Their consumer is the
        DataLoader: where it is the bottleneck, the workers wait for the training step.
        """
        here = None if self._run is None else self._run.stats()
        return here or self._watch.reports.read() or nothing_yet(self._dataset)

    def state_dict(self) -> dict[str, Any]:
        """The position of this process's iteration, as JSON; {} before the first iteration."""
        if self._run is not None:
            return self._run.state_dict()
        return dict(self._state or {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where the state was saved; {} for the start.

        If you call it before the workers are made, each of them continues there. This needs the
        state of a global shuffle, which any number of workers can resume (see `job_state`).
        """
        self._state = dict(state) or None
        worker = data.get_worker_info()
        self._must_resume[slice(None) if worker is None else worker.id] = 1
        self._run = None

    def __getstate__(self) -> dict[str, Any]:
        rank, divider = self._rank, self._divider
        if get_spawning_popen() is not None:  # a worker of this process has this process's rank
            check_picklable(self._dataset)
            here = rank or rank_here()
            rank = here if here.world_size > 1 else None
            divider = divider_here() or divider
        return {**self.__dict__, "_rank": rank, "_divider": divider, "_run": None}


def is_sendable(leaf: object) -> bool:
    """Whether torch makes a tensor of a value of an element, if it is not one, or whether the
    function that joins elements leaves it out or has an error of its own: str and None.
    """
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind not in "OSU"
    if isinstance(leaf, list):
        return all(isinstance(each, int | float) for each in leaf)
    plain = torch.Tensor | int | float | np.number | np.bool | str | None
    return isinstance(leaf, plain) and not isinstance(leaf, np.str_)


def is_collating(caller: FrameType | None) -> bool:
    """Whether the caller of `__iter__` is a DataLoader that makes batches of elements.

    An error before the first batch depends on it: torch tells a data set neither its loader nor the
    loader's `batch_size`, by no hook and no argument, and `get_worker_info` has neither. So this
    looks at what the loader has in hand, and is False where the loader names it otherwise.
    """
    return caller is not None and bool(caller.f_locals.get("auto_collation"))


def check_reading(
    dataset: Dataset[Any], rank: Rank, divider: Divider | None, collates: bool
) -> None:
    """Refuses to read what is not divided once among the processes, and to make batches of
    batches.

    A function after `batch` may have made single examples: that is a warning.
    """
    if divider is not None:
        check_divided(dataset, divider)
    check_assigned(dataset, rank)
    if collates and ends_in_batches(dataset.chain):
        raise ValueError(
            "a DataLoader with a batch_size, such as that of transformers.Trainer, makes batches "
            "of single examples, but the elements of this dataset are batches already: pass "
            "batch_size=None to the DataLoader; or leave batch() out of the dataset, or append "
            ".unbatch(); or let Trainer use a streamrec.torch.Loader"
        )
    if collates and is_batched(dataset):
        warn_once(
            "a DataLoader makes batches of the batches of this dataset: pass batch_size=None to it"
        )


def import_clients(dataset: Dataset[Any]) -> None:
    """Imports the clients of a dataset's stores, which forked workers inherit: each takes half a
    second for it.
    """
    for part in parts_of(dataset.chain):
        if isinstance(part, Shards) and part.filenames:
            import_client(part.filenames[0], part.stores.storage_options, part.stores.filesystem)


def check_picklable(dataset: Dataset[Any]) -> None:
    """Refuses a dataset that cannot be pickled for a spawned worker."""
    try:
        ForkingPickler.dumps(dataset)
    except (AttributeError, PicklingError, TypeError) as error:
        raise TypeError(
            f"this dataset cannot be sent to a worker process ({error}): define its functions with "
            "def, at the top of "
            "a module; or pass num_workers=0; or use streamrec.torch.Loader"
        ) from error


def job_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a whole job, made from one rank's `StatefulDataLoader` or `IterableDataset`
    state.

    It is the same on all ranks after the same step, and any number of ranks and loader workers can
    resume from it:

        shared = streamrec.torch.IterableDataset(dataset)  # the dataset holds global_shuffle(...)
        shared.load_state_dict(saved)  # from job_state, in a job of any size
        loader = StatefulDataLoader(shared, batch_size=None, num_workers=3)

    Raises:
        ValueError: `state` is not such a state, or not of a global shuffle, or a stage has a state
            of its own, or the workers are at different steps, so that records would come twice.
        PositionMismatchError: The state was modified.
    """
    snapshot = state.get("_snapshot")
    if snapshot is None:
        return job_state_of([state.get("dataset_state", state)])
    workers: Sequence[Mapping[str, Any]] = [
        worker["dataset_state"] for worker in snapshot["_worker_snapshots"].values()
    ]
    return job_state_of(
        [worker for worker in workers if worker],
        state["_steps_since_snapshot"],
        before=snapshot["_snapshot_step"],
    )


ALL_RANKS: Final = "states_of_ranks"
"""The key of the states of all ranks in a gathered state."""


def gathered(own: Mapping[str, Any], rank: Rank) -> dict[str, Any]:
    """The states of all processes, which each of them gets; `own` if there is only one."""
    distributed: Any = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        if rank.world_size > 1:
            raise RuntimeError(
                f"gather_states=True: this is rank {rank.rank} of {rank.world_size}, but "
                "torch.distributed has no process group to gather the states with: call "
                "init_process_group, or leave gather_states out and save each rank's state"
            )
        return dict(own)
    # By process, not by rank: several processes may share the rank of `with_options(rank=...)`.
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, dict(own))
    return {ALL_RANKS: states} if len(states) > 1 else dict(own)


def own_state(state: Mapping[str, Any], rank: Rank) -> Mapping[str, Any]:
    """The state of this process, if a state is one of all processes; otherwise the state itself."""
    states = state.get(ALL_RANKS)
    if not isinstance(states, list):
        return state
    distributed: Any = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        rank = Rank(distributed.get_rank(), distributed.get_world_size())
    if len(states) != rank.world_size:
        raise PositionMismatchError(
            f"this state was saved by {len(states)} ranks, and this is rank {rank.rank} of "
            f"{rank.world_size}: resume with the same number of ranks, and load the state when "
            "the process group is set up"
        )
    found: Mapping[str, Any] = states[rank.rank]
    return found


def shared_zeros(count: int) -> Any:
    """Zeros in shared memory, which all workers can read and change."""
    numbers: Any = torch.zeros(count, dtype=torch.int64)  # share_memory_ has no types
    return numbers.share_memory_()


class Loader(Epochs[Any]):
    """A Dataset's elements as tensors on a device: iterate it once for each epoch.

    The pipeline makes the batches in threads of this process. It needs no worker processes, which
    would take memory, start-up time and copies.

    Args:
        dataset: The Dataset to read. With several ranks, it must hold `distribute`.
        device: The device of the tensors: "cpu", "cuda", "cuda:1", a `torch.device`.
        prefetch: How many elements are copied to the device ahead of the current one. The device's
            memory holds that many batches and one more, and torch's pinned memory about as many. On
            the CPU nothing is copied.
        progress: Whether rank 0 shows progress, with samples per second, as `Dataset.iterate` does.
        trace: A file to write for the Perfetto trace viewer (ui.perfetto.dev). Of several ranks,
            and of epochs after the first, each has its own: "run-rank1-epoch2.json".
        tokens: What counts tokens, for `stats().tokens_per_second`: the name of a column whose
            values are added up (lengths, an attention mask), or a function of an element of the
            dataset, such as `lambda batch: batch["tokens"].size`.
        gather_states: Whether `state_dict()` returns the states of all ranks, for checkpoints that
            only rank 0 writes, such as those of Lightning and Fabric. All ranks must then call it
            at the same step. False by default: each rank saves its own state.

    Shapes and dtypes are those of the columns; `to_tensors` says how other values are converted.

    Raises:
        ValueError: This machine does not have the device.

    Examples:
        >>> loader = Loader(Dataset.range(4).batch(2))
        >>> for batch in loader:
        ...     print(batch)
        tensor([0, 1])
        tensor([2, 3])

        Its state can be saved after any element:

        >>> batches = iter(loader)
        >>> _ = next(batches)
        >>> again = Loader(Dataset.range(4).batch(2))
        >>> again.load_state_dict(loader.state_dict())
        >>> list(again)
        [tensor([2, 3])]
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        device: Any = "cpu",
        prefetch: int = 2,
        progress: bool = False,
        trace: str | os.PathLike[str] | None = None,
        tokens: Tokens = None,
        gather_states: bool = False,
    ) -> None:
        self.device = torch.device(device)
        found = (
            torch.cuda.device_count() if self.device.type == "cuda" else 0
        )  # without initializing CUDA
        if self.device.type == "cuda" and (self.device.index or 0) >= found:
            name = str(self.device)
            raise ValueError(
                f"device={name!r}: torch finds {found} CUDA devices here; device='cpu' works "
                "anywhere"
            )
        self._copies: CudaCopies | None = None
        self._skippable: data.IterableDataset[Any] | None = None
        self._gathers = check_flag("gather_states", gather_states)
        prefetch = check_integer("prefetch", prefetch, 0)
        ahead = 0 if self.device.type == "cpu" else prefetch
        watch = Watch(progress=progress, trace=trace, tokens=tokens)
        super().__init__(dataset, self._begin, self._finish, ahead, rank_here, watch=watch)

    batch_size: ClassVar[None] = None
    """None, as of a DataLoader whose data set makes the batches."""

    drop_last: ClassVar[bool] = False
    """False, as of a DataLoader whose data set makes the batches."""

    prefetch_factor: ClassVar[None] = None
    """None, as of a DataLoader without workers."""

    @property
    def dataset(self) -> data.IterableDataset[Any]:
        """What Accelerate's `skip_first_batches` iterates; only under a Trainer with the callback
        `streamrec.transformers.TrainerState`.
        """
        if self._skippable is None:
            raise AttributeError(
                "a Loader has no attribute 'dataset'. To resume it under transformers.Trainer, "
                "pass callbacks=[streamrec.transformers.TrainerState()]"
            )
        return self._skippable

    @property
    def sampler(self) -> NoReturn:
        """Absent: Ray Train's `prepare_data_loader` asks for it, and the error says what to do."""
        raise AttributeError(
            "a Loader has no sampler: distribute() divides the data among the ranks, and the "
            "Loader moves batches to its device. Do not prepare it (ray.train.torch."
            "prepare_data_loader): iterate the Loader itself"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state before this rank's next element, as JSON; {} before the first iteration.

        After the end of an epoch, it is the state before the first element of the next epoch. With
        `gather_states`, it holds the states of all ranks, and each rank gets the same.

        Raises:
            RuntimeError: `gather_states` is set, and there are several ranks but no process group
                of torch.distributed.
        """
        own = super().state_dict()
        return gathered(own, self._rank()) if self._gathers else own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue where the state was saved; {} for the start.

        Of the states of all ranks (`gather_states`) this rank takes its own.

        Raises:
            PositionMismatchError: The value is not a state, or was changed; or it holds the states
                of another number of ranks.
        """
        super().load_state_dict(own_state(state, self._rank()))

    def skip_with(self, skippable: data.IterableDataset[Any] | None) -> None:
        """Called by `streamrec.transformers.TrainerState`: from now on, `skip_first_batches`
        iterates `skippable`, and `set_epoch` does nothing; None ends that.
        """
        self._skippable = skippable

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration this epoch; otherwise it is the one after the last."""
        if self._skippable is None:
            super().set_epoch(epoch)

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


class CudaCopies:
    """Copies elements to a CUDA device on a side stream, from pinned memory."""

    def __init__(self, device: Any) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device: Any = torch.device(
            "cuda", index
        )  # stays this one when another one becomes the current device
        cuda: Any = torch.cuda  # its functions have no types
        self._stream = cuda.Stream(self._device)

    def begin(self, element: Any) -> tuple[Any, list[Any], Any]:
        """Begins to copy an element; returns it with the device's tensors, these tensors, and an
        event at their end.
        """
        tensors: list[Any] = []

        def leaf(array: npt.NDArray[Any], name: str) -> Any:
            dtype, native = dtype_of(array, name), array.dtype.newbyteorder("=")
            pinned = torch.empty(array.nbytes, dtype=torch.uint8, pin_memory=True)
            np.copyto(pinned.numpy().view(native).reshape(array.shape), array)
            with torch.cuda.stream(self._stream):
                tensors.append(
                    pinned.view(dtype).view(array.shape).to(self._device, non_blocking=True)
                )
            return tensors[-1]

        return convert_leaves(element, leaf), tensors, self._stream.record_event()

    def finish(self, copying: tuple[Any, list[Any], Any]) -> Any:
        """Makes the device's further work wait for the copies, and returns the element; this thread
        does not wait.
        """
        element, tensors, event = copying
        current: Any = torch.cuda.current_stream(self._device)
        current.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(current)  # its memory belongs to the side stream
        return element


def to_tensors(element: Any) -> Any:
    """Converts the arrays and numbers of an element to tensors, in dicts and tuples too.

    A writeable array shares its memory with its tensor; any other is copied. `RaggedTensor` and
    `SparseTensor` keep their type and hold tensors. Records (`Frames`) and byte strings become
    lists of `bytes`; arrays of arrays, such as decoded images, become lists of tensors.

    Examples:
        >>> import numpy as np
        >>> to_tensors({"id": np.arange(3), "name": np.array([b"a", b"b"], object)})
        {'id': tensor([0, 1, 2]), 'name': [b'a', b'b']}
    """
    return convert_leaves(element, to_tensor)


def to_joined_tensors(element: Any) -> Any:
    """Converts as `to_tensors`, in a worker: all tensors of the element are sent as one block."""
    tensors: list[Any] = []

    def leaf(array: npt.NDArray[Any], name: str) -> Any:
        tensors.append(to_tensor(array, name))
        return tensors[-1]

    converted = convert_leaves(element, leaf)
    if tensors:
        Block(tensors)
    return converted


Places = dict[int, tuple[Any, int, tuple[int, ...]]]
"""The dtype, the first byte and the shape of each tensor in a block, by its number."""


class Block:
    """The short tensors of an element, as they are when it is pickled: copied into one block of
    memory.

    A long tensor, from 128 KiB on, goes alone: its memory becomes shared memory, by torch's one
    copy. So does that of a long block. A short one goes through the pipe: ten tensors of 77 kB in
    all took 1.9 ms of processor time, not 9.7. All go through the pipe where shared memory is full;
    torch alone would hang.
    """

    of: ClassVar[dict[int, tuple[Block, int]]] = {}
    """The block of each living tensor, and its number in it, by the tensor's id: a copy of a tensor
    has none."""

    def __init__(self, tensors: Sequence[Any]) -> None:
        self._tensors = [ref(tensor, partial(self._forget, id(tensor))) for tensor in tensors]
        Block.of |= {id(tensor): (self, index) for index, tensor in enumerate(tensors)}

    @staticmethod
    def _forget(key: int, _: object) -> None:
        del Block.of[key]

    def __reduce__(self) -> Any:
        alive = {
            index: tensor
            for index, each in enumerate(self._tensors)
            if (tensor := each()) is not None
        }
        places: Places = {}
        size = 0
        for index, tensor in alive.items():
            if is_plain(tensor) and not is_long(tensor):
                places[index] = (tensor.dtype, size, tuple(tensor.shape))
                size += max(64, tensor.nbytes + -tensor.nbytes % 64)  # each begins at a cache line
        memory: Any = torch.empty(size, dtype=torch.uint8)
        for index, part in parts_in(memory, places).items():
            part.copy_(alive[index])
        return parts_in, (memory if is_long(memory) and share(memory) else bytes_of(memory), places)


def parts_in(memory: Any, places: Places) -> dict[int, Any]:
    """The tensors in a block's memory. They are not views of it: autograd would count a change of
    one as one of all.
    """
    if isinstance(memory, bytes):
        memory = torch.frombuffer(bytearray(memory), dtype=torch.uint8)
    storage = memory.untyped_storage()
    return {
        index: torch.empty(0, dtype=dtype).set_(storage, start // dtype.itemsize, shape)
        for index, (dtype, start, shape) in places.items()
    }


def part_in(memory: bytes, place: tuple[Any, int, tuple[int, ...]]) -> Any:
    return parts_in(memory, {0: place})[0]


def reduce_in_block(tensor: Any) -> Any:
    """How a worker pickles a tensor: see Block. One that did not come from the data set is pickled
    as torch does.
    """
    place = Block.of.get(id(tensor))
    if place is not None and is_plain(tensor):
        if not is_long(tensor):
            return getitem, place  # pickle sends the block once
        if not share(tensor):
            return part_in, (bytes_of(tensor), (tensor.dtype, 0, tuple(tensor.shape)))
    return reduce_tensor(tensor)


def share(tensor: Any) -> bool:
    """Moves a tensor to shared memory; returns False if that is full."""
    try:
        tensor.share_memory_()
    except RuntimeError:
        warn_once(
            "the workers of a DataLoader get no shared memory for batches, and send them through "
            "pipes, which is "
            "slower: give the container more, as by docker run --shm-size=1g"
        )
        return False
    return True


def bytes_of(tensor: Any) -> bytes:
    data: bytes = tensor.view(torch.uint8).numpy().tobytes()
    return data


def is_long(tensor: Any) -> bool:
    return bool(tensor.nbytes >= 128 << 10)


def is_plain(tensor: Any) -> bool:
    """Whether values and shape are all there is to a tensor."""
    return not tensor.requires_grad and tensor.is_contiguous() and not tensor.is_shared()


def to_tensor(array: npt.NDArray[Any], name: str = "") -> Any:
    """An array of numbers as a tensor: without a copy if it is writeable and torch takes its
    layout.
    """
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not native.flags.writeable or any(stride < 0 for stride in native.strides):
        native = native.copy()
    dtype = dtype_of(native, name)
    if native.dtype.name in ML_DTYPES:
        return torch.from_numpy(native.view(f"i{native.dtype.itemsize}")).view(dtype)
    return torch.from_numpy(native)


def dtype_of(array: npt.NDArray[Any], name: str) -> Any:
    """Torch's dtype for an array's."""
    dtype = getattr(torch, array.dtype.name, None)
    if not isinstance(dtype, torch.dtype):
        where = f"column {name!r}: " if name else ""
        raise TypeError(
            f"{where}torch has no dtype {array.dtype.name}: map it to another one before it is "
            "loaded"
        )
    return dtype
