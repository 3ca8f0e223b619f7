"""Checks that a data set is divided among processes once, and neither more nor less often.

Those of wrappers that divide it (`engine/dividers.py`) make the same error in each process, before
the first batch: one that only process 0 saw would leave the others waiting for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from streamrec.display import logger, warn_once
from streamrec.pipeline import sources, stages
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.elements.columns import is_nest
from streamrec.pipeline.elements.specs import TensorSpec
from streamrec.pipeline.engine.description import Chain, Source, is_assigned, parts_of
from streamrec.pipeline.engine.dividers import Divider
from streamrec.pipeline.engine.ranks import Rank, rank_here, reader_here
from streamrec.pipeline.sources.shards.distribute import AssignedSource

BATCHING: Final = (
    stages.Batch,
    stages.PaddedBatch,
    stages.RaggedBatch,
    stages.CyclicBatch,
    stages.Bucket,
)
"""Stages that make batches."""

KEEPING: Final = (
    stages.Parse,
    stages.Filter,
    stages.IgnoreErrors,
    stages.Shard,
    stages.Skip,
    stages.Take,
    stages.TakeWhile,
)
"""Stages that make a batch of a batch, or leave it out."""


def check_assigned(dataset: Dataset[Any], rank: Rank | None) -> None:
    """Refuses a dataset that each of several processes would read completely."""
    readers = reader_here(rank).readers
    if readers > 1 and not is_assigned(dataset.chain):
        raise ValueError(
            f"{readers} processes (ranks times loader workers) would each read all of this "
            "dataset: call "
            ".distribute() directly after TFRecordDataset, or use one process"
        )
    if is_assigned(dataset.chain):
        warn_divided_twice(dataset, rank or rank_here())


def warn_divided_twice(dataset: Dataset[Any], rank: Rank) -> None:
    """Says that `shard` keeps a part of this process's part: then most elements are never read."""
    for part in parts_of(dataset.chain):
        if not isinstance(part, stages.Shard) or part.num_shards == 1:
            continue
        if (part.index, part.num_shards) == (rank.rank, rank.world_size):
            warn_once(
                f"shard({part.num_shards}, {part.index}) keeps 1 of {part.num_shards} elements of "
                f"what process {rank.rank} of {rank.world_size} gets anyway, and no process reads "
                "the others: leave shard() out"
            )


def check_divided(dataset: Dataset[Any], divider: Divider) -> None:
    """Refuses what a wrapper cannot divide without losing, repeating or mixing elements."""
    check_ranks(dataset, divider)
    warn_divided_twice(dataset, divider.rank)
    if divider.batch_size is not None and is_batched(dataset):
        raise ValueError(
            f"{divider.name} takes single examples, of which the DataLoader makes batches of "
            f"{divider.batch_size}, but this dataset has batches: leave batch() out, or append "
            ".unbatch(), or pass batch_size=None to the DataLoader"
        )
    if divider.dispatches:
        check_dispatched(dataset, divider)
    else:
        check_in_turns(dataset, divider)
    logger.info(
        "%s: process %d of %d reads %s",
        divider.name,
        divider.rank.rank,
        divider.rank.world_size,
        "its own part" if not divider.dispatches else "nothing" if divider.rank.rank else "all",
    )


def check_ranks(dataset: Dataset[Any], divider: Divider) -> None:
    """Refuses a rank that the user gave, unless process 0 alone reads and it says the same."""
    for given in given_ranks(dataset):
        if not divider.dispatches or given != divider.reader:
            raise ValueError(
                f"{divider.name} divides this dataset among {divider.rank.world_size} processes, "
                f"but it has {given} by rank= and world_size=, so that records would be lost or "
                "repeated: leave these arguments out, or do not prepare this DataLoader"
            )


def check_dispatched(dataset: Dataset[Any], divider: Divider) -> None:
    """Refuses a dataset that each loader worker of process 0 would read completely, and one of
    which process 0 could not send all to the others.

    Of a dataset whose elements are not known before the run, only process 0 sees that.
    """
    if divider.workers > 1 and not is_assigned(dataset.chain):
        raise ValueError(
            f"{divider.workers} loader workers would each read all of this dataset: call "
            ".distribute() directly after TFRecordDataset, or pass num_workers=1"
        )
    spec = dataset.chain.element_spec()
    if divider.sends_tensors and spec is not None:
        refuse_unsendable(divider, [name for name, leaf in named(spec) if not is_tensor(leaf)])


