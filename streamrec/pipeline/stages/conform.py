"""Conform: elements of a generator made to fit its signature; what does not is an error with its number."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import StageState, shifted
from streamrec.pipeline.elements.specs import TensorSpec, conformed
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling, failure_of
from streamrec.tfrecord import Frames

__all__ = ["Conform"]


@dataclass(frozen=True, slots=True)
class Conform(Stage):
    """Elements as a nest of specs says."""

    signature: Any
    offload: ClassVar[Offload] = Offload.LONG

    def start(self, key: str, state: int | None) -> Step:
        return _Conforming(self.signature, key, state or 0)


class _Conforming(Calling):
    def __init__(self, signature: Any, key: str, seen: int) -> None:
        super().__init__(self._conform)
        self._signature = signature
        self._records = signature == TensorSpec((), np.dtype(object))
        self._key = key
        self._number = seen

    def feed(self, chunk: Chunk) -> list[Chunk]:
        positions = StageState(chunk.positions, self._key, self._number)
        if self._records and isinstance(chunk.elements, Frames):
            self._number += len(chunk.elements)
            return [Chunk(chunk.elements, positions, chunk.nbytes)]
        out = []
        numbered = replace(chunk, positions=positions)
        for stretch in self._stretches([(element,) for element in chunk.elements]):
            if stretch.results:
                elements = Frames.of(stretch.results) if self._records else stretch.results
                out.append(Chunk.weighed(elements, shifted(positions, stretch.first)))
            out += failure_of(numbered, stretch)
        return out

    def _conform(self, element: Any) -> Any:
        number, self._number = self._number, self._number + 1
        try:
            return conformed(self._signature, element)
        except (TypeError, ValueError) as error:
            said = f"element {number:,} of the generator is not as output_signature says: {error}"
            raise type(error)(said) from error
