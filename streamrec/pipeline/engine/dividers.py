"""Recognises wrappers of other libraries that divide a data set among the processes of a job.

Accelerate, and the Trainer of transformers with it, take any `IterableDataset` for the whole data:
process 0 reads it and sends the others their parts ("dispatches"), or each process reads it and
keeps its turns of it. Below `distribute()`, that would give each process a part of a part.

Rules:
- A wrapper is recognised by its public class, among the callers of the code that asks: it iterates,
  sets the epoch, or asks for the length. So the same data set may be iterated with and without it.
  A forked loader worker has the callers of the process that made it; for a spawned one, the
  wrapper is found when the data set is pickled.
- No package is imported: a process that runs under one of them has it in `sys.modules`.
- If a version of a class lacks an attribute that is needed here, that is an error: reading on would
  lose data.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import currentframe
from itertools import cycle, islice, repeat
from typing import Any, Final, TypeVar

from streamrec.pipeline.engine.ranks import Rank

T = TypeVar("T")

DISPATCHERS: Final = {"accelerate.data_loader": "DataLoaderDispatcher"}
"""Classes whose process 0 reads for all, by their modules."""

COLLATES: Final = {
    "torch.utils.data": ("default_collate", "default_convert"),
    "transformers": ("default_data_collator",),
}
"""Functions that join the elements of a batch, and make no tensors of byte strings, by their
modules. A user's own function may."""

