"""`parse_example` and `parse_single_example`: Example messages into columns, with TensorFlow's semantics.

What TensorFlow 2.21 does is the specification, down to the order of the results' keys. Its arguments have its
names; `string_columns` is our own. Where TensorFlow raises InvalidArgumentError, ValueError or TypeError for
data or for a description, FeatureError (a ValueError) is raised here. Known differences, all of them where
TensorFlow leaves things open or breaks:
  - an empty list is a batch of no examples (TensorFlow takes `[]` for float32 and refuses it);
  - values of a SparseFeature at equal positions keep their order (TensorFlow's sort is not stable);
  - partitions of a RaggedFeature, and positions of a SparseFeature, must fit the values of their own record, whatever
    `validate` says (TensorFlow gives row splits that lead outside of the values, or values of one record to another);
  - more unpacked floats than a FixedLenFeature's shape holds are an error (TensorFlow writes them past the
    end of its array before it raises);
  - lengths of 2 GiB and more within an Example are an error (TensorFlow crashes on some);
  - `RaggedFeature.UniformRowLength` below 1 and a FixedLenSequenceFeature without values in a step are
    refused when they are made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example.columns import Column
from streamrec.example.features import Feature
from streamrec.example.parsing.assemble import batch_columns, single_columns
from streamrec.example.parsing.native import NATIVE, NativeWalker
from streamrec.example.parsing.plan import Plan, plan_examples
from streamrec.example.parsing.walk import Records, WalkError

__all__ = ["ExampleParser", "count_other_features", "parse_example", "parse_single_example"]


def parse_example(
    serialized: Any,
    features: Mapping[str, Feature],
    example_names: Sequence[str | bytes] | None = None,
    *,
    string_columns: bool = False,
) -> dict[str, Column]:
    """Parses a batch of serialized Example messages into columns, as `tf.io.parse_example` does.

    Args:
        serialized: A list, tuple or one-dimensional object array of bytes; or Frames from a reader, or
            anything else with a `buffer` and `spans`. A single bytes object is parsed as by
            `parse_single_example`.
        features: What to parse, by key.
        example_names: A name for each example, for error messages.
        string_columns: Whether byte strings come as BytesColumns, spans over the buffer, instead of object
            arrays of bytes. From Frames nothing is copied; a list is joined first.

    Returns:
        For a FixedLenFeature an array of `[batch, *shape]`; for a FixedLenSequenceFeature an array of
        `[batch, longest, *shape]`, padded; for VarLen- and SparseFeature a SparseTensor of `[batch,
        longest]` and `[batch, *size]`; for a RaggedFeature a RaggedTensor. Values are int64, float32, or
        object arrays of bytes. The keys are in TensorFlow's order: sparse, dense, ragged, then combined ones.

    Raises:
        FeatureError: A message that is damaged, a required feature that is missing, values of another kind or
            number than described, positions or partitions that don't fit; or features that don't go together.
        TypeError: Something in `serialized` that is not bytes.

    Example:
        >>> record = bytes([10, 14, 10, 12, 10, 1, 120, 18, 7, 26, 5, 10, 3, 1, 2, 3])  # x: [1, 2, 3]
        >>> from streamrec.example.features import VarLenFeature
        >>> parse_example([record, record], {"x": VarLenFeature("int64")})["x"].dense_shape
        array([2, 3])
    """
    return parse_examples_with(NATIVE, serialized, features, example_names, string_columns)


def parse_single_example(
    serialized: Any,
    features: Mapping[str, Feature],
    example_names: str | bytes | None = None,
    *,
    string_columns: bool = False,
) -> dict[str, Column]:
    """Parses one serialized Example message, without a batch dimension, as `tf.io.parse_single_example` does.

    Args:
        serialized: The message, as bytes.
        features: What to parse, by key.
        example_names: The example's name, for error messages.
        string_columns: Whether byte strings come as BytesColumns instead of object arrays of bytes.

    Returns:
        As `parse_example`, without the first dimension; nothing is padded. A scalar is an array of shape
        `[]`. A RaggedFeature without partitions is an array.

    Raises:
        FeatureError: As for `parse_example`.
        TypeError: `serialized` is not bytes.
    """
    return parse_single_with(NATIVE, serialized, features, example_names, string_columns)


def count_other_features(serialized: Any, features: Mapping[str, Feature]) -> int:
    """How many features a batch holds that are not described; none of it is damaged or of another kind."""
    records = as_records(serialized, spanned=False)
    return NATIVE.count_others(records, plan_examples(features, single=False).slots)


def parse_examples_with(
    walker: NativeWalker, serialized: Any, features: Mapping[str, Feature], names: Any, string_columns: bool
) -> dict[str, Column]:
    """`parse_example` on a walker of choice: the tests run both."""
    if is_scalar(serialized):
        return parse_single_with(walker, serialized, features, names, string_columns)
    return parse_by_plan(walker, plan_examples(features, single=False), serialized, names, string_columns)


def parse_by_plan(
    walker: NativeWalker, plan: Plan, serialized: Any, names: Any, string_columns: bool
) -> dict[str, Column]:
    """A batch by a plan that was made before."""
    records = as_records(serialized, string_columns)
    count = len(records)
    check_names(names, count)
    try:
        found = walker.examples(records, plan.slots, string_columns)
    except WalkError as failure:
        raise failure.error(names) from None
    return batch_columns(plan, found, count, records if string_columns else None)


class ExampleParser:
    """`parse_example` for one description: the plan is made at the first batch, and looked up no more.

    Args:
        features: What to parse; it must not change.
        string_columns: As there.
    """

    def __init__(self, features: Mapping[str, Feature], string_columns: bool) -> None:
        self._features = features
        self._string_columns = string_columns
        self._plan: Plan | None = None

    def __call__(self, serialized: Any) -> dict[str, Column]:
        if is_scalar(serialized):
            return parse_single_with(NATIVE, serialized, self._features, None, self._string_columns)
        self._plan = plan = self._plan or plan_examples(self._features, single=False)
        return parse_by_plan(NATIVE, plan, serialized, None, self._string_columns)


def parse_single_with(
    walker: NativeWalker, serialized: Any, features: Mapping[str, Feature], name: Any, string_columns: bool
) -> dict[str, Column]:
    """`parse_single_example` on a walker of choice: the tests run both."""
    plan = plan_examples(features, single=True)
    records, names = single_record(serialized, name, string_columns)
    try:
        found = walker.examples(records, plan.slots, string_columns)
    except WalkError as failure:
        raise failure.error(names, single=True) from None
    return single_columns(plan, found, records if string_columns else None)


def is_scalar(serialized: Any) -> bool:
    """Whether this is one message, not a batch."""
    return isinstance(serialized, bytes | bytearray | memoryview) or getattr(serialized, "ndim", 1) == 0


def single_record(serialized: Any, name: Any, spanned: bool) -> tuple[Records, list[Any] | None]:
    """One message as a batch of one, and its name as a list of one."""
    if not is_scalar(serialized):
        raise TypeError(f"serialized is a {type(serialized).__name__}; one message is bytes, for more use a batch")
    if name is not None and not isinstance(name, str | bytes):
        raise FeatureError(f"the name of one example is {name!r}; it must be a str")
    item = np.asarray(serialized).item() if hasattr(serialized, "dtype") else serialized
    if not isinstance(item, bytes | bytearray | memoryview):
        raise TypeError(f"serialized holds a {type(item).__name__} where bytes are wanted")
    return as_records([bytes(item)], spanned), None if name is None else [name]


def as_records(serialized: Any, spanned: bool) -> Records:
    """The messages as the walkers take them; as spans if `spanned`."""
    rows = getattr(serialized, "rows", None)
    if rows is not None:
        return Records(None, tuple(serialized.buffers), rows)
    spans = getattr(serialized, "spans", None)
    if spans is not None:
        return Records(None, serialized.buffer, np.ascontiguousarray(spans, dtype=np.int64))
    if hasattr(serialized, "dtype"):
        serialized = _to_list(np.asarray(serialized))
    if not isinstance(serialized, Iterable) or isinstance(serialized, str):
        raise TypeError(f"serialized is a {type(serialized).__name__} where messages are wanted, as a list of bytes")
    items = tuple(serialized)
    for item in items:
        if not isinstance(item, bytes):
            raise TypeError(f"serialized holds a {type(item).__name__} where bytes are wanted")
    if not spanned:
        return Records(items)
    ends = np.cumsum([0, *map(len, items)])
    return Records(None, b"".join(items), np.stack([ends[:-1], ends[1:]], axis=1))


def _to_list(array: npt.NDArray[Any]) -> list[Any]:
    if array.ndim != 1:
        raise FeatureError(f"serialized has the shape {list(array.shape)}; it must be a vector of messages")
    if array.dtype.kind != "O" and len(array):
        raise TypeError(
            f"serialized is an array of {array.dtype}; use an object array of bytes ('S' arrays drop trailing NULs)"
        )
    items: list[Any] = array.tolist()
    return items


def check_names(names: Any, count: int) -> None:
    """Refuses names that are not one for each example."""
    if names is not None and (isinstance(names, str | bytes) or len(names) != count):
        raise FeatureError(f"example_names must be a list of {count:,} names, one for each example")
