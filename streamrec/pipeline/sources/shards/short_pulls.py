"""Short pulls: what small shards give one by one goes on as one chunk: a chunk costs the same, however short it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamrec import kernels
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Joined, Positions
from streamrec.pipeline.sources.shards.interleave import Interleave
from streamrec.tfrecord import Frames, Scattered, are_long, as_spans

__all__ = ["pull"]

SHORT_BYTES: Final = 128 << 10
"""A chunk that is shorter waits for nothing, and takes what is there already."""

MOST_PULLS: Final = 32


def pull(interleave: Interleave) -> tuple[Chunk | None, Exception | None]:
    """The next records in order, as far as they have arrived, None for none; and the error of the shard behind them."""
    pulled: list[tuple[Frames, Positions]] = []
    nbytes, error = 0, None
    try:
        while len(pulled) < MOST_PULLS and nbytes < SHORT_BYTES and (next_one := interleave.pull()) is not None:
            pulled.append(next_one)
            nbytes += abs(next_one[0].extent)
    except Exception as failure:
        error = failure
    return chunk_of(pulled), error


def chunk_of(pulled: Sequence[tuple[Frames, Positions]]) -> Chunk | None:
    """What was pulled, as one chunk; short records are copied together."""
    if len(pulled) < 2:
        return Chunk.weighed(*pulled[0]) if pulled else None
    windows = [frames for frames, _ in pulled]
    positions = Joined(tuple((positions, 0, len(frames)) for frames, positions in pulled))
    if are_long(windows):
        return Chunk.weighed(Scattered.joining(windows), positions)
    buffer, spans = kernels.interleave([[(frames.buffer, frames.spans) for frames in windows]], 1)
    return Chunk.weighed(Frames(buffer, as_spans(spans)), positions)
