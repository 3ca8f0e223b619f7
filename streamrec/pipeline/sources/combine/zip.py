"""Zip: pairs elements of several chains, as columns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns, leaves, map_nest, nest_of
from streamrec.pipeline.elements.positions import (
    Joined,
    SeveralInputs,
)
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.inputs import InputBuffer, run_inputs


@dataclass(frozen=True, slots=True)
class Zip(Source):
    """Joins the elements of chains in dicts and tuples, up to the end of the shortest chain."""

    nest: Any

    def __post_init__(self) -> None:
        if not any(True for _ in leaves(self.nest)):
            raise ValueError("zip needs at least one dataset")

    def lines(self) -> Iterator[str]:
        yield f"Zip({map_nest(lambda _: '*', self.nest)})"
        yield from (f"  {line}" for part in leaves(self.nest) for line in part.lines())

    def element_spec(self) -> Any:
        specs = map_nest(lambda chain: chain.element_spec(), self.nest)
        return None if None in leaves(specs) else specs

    def cardinality(self, rank: Rank | None) -> int:
        counts = [chain.cardinality(rank) for chain in leaves(self.nest)]
        if UNKNOWN_CARDINALITY in counts:
            return UNKNOWN_CARDINALITY
        return min((count for count in counts if count >= 0), default=INFINITE_CARDINALITY)

    @property
    def is_endless(self) -> bool:
        return all(chain.is_endless for chain in leaves(self.nest))

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        """Runs each chain in a task of its own, with an equal share of the budget."""
        chains = list(leaves(self.nest))
        positions = state["parts"] if state else [None] * len(chains)
        async with run_inputs(chains, positions, context, Signal()) as buffers:
            while True:
                for buffer in buffers:
                    if not await buffer.more():
                        return
                failed = any(buffer.has_failure for buffer in buffers)
                yield fail_row(buffers) if failed else pair(self.nest, buffers)


def pair(nest: Any, buffers: Sequence[InputBuffer]) -> Chunk:
    """Joins as many elements as all buffers have in one chunk."""
    count = min(buffer.first for buffer in buffers)
    taken = [buffer.take(count) for buffer in buffers]
    windows = iter([part.windows[0] for part in taken])
    columns = Columns(map_nest(lambda _: nest_of(next(windows)), nest))
    return Chunk(
        columns,
        positions_of_rows([part.positions for part in taken]),
        sum(part.nbytes for part in taken),
    )


def fail_row(buffers: Sequence[InputBuffer]) -> Chunk:
    """Takes the next element of each buffer, one of which failed.

    As in tf.data, all continue after it.
    """
    errors = []
    for buffer in buffers:
        if buffer.has_failure:
            errors.append(buffer.take_failure())
        else:
            buffer.take(1)
    return Chunk.failure(errors[0], positions_of_rows([buffer.mark() for buffer in buffers]), 0)


def positions_of_rows(parts: Sequence[Joined]) -> SeveralInputs:
    """Positions of joined elements: each chain gives one of each."""
    return SeveralInputs(
        inputs=parts,
        shares=lambda index: [index] * len(parts),
        source=lambda _, cursors: {"parts": list(cursors)},
    )
