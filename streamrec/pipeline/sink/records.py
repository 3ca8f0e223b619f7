"""What a sink writes of a chunk's elements: records as they are, dicts as Examples. Pure.

Records that lie in one buffer, and dicts that stand in columns, make no object each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from streamrec import example
from streamrec.arguments import described
from streamrec.example import BytesColumn
from streamrec.pipeline.elements.chunk import Batches, Elements
from streamrec.pipeline.elements.columns import Columns
from streamrec.tfrecord import Frames, RecordBatch, as_record

__all__ = ["Encoder"]

T = TypeVar("T")

AMBIGUOUS = (
    "a dict with arrays: say batched=False where each dict is one Example, batched=True where it is a batch of them "
    "in columns"
)
WANTED = "a record (bytes), a batch of records, or a dict of features is wanted; "


class Encoder:
    """Makes records of elements.

    Args:
        batched: Whether a dict is a batch of Examples in columns, or one Example; None: one, where all values are
            scalars, and else an error.
    """

    def __init__(self, batched: bool | None) -> None:
        self._batched = batched
        self._seen = 0

    def frames(self, elements: Elements) -> Iterator[Frames]:
        """The records of a chunk's elements, in order.

        Raises:
            TypeError: An element is no record and no dict of features, or a dict of which nobody said what it is.
            FeatureError: A value cannot be written as a feature.
        """
        if isinstance(elements, Frames):
            yield elements
        elif isinstance(elements, Batches):
            yield elements.frames
        elif isinstance(elements, Columns) and self._is_examples(elements.nest):
            yield self._examples_of(elements.nest)
        else:
            yield from self._one_by_one(elements)
            return
        self._seen += len(elements)

    def _is_examples(self, nest: Any) -> bool:
        """Whether rows of these columns are Examples, which can be written without taking them apart."""
        if not isinstance(nest, dict) or self._batched is True:
            return False
        return all(
            isinstance(column, Frames)
            or (isinstance(column, np.ndarray) and (column.ndim == 1 or self._batched is False))
            for column in nest.values()
        )

    def _one_by_one(self, elements: Iterable[Any]) -> Iterator[Frames]:
        """Elements that are objects; records that follow each other make one block."""
        block: list[bytes] = []
        for element in elements:
            found = self._records(element)
            if isinstance(found, bytes):
                block.append(found)
            else:
                if block:
                    yield Frames.of(block)
                    block = []
                yield found
            self._seen += 1
        if block:
            yield Frames.of(block)

    def _records(self, element: Any) -> bytes | Frames:
        """One element's record, or its records where it is a batch."""
        if isinstance(element, bytes | bytearray | memoryview):
            return as_record(element)
        if isinstance(element, Frames):
            return element
        if isinstance(element, BytesColumn):
            element = element.to_numpy()
        if isinstance(element, np.ndarray) and element.dtype == object:
            return self._strings(element)
        if isinstance(element, RecordBatch):
            return Frames(element.buffer, element.spans)
        if isinstance(element, Mapping):
            return self._examples(element)
        raise self._wrong(element)

    def _strings(self, array: np.ndarray[Any, Any]) -> bytes | Frames:
        """The records of an array of byte strings."""
        values = array.ravel().tolist()
        wrong = next((value for value in values if not isinstance(value, bytes)), None)
        if wrong is not None or array.ndim > 1:
            raise self._wrong(array if wrong is None else wrong)
        return Frames.of(values) if array.ndim else as_record(values[0])

    def _examples(self, features: Mapping[str, Any]) -> bytes | Frames:
        if self._batched:
            return self._examples_of(features)
        if self._batched is None and not all(map(is_scalar, features.values())):
            raise TypeError(f"{self._place} is {AMBIGUOUS}")
        return self._noted(example.encode_example, features)

    def _examples_of(self, columns: Mapping[str, Any]) -> Frames:
        made = self._noted(example.encode_examples, columns)
        return Frames(made.buffer, made.spans)

    def _noted(self, encode: Callable[[Mapping[str, Any]], T], features: Mapping[str, Any]) -> T:
        """What `encode` makes of them; its error says which element it was."""
        try:
            return encode(features)
        except Exception as error:
            error.add_note(f"in write: {self._place}")
            raise

    def _wrong(self, value: Any) -> TypeError:
        if isinstance(value, str):
            return TypeError(f"{self._place} is {described(value)}: {WANTED}map it to one by .encode()")
        return TypeError(f"{self._place} is {described(value)}: {WANTED}map it to one, as by serialize_tensor")

    @property
    def _place(self) -> str:
        return f"element {self._seen:,} of this run"


def is_scalar(value: Any) -> bool:
    """Whether a value is one number or string, and no list, array, tensor or column."""
    if isinstance(value, str | bytes | bytearray):
        return True
    return not isinstance(value, Sequence | Mapping) and not tuple(getattr(value, "shape", ()))
