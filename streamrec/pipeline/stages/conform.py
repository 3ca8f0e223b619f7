"""Conform: elements of a generator made to fit its signature; what does not is an error with its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streamrec.pipeline.elements.chunk import Chunk, StageState
from streamrec.pipeline.elements.specs import TensorSpec, conformed
from streamrec.pipeline.stages.stage import Calls, Offload, Step
from streamrec.tfrecord import Frames

__all__ = ["Conform"]


@dataclass(frozen=True, slots=True)
class Conform:
    """Elements as a nest of specs says."""

    signature: Any
    offload: ClassVar[Offload] = Offload.LONG

    def start(self, key: str, state: int | None) -> Step:
        return _Conforming(self.signature, key, state or 0)


class _Conforming:
    done = False

    def __init__(self, signature: Any, key: str, seen: int) -> None:
        self._calls = Calls(self._conform)
        self._signature = signature
        self._records = signature == TensorSpec((), np.dtype(object))
        self._key = key
        self._number = seen

    def feed(self, chunk: Chunk) -> list[Chunk]:
        self._calls.check()
        positions = StageState(chunk.positions, self._key, self._number)
        if self._records and isinstance(chunk.elements, Frames):
            self._number += len(chunk.elements)
            return [Chunk(chunk.elements, positions, chunk.nbytes)]
        results = list(self._calls.results((element,) for element in chunk.elements))
        if not results:
            return self.flush()
        return [Chunk.weighed(Frames.of(results) if self._records else results, positions)]

    def flush(self) -> list[Chunk]:
        """Raises the error that ended the last chunk, once."""
        self._calls.check()
        return []

    def _conform(self, element: Any) -> Any:
        try:
            result = conformed(self._signature, element)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"element {self._number:,} of the generator is not as output_signature says: {error}"
            ) from error
        self._number += 1
        return result
