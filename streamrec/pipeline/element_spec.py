"""Element specs: what a chain's elements look like, as far as its description alone says it; else None.

A source or stage that is not named here gives elements that nobody knows before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from streamrec.pipeline import sources, stages
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.nests import leaves, map_nest
from streamrec.pipeline.elements.specs import TensorSpec
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.stage import Stage
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.stages.calling import Conform
from streamrec.tfrecord import Frames

__all__ = ["element_spec_of"]

RECORD: Final = TensorSpec((), bytes)


def element_spec_of(chain: Chain) -> Any:
    """A spec, or dicts and tuples of them, of a chain's elements; None where its description does not say it."""
    spec = of_source(chain.source)
    for stage in chain.stages:
        spec = spec_after(stage, spec)
    return spec


def spec_after(stage: Stage, spec: Any) -> Any:
    """The spec of what a stage makes of elements of a spec, which may be unknown."""
    return stage.element_spec(spec) if spec is not None or isinstance(stage, Conform) else None


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
            return spec_after(parse, element_spec_of(source.inner))
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
