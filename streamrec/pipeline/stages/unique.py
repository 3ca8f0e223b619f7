"""Unique: each element once, where it comes first.

What came before is kept as digests of 16 bytes, in the run and in its positions: that is what a state of a run with
many different elements weighs.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.codec import digest_of
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.positions import Derived, Position, with_state
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.select import picked

__all__ = ["Unique"]

DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Unique(Stage):
    """Each element once."""

    offload: ClassVar[Offload] = Offload.LONG

    def start(self, key: str, state: str | None) -> Step:
        return _Unique(key, b64decode(state or ""))


class _Unique:
    done = False

    def __init__(self, key: str, seen: bytes) -> None:
        self._key = key
        self._seen = {seen[at : at + DIGEST_BYTES] for at in range(0, len(seen), DIGEST_BYTES)}
        self._in_order = bytearray(seen)  # it only grows: positions look at a beginning of it

    def feed(self, chunk: Chunk) -> list[Chunk]:
        before = len(self._seen)
        new = [index for index in candidates(chunk.elements) if self._is_new(chunk.elements[index])]
        indices = np.array(new, np.int64)
        positions = UniquePositions(chunk.positions, self._key, self._in_order, before, indices)
        return picked(chunk, positions, indices, len(chunk.elements))

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """An element that failed is none of those that were seen."""
        none = np.array([], np.int64)
        positions = UniquePositions(chunk.positions, self._key, self._in_order, len(self._seen), none)
        return [replace(chunk, positions=positions)]

    def flush(self) -> list[Chunk]:
        return []

    def _is_new(self, element: Any) -> bool:
        digest = bytes.fromhex(digest_of(element))
        if digest in self._seen:
            return False
        self._seen.add(digest)
        self._in_order += digest
        return True


def candidates(elements: Any) -> list[int]:
    """The places of elements that may be new: of a column of numbers, each number's first."""
    column = elements.nest if isinstance(elements, Columns) else None
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind != "O":
        return sorted(np.unique(column, return_index=True)[1].tolist())
    return list(range(len(elements)))


@dataclass(frozen=True, slots=True)
class UniquePositions(Derived):
    """Positions of a chunk's elements, with the digests of those that had been given before each.

    Args:
        inner: The places in the input.
        stage: The stage.
        digests: Of all that was given, in order; those of later chunks too.
        before: How many were given before the chunk.
        given: The places in the chunk of those that were given of it.
    """

    stage: str
    digests: bytearray
    before: int
    given: npt.NDArray[np.int64]

    def at(self, index: int) -> Position:
        count = self.before + int(np.searchsorted(self.given, index))
        seen = bytes(self.digests[: count * DIGEST_BYTES])
        return with_state(self.inner.at(index), self.stage, b64encode(seen).decode())
