"""Element specs: what a chain's elements look like, as far as its description alone says it; else None.

A source or stage that is not named here gives elements that nobody knows before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from streamrec import example
from streamrec.pipeline import sources, stages
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.nests import is_nest, leaves, map_nest
from streamrec.pipeline.elements.specs import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.stage import Stage
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.tfrecord import Frames

__all__ = ["element_spec_of"]

RECORD: Final = TensorSpec((), bytes)


def element_spec_of(chain: Chain) -> Any:
    """A spec, or dicts and tuples of them, of a chain's elements; None where its description does not say it."""
    spec = of_source(chain.source)
    for stage in chain.stages:
        spec = behind(stage, spec)
    return spec


def of_source(source: Source) -> Any:
    """The spec of a source's elements."""
    match source:
        case sources.Range() | sources.Counter():
            return TensorSpec((), source.dtype)
        case sources.Random() | sources.Choices():
            return TensorSpec((), np.int64)
        case Shards() | sources.Distribute() | sources.Names():
            return RECORD
        case sources.Slices():
            return of_rows(source.data)
        case sources.ParallelMap(function=stages.Parse() as parse):
            return behind(parse, element_spec_of(source.inner))
        case sources.Repeat() | sources.Cache() | sources.Prefetch() | sources.Shuffle():
            return element_spec_of(source.inner)
        case sources.Concatenate() | sources.Choose():
            return common(map(element_spec_of, source.parts))
        case sources.Zip():
            specs = map_nest(element_spec_of, source.nest)
            return None if None in leaves(specs) else specs
        case _:
            return None


def common(specs: Iterable[Any]) -> Any:
    """The spec of all parts, where they have one."""
    first, *others = specs
    return first if all(other == first for other in others) else None


def of_rows(rows: Any) -> Any:
    """The spec of the elements of columns."""
    if isinstance(rows, Frames):
        return RECORD
    specs = map_nest(of_column, rows.nest if isinstance(rows, Columns) else rows)
    return None if None in leaves(specs) else specs


def of_column(column: Any) -> TensorSpec | None:
    if isinstance(column, Frames):
        return RECORD
    return TensorSpec(column.shape[1:], column.dtype) if isinstance(column, np.ndarray) else None


def behind(stage: Stage, spec: Any) -> Any:
    """What a stage makes of elements that look like this."""
    if isinstance(stage, stages.Conform):
        return stage.signature
    if spec is None:
        return None
    match stage:
        case stages.Take() | stages.Skip() | stages.Shard() | stages.Filter() | stages.TakeWhile() | stages.Unique():
            return spec
        case stages.Enumerate():
            return TensorSpec((), np.int64), spec
        case stages.Batch():
            return map_nest(lambda part: batched(part, stage.batch_size if stage.drop_remainder else None), spec)
        case stages.CyclicBatch():
            return map_nest(lambda part: batched(part, None), spec)
        case stages.Unbatch():
            rows = map_nest(unbatched, spec)
            return None if None in leaves(rows) else rows
        case stages.Parse():
            return parsed(stage, spec)
        case _:
            return None


def batched(spec: Any, size: int | None) -> Any:
    """The spec of a batch."""
    if isinstance(spec, RaggedTensorSpec):
        shape = None if spec.shape is None else (size, *spec.shape)
        return RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank + 1)
    return type(spec)(None if spec.shape is None else (size, *spec.shape), spec.dtype)


def unbatched(spec: Any) -> Any:
    """The spec of a row; None where it is not known, or there are no rows."""
    if not isinstance(spec, TensorSpec | SparseTensorSpec):
        return None
    return type(spec)(spec.shape[1:], spec.dtype) if spec.shape else None


def parsed(stage: stages.Parse, spec: Any) -> Any:
    """The spec of the columns that are parsed of records."""
    if is_nest(spec) or spec.dtype != RECORD.dtype or spec.shape is None or len(spec.shape) > 1:
        return None
    columns = {key: of_feature(feature, spec.shape) for key, feature in stage.features.items()}
    return None if None in columns.values() else columns


def of_feature(feature: Any, batch: tuple[int | None, ...]) -> Any:
    """The spec of one feature's column; None where it is not known."""
    match feature:
        case example.FixedLenFeature():
            return TensorSpec((*batch, *feature.shape), feature.dtype)
        case example.FixedLenSequenceFeature():
            return TensorSpec((*batch, None, *feature.shape), feature.dtype)
        case example.VarLenFeature():
            return SparseTensorSpec((*batch, None), feature.dtype)
        case example.SparseFeature():
            return SparseTensorSpec((*batch, *np.atleast_1d(feature.size).tolist()), feature.dtype)
        case example.RaggedFeature(partitions=()):
            return RaggedTensorSpec((*batch, None), feature.dtype, 1) if batch else TensorSpec((None,), feature.dtype)
        case _:
            return None
