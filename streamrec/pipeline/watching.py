"""What a loader shows of its iterations: progress, a trace, and its samples and tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamrec.arguments import name_type
from streamrec.example import BytesColumn, RaggedTensor, SparseTensor
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.dividing import is_batched
from streamrec.pipeline.elements.columns import as_array, leaves
from streamrec.pipeline.engine.telemetry import Telemetry
from streamrec.pipeline.iterators import DatasetIterator
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.storage.ledger import Ledger
from streamrec.tfrecord import Frames

Tokens = str | Callable[[Any], int] | None
"""A column that counts tokens, or a function of an element that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a loader was asked to show of its iterations.

    Attributes:
        progress: Whether rank 0 shows progress.
        trace: The trace file, or None.
        tokens: What counts the tokens of an element, or None.
    """

    progress: bool = False
    trace: str | os.PathLike[str] | None = None
    tokens: Tokens = None

    def __post_init__(self) -> None:
        if not (self.tokens is None or isinstance(self.tokens, str) or callable(self.tokens)):
            raise TypeError(
                f"tokens={self.tokens!r} must be the name of a column that counts tokens, or a "
                "function of an element that returns their number"
            )

    def iterate(
        self,
        dataset: Dataset[Any],
        state: Mapping[str, Any] | None,
        *,
        worker: int | None = None,
    ) -> DatasetIterator[Any]:
        """Begins a run that is shown so, in this process or in a worker."""
        rank = dataset.options.rank
        several = rank is not None and rank.world_size > 1
        epoch = dataset.epoch if state is None else int(state["epoch"])
        parts = (rank.rank if several and rank else None, worker, epoch or None)
        # A worker has no terminal of its own.
        shows = self.progress and worker is None and (rank is None or rank.rank == 0)
        trace = None if self.trace is None else trace_path(self.trace, *parts)
        return dataset.iterate(state, progress=shows, trace=trace)

    def counter(self, dataset: Dataset[Any]) -> Callable[[Any], tuple[int, int]]:
        """A function that counts the samples and the tokens of an element of a dataset."""
        batched = is_batched(dataset)
        return lambda element: (
            count_samples(element) if batched else 1,
            count_tokens(element, self.tokens),
        )


NOTHING_SHOWN: Final = Watch()
"""Neither progress nor a trace, and no tokens."""


def nothing_yet(dataset: Dataset[Any]) -> Stats:
    """The statistics of a dataset that was not read."""
    return Telemetry(dataset.chain, Ledger(0), 0, None, False).stats()


def trace_path(
    path: str | os.PathLike[str], rank: int | None, worker: int | None, epoch: int | None
) -> str:
    """A file of its own for each rank, worker and epoch of which there are several.

    >>> trace_path("run.json", None, None, None), trace_path("a/run.json", 3, 0, 1)
    ('run.json', 'a/run-rank3-worker0-epoch1.json')
    """
    beginning, ending = os.path.splitext(os.fspath(path))
    named = (("rank", rank), ("worker", worker), ("epoch", epoch))
    parts = [f"-{name}{number}" for name, number in named if number is not None]
    return "".join((beginning, *parts, ending))


def count_samples(batch: Any) -> int:
    """The rows of a batch: the length of its first column.

    >>> import numpy as np
    >>> count_samples({"id": np.arange(3)}), count_samples(7)
    (3, 1)
    """
    first = next(iter(leaves(batch)), None)
    if isinstance(first, Frames | BytesColumn | RaggedTensor | SparseTensor | list):
        return len(first)
    shape = getattr(first, "shape", ())
    return int(shape[0]) if shape else 1


def count_tokens(element: Any, tokens: Tokens) -> int:
    """The tokens of an element.

    >>> import numpy as np
    >>> count_tokens({"mask": np.array([[1, 1, 0], [1, 0, 0]])}, "mask")
    3
    >>> count_tokens({"ids": np.zeros((2, 8))}, lambda batch: batch["ids"].size)
    16
    """
    if tokens is None:
        return 0
    if not isinstance(tokens, str):
        return int(tokens(element))
    if not isinstance(element, Mapping) or tokens not in element:
        found = sorted(element) if isinstance(element, Mapping) else f"a {name_type(element)}"
        raise ValueError(f"tokens={tokens!r} is not a column of the elements: there is {found}")
    column = element[tokens]
    if isinstance(column, RaggedTensor):
        column = column.flat_values
    elif isinstance(column, SparseTensor):
        column = column.values
    return int(as_array(column).sum())
