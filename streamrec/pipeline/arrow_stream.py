"""Converts a Dataset to a stream of Arrow record batches while the pipeline runs.

Each batch of the Dataset becomes one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np

from streamrec.errors import FeatureError, StreamrecError
from streamrec.example import ArrowBatch, FixedLenSequenceFeature, RaggedFeature, RaggedTensor
from streamrec.example.arrow import names_of_text
from streamrec.example.features import Feature
from streamrec.kernels.arrow_buffers import load_pyarrow
from streamrec.pipeline import sources, stages
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling
from streamrec.tfrecord import Frames

RECORD: Final = "record"
"""The only column of a batch of records that were not parsed."""


@dataclass(frozen=True)
class ToArrow(Stage):
    """Converts each element, a batch of records or columns, to an ArrowBatch.

    Attributes:
        text: The columns of byte strings that become text.
        steps: The columns of a FixedLenSequenceFeature, with the shape of a step: Arrow's lists
            need no padding.
    """

    text: tuple[str, ...]
    steps: Mapping[str, tuple[int, ...]]
    offload: ClassVar[Offload] = Offload.LONG

    def start(self, key: str, state: int | None) -> Step:
        return Calling(self)

    def __call__(self, batch: Any) -> ArrowBatch:
        if isinstance(batch, Frames):
            batch = {RECORD: batch}
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"an element is {type(batch).__name__}, but Arrow takes batches of records or "
                "columns: call batch(n), and parse_example(features)"
            )
        steps = {name: _steps(name, batch[name], shape) for name, shape in self.steps.items()}
        return ArrowBatch({**batch, **steps}, text=self.text)


def arrow_chain(chain: Chain, text: Iterable[str] = ()) -> Chain:
    """A chain whose elements are ArrowBatches.

    If the last stage parses, a FixedLenSequenceFeature is not padded: padding would add values that
    were never written.
    """
    names = names_of_text(text)
    # `parse_example` is the last stage, or, with several calls, the function of a parallel source.
    parallel: sources.ParallelMap | None = None
    if isinstance(chain.source, sources.ParallelMap) and not chain.stages:
        parallel = chain.source
    parse = parallel.function if parallel else chain.stages[-1] if chain.stages else None
    padded: dict[str, tuple[int, ...]] = {}
    if isinstance(parse, stages.Parse):
        padded, parse = without_padding(parse)
        source = replace(parallel, function=parse) if parallel else chain.source
        chain = Chain(source, () if parallel else (*chain.stages[:-1], parse))
    return replace(chain, stages=(*chain.stages, ToArrow(names, padded)))


def without_padding(parse: stages.Parse) -> tuple[dict[str, tuple[int, ...]], stages.Parse]:
    """How `FixedLenSequenceFeature`s become lists: the shape of a step of each, and a stage.

    The stage gives their values unpadded.
    """
    features: dict[str, Feature] = dict(parse.features)
    steps: dict[str, tuple[int, ...]] = {}
    for name, feature in parse.features.items():
        if isinstance(feature, FixedLenSequenceFeature) and feature.allow_missing:
            steps[name] = feature.shape
            features[name] = RaggedFeature(feature.dtype)
    return steps, replace(parse, features=features)


def _steps(name: str, column: Any, shape: tuple[int, ...]) -> Any:
    """Converts rows of flat values to rows of steps; a single record's values stay as they are."""
    if not isinstance(column, RaggedTensor):
        return column
    size = int(np.prod(shape))
    [splits] = column.nested_row_splits
    lengths = np.diff(splits)
    if (uneven := np.flatnonzero(lengths % size)).size:
        row = int(uneven[0])
        raise FeatureError(
            f"found {lengths[row]:,} values, but the shape {list(shape)} needs a multiple of "
            f"{size:,}",
            name,
            row,
        )
    splits = splits // splits.dtype.type(size)
    return RaggedTensor(column.flat_values.reshape(-1, *shape), (splits,))


def read_batches(
    chain: Chain, text: Iterable[str], run: Callable[[Chain], Iterator[ArrowBatch]]
) -> Any:
    """A `pyarrow.RecordBatchReader` of one run of a chain, which `run` iterates over.

    Columns in `text` become text.
    """
    pa = load_pyarrow()
    chain = arrow_chain(chain, text)
    batches = run(chain)
    first = next(batches, None)
    if first is None:  # then the last stages give the schema
        *_, parse, to_arrow = (None, *chain.stages)
        if not isinstance(parse, stages.Parse) or not isinstance(to_arrow, ToArrow):
            raise StreamrecError(
                "the dataset has no elements, and so no schema: end it with parse_example(features)"
            )
        first = to_arrow(parse([]))
    return pa.RecordBatchReader.from_batches(first.batch.schema, _same_schema(first.batch, batches))


def _same_schema(first: Any, batches: Iterator[ArrowBatch]) -> Iterator[Any]:
    """The record batches, which must all have the schema of the first."""
    yield first
    for batch in batches:
        if batch.batch.schema != first.schema:
            for earlier, field in zip(first.schema, batch.batch.schema, strict=False):
                if earlier != field:
                    raise StreamrecError(
                        f"column {field.name!r} is {field.type}, but was {earlier.type} in "
                        "earlier batches: parse features whose shape differs from record to "
                        "record with a RaggedFeature"
                    )
            raise StreamrecError(
                "a batch has other columns than earlier batches: map all to the same columns"
            )
        yield batch.batch