SHARDS: Final = {
    "accelerate.data_loader": "IterableDatasetShard",
    "transformers.trainer_pt_utils": "IterableDatasetShard",
}
"""Classes that keep one process's turns of a data set, by their modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divider:
    """A wrapper that divides a data set.

    Attributes:
        name: Its class, for messages.
        rank: This process among those that it divides the data among.
        batch_size: Of how many elements its DataLoader makes a batch; None if elements are batches.
        workers: How many loader workers a process has, if it is known here; otherwise 0.
        turn: How many consecutive elements a process takes; None if process 0 dispatches them.
        fills_up: Whether it fills the last turns up with elements from the beginning.
        sends_tensors: Whether its DataLoader leaves byte strings as they are, and only tensors can
            be sent to other processes.
    """

    name: str
    rank: Rank
    batch_size: int | None
    workers: int = 0
    turn: int | None = None
    fills_up: bool = True
    sends_tensors: bool = False

    @property
    def dispatches(self) -> bool:
        """Whether process 0 reads for all."""
        return self.turn is None

    @property
    def only_receives(self) -> bool:
        """Whether this process reads nothing, and gets its elements from process 0."""
        return self.dispatches and self.rank.rank > 0

    @property
    def reader(self) -> Rank:
        """The rank whose part this process reads: of what is dispatched, process 0 reads all."""
        return Rank(0, 1) if self.dispatches else self.rank


def divider_here(modules: Mapping[str, Any] = sys.modules) -> Divider | None:
    """The innermost wrapper among the callers that divides what they read; None without one."""
    if not any(name in modules for name in SHARDS):
        return None
    frame = currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") in SHARDS:
            found = divider_of(frame.f_locals.get("self"), modules)
            if found is not None:
                return found if found.rank.world_size > 1 else None
        frame = frame.f_back
    return None


def check_sampling(modules: Mapping[str, Any] = sys.modules) -> None:
    """Refuses to read under a Trainer that was asked to choose the order of the examples.

    It would ignore that without a word.
    """
    if "transformers.trainer" not in modules:
        return
    frame = currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "transformers.trainer":
            refuse_sampling(getattr(frame.f_locals.get("self"), "args", None))
        frame = frame.f_back


def refuse_sampling(arguments: Any) -> None:
    """Refuses TrainingArguments that ask for an order which a stream does not have."""
    strategy = getattr(arguments, "train_sampling_strategy", None)
    # Until transformers 5 it was an argument of its own.
    if getattr(arguments, "group_by_length", False):
        strategy = "group_by_length"
    if strategy in ("group_by_length", "batch_rebalance"):
        raise ValueError(
            f"train_sampling_strategy={strategy!r} needs a data set that is indexed by numbers, "
            "and Trainer ignores it for a stream: leave it out, and append "
            "bucket_by_sequence_length() to the dataset, which makes batches of examples of about "
            "the same length"
        )


def divider_of(wrapper: object, modules: Mapping[str, Any] = sys.modules) -> Divider | None:
    """How an object divides a data set; None if its class is not one that does."""
    try:
        if is_one(wrapper, DISPATCHERS, modules):
            return dispatcher(wrapper, modules)
        return keeper(wrapper) if is_one(wrapper, SHARDS, modules) else None
    except AttributeError as error:
        kind = type(wrapper)
        raise ValueError(
            f"{kind.__module__}.{kind.__name__} divides this dataset, but streamrec does not know "
            f"how this version of it does ({error}): iterate a streamrec.torch.Loader instead, "
            "without preparing it"
        ) from error


def is_one(wrapper: object, classes: Mapping[str, str], modules: Mapping[str, Any]) -> bool:
    """Whether an object is of one of these classes."""
    found = (getattr(modules.get(module), name, None) for module, name in classes.items())
    return any(isinstance(kind, type) and isinstance(wrapper, kind) for kind in found)


def dispatcher(wrapper: Any, modules: Mapping[str, Any]) -> Divider:
    """An `accelerate.data_loader.DataLoaderDispatcher`."""
    joins = {
        getattr(modules.get(module), name, None)
        for module, names in COLLATES.items()
        for name in names
    }
    return Divider(
        name="DataLoaderDispatcher (dispatch_batches=True)",
        rank=Rank(wrapper.state.process_index, wrapper.state.num_processes),
        batch_size=wrapper.batch_size,
        workers=wrapper.num_workers,
        sends_tensors=wrapper.collate_fn in joins,
    )


def keeper(wrapper: Any) -> Divider:
    """An `IterableDatasetShard` of accelerate or transformers.

    With `split_batches`, each process takes its part of one batch.
    """
    rank = Rank(wrapper.process_index, wrapper.num_processes)
    size: int | None = wrapper.batch_size
    splits = getattr(wrapper, "split_batches", False)  # transformers' has none
    return Divider(
        name="IterableDatasetShard (dispatch_batches=False)",
        rank=rank,
        batch_size=size,
        turn=(size or 1) // (rank.world_size if splits else 1),
        fills_up=not wrapper.drop_last,
    )


class OthersElement:
    """Stands for an element of another process, which the wrapper of this process drops."""

    def __repr__(self) -> str:
        return "<an element of another process, which this process should not get>"


OTHERS: Final = OthersElement()


def in_turns(elements: Iterable[T], divider: Divider) -> Iterator[T | OthersElement]:
    """The elements of one process at the places that its wrapper keeps, `OTHERS` at all others.

    So each process reads only its own part. The wrapper must not fill up the last turns itself,
    with elements of others: they end with elements from the beginning of this process's.

    >>> shard = Divider(name="", rank=Rank(1, 2), batch_size=2, turn=2)
    >>> [each if isinstance(each, int) else "-" for each in in_turns([1, 2, 3], shard)]
    ['-', '-', 1, 2, '-', '-', 3, 1]
    """
    size = divider.turn
    assert size is not None
    before = divider.rank.rank * size
    after = (divider.rank.world_size - 1) * size - before
    elements = iter(elements)
    first: list[T] = []
    while True:
        count = 0
        for element in islice(elements, size):
            if not count:
                yield from repeat(OTHERS, before)
            if len(first) < size:
                first.append(element)
            count += 1
            yield element
        if count < size:
            if count and divider.fills_up:
                yield from islice(cycle(first), size - count)
                yield from repeat(OTHERS, after)
            return
        yield from repeat(OTHERS, after)