def refuse_unsendable(divider: Divider, names: Sequence[str]) -> None:
    """Refuses elements with parts of these names, if there are any: they are no tensors."""
    if names:
        what = ", ".join(map(repr, filter(None, names)))
        raise ValueError(
            f"{divider.name} sends only tensors to the other processes, but "
            + (f"{what} of this dataset" if what else "this dataset")
            + " has byte strings or values of varying length: leave them out of the features, "
            "make arrays of them with map(), or pass a collate_fn that makes tensors of them; or "
            "iterate a streamrec.torch.Loader, without preparing it"
        )


def is_tensor(spec: Any) -> bool:
    """Whether a spec is of arrays or numbers that become tensors."""
    return isinstance(spec, TensorSpec) and spec.dtype != np.dtype(object)


def named(nest: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All values of a nest, with the keys that lead to them, joined by dots.

    >>> list(named({"a": 1, "b": (2, 3)}))
    [('a', 1), ('b.0', 2), ('b.1', 3)]
    """
    if not is_nest(nest):
        yield name, nest
        return
    for key, part in nest.items() if isinstance(nest, dict) else enumerate(nest):
        yield from named(part, f"{name}.{key}" if name else str(key))


def check_in_turns(dataset: Dataset[Any], divider: Divider) -> None:
    """Refuses a dataset of which this process cannot read its own part, or maybe more or less than
    the others do.
    """
    processes = divider.rank.world_size
    if divider.batch_size is None:
        raise ValueError(
            f"{divider.name} cannot divide a DataLoader with batch_size=None: pass "
            "dispatch_batches=True, or a batch_size and a dataset of single examples; or do not "
            "prepare this DataLoader"
        )
    if not is_assigned(dataset.chain):
        raise ValueError(
            f"{divider.name}: each of {processes} processes would read all of this dataset: call "
            ".distribute(even='drop', manifest=...) directly after TFRecordDataset, or pass "
            "dispatch_batches=True"
        )
    assigned = (part for part in parts_of(dataset.chain) if isinstance(part, AssignedSource))
    if any(part.even is None for part in assigned):
        raise ValueError(
            f"{divider.name}: each of {processes} processes must get the same number of examples, "
            "or some wait for the others: pass even='drop' (or 'pad') and manifest= to "
            "distribute(), or even= to global_shuffle(); or pass dispatch_batches=True"
        )


def given_ranks(dataset: Dataset[Any]) -> Iterator[Rank]:
    """The ranks that the user gave, to the whole pipeline or to one of its sources."""
    if dataset.options.rank is not None:
        yield dataset.options.rank
    for part in parts_of(dataset.chain):
        if isinstance(part, AssignedSource) and part.rank is not None:
            yield part.rank


def ends_in_batches(chain: Chain) -> bool:
    """Whether the elements of a chain are batches for sure: no function, and nothing else of
    which this is not known, makes others of the batches.
    """
    for stage in reversed(chain.stages):
        if isinstance(stage, BATCHING):
            return True
        if not isinstance(stage, KEEPING):
            return False
    source = chain.source
    if source.makes_batches:
        return True
    if isinstance(source, sources.Prefetch | sources.Repeat | sources.Shuffle):
        return ends_in_batches(source.inner)
    return False


def is_batched(dataset: Dataset[Any]) -> bool:
    """Whether a dataset makes batches and does not take them apart."""
    parts = list(parts_of(dataset.chain))
    batches = any(
        # Asked, not compared with GlobalShuffle: naming that class would import it for each loader.
        part.makes_batches if isinstance(part, Source) else isinstance(part, BATCHING)
        for part in parts
    )
    unbatches = any(isinstance(part, stages.Unbatch) for part in parts)
    return batches and not unbatches


def refuse_to_read(divider: Divider) -> NoReturn:
    """Called if a process asks for elements that it gets from process 0 otherwise."""
    raise RuntimeError(
        f"{divider.name} reads in process 0 only, but process {divider.rank.rank} asks for "
        "elements: use a streamrec.torch.Loader without preparing it"
    )
