"""`parse_example`, `parse_sequence_example`, and their variants for one message.

They have TensorFlow's semantics.

TensorFlow 2.21 is the specification, including the order of the results' keys and the names of
arguments; `string_columns` is an addition. If TensorFlow raises InvalidArgumentError, ValueError or
TypeError for data or for a description, these functions raise FeatureError (a ValueError). Known
differences, where TensorFlow's behaviour is unspecified or broken:
- An empty list is a batch of no examples. (TensorFlow reads `[]` as float32 and rejects it.)
- Values of a SparseFeature at equal positions keep their order. (TensorFlow's sort is not stable.)
- The partitions of a RaggedFeature and the positions of a SparseFeature must fit the values of
  their record, whatever `validate` is. (TensorFlow may return row splits outside the values, or
  assign values of one record to another.)
- More unpacked floats than a FixedLenFeature's shape has are an error. (TensorFlow writes them past
  the end of its array before it raises.)
- Lengths of 2 GiB and more within an Example are an error (some crash TensorFlow), and so are byte
  strings in a SequenceExample that exceed their list.
- A `RaggedFeature.UniformRowLength` below 1 and a FixedLenSequenceFeature without values in a step,
  for which TensorFlow divides by zero, are errors of the constructor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import example
from streamrec.arguments import name_type
from streamrec.display import join_names
from streamrec.errors import FeatureError
from streamrec.example.assemble import to_columns
from streamrec.example.columns import BytesColumn, Column
from streamrec.example.features import Feature, FixedLenSequenceFeature
from streamrec.example.walk import (
    Code,
    Offsets,
    ParsePlan,
    Records,
    failure,
    make_plan,
    walk_examples,
    walk_sequences,
)
from streamrec.tracebacks import border

Columns: TypeAlias = dict[str, Column]


@border
def parse_example(
    serialized: Any,
    features: Mapping[str, Feature],
    example_names: Sequence[str | bytes] | None = None,
    *,
    string_columns: bool = False,
) -> dict[str, Column]:
    """Parses a batch of serialized Example messages into columns, as `tf.io.parse_example` does.

    Args:
        serialized: A list, tuple or one-dimensional object array of bytes; or Frames from a reader,
            or any other object with a `buffer` and `spans`. A single bytes object is parsed as by
            `parse_single_example`.
        features: The description: feature configurations by key.
        example_names: A name for each example, for error messages.
        string_columns: Whether to return byte strings as BytesColumns (spans over the buffer)
            instead of object arrays of bytes. This does not copy Frames, but joins a list first.

    Returns:
        For a FixedLenFeature an array of `[batch, *shape]`; for a FixedLenSequenceFeature an array
        of `[batch, longest, *shape]`, padded; for VarLen- and SparseFeature a SparseTensor of
        `[batch, longest]` and `[batch, *size]`; for a RaggedFeature a RaggedTensor. Values are
        int64, float32, or object arrays of bytes. The keys are in TensorFlow's order: sparse,
        dense, ragged, then combined ones.

    Raises:
        FeatureError: A message is damaged, a required feature is missing, values differ in kind or
            number from the description, positions or partitions do not fit the values, or the
            features contradict each other.
        TypeError: An item of `serialized` is not bytes.

    Example:
        >>> from streamrec.example.encode import encode_example
        >>> from streamrec.example.features import VarLenFeature
        >>> record = encode_example({"x": [1, 2, 3]})
        >>> parse_example([record, record], {"x": VarLenFeature("int64")})["x"].dense_shape
        array([2, 3])
    """
    if is_scalar(serialized):
        return parse_single_example(
            serialized,
            features,
            example_names,  # type: ignore[arg-type]
            string_columns=string_columns,
        )
    plan = make_plan("examples", features)
    columns, _ = parse_batch(plan, serialized, string_columns, example_names)
    return columns


@border
def parse_single_example(
    serialized: Any,
    features: Mapping[str, Feature],
    example_names: str | bytes | None = None,
    *,
    string_columns: bool = False,
) -> dict[str, Column]:
    """Parses one serialized Example message, without a batch dimension.

    It does so as `tf.io.parse_single_example`.

    Args:
        serialized: The message, as bytes.
        features: The description: feature configurations by key.
        example_names: The example's name, for error messages.
        string_columns: Whether to return byte strings as BytesColumns instead of object arrays of
            bytes.

    Returns:
        As `parse_example`, without the first dimension and without padding. A scalar is an array of
        shape `[]`. A RaggedFeature without partitions is an array.

    Raises:
        FeatureError: As for `parse_example`.
        TypeError: `serialized` is not bytes.
    """
    record, names = single_record(serialized, example_names)
    plan = make_plan("example", features)
    columns, _ = parse_batch(plan, record, string_columns, names, single=True)
    return columns


def parse_batch(
    plan: ParsePlan,
    serialized: Any,
    string_columns: bool,
    names: Any = None,
    *,
    single: bool = False,
) -> tuple[dict[str, Column], int]:
    """Parses a batch of Examples by a plan, and counts their features that are not in it.

    A `single` message is a batch of one.
    """
    records = as_records(serialized, string_columns)
    check_names(names, len(records))
    try:
        found, others = walk_examples(records, plan.slots, string_columns)
        columns = to_columns(plan, found, len(records), records if string_columns else None, single)
    except FeatureError as error:
        raise name_example(error, names, single, records) from None
    if plan.unseen:
        plan.note_values(found)
    if plan.unseen:
        plan.look(records)
    return columns, others


@border
def parse_sequence_example(
    serialized: Any,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
    example_names: Sequence[str | bytes] | None = None,
    *,
    string_columns: bool = False,
) -> tuple[Columns, Columns, dict[str, Offsets]]:
    """Parses a batch of serialized SequenceExample messages.

    It does so as `tf.io.parse_sequence_example`.

    Args:
        serialized: A list, tuple or one-dimensional object array of bytes; or Frames from a reader,
            or any other object with a `buffer` and `spans`. A single bytes object is parsed without
            a batch dimension.
        context_features: FixedLen-, VarLen- and RaggedFeatures of the context, by key.
        sequence_features: FixedLenSequence-, VarLen- and RaggedFeatures of the feature lists, by
            key.
        example_names: A name for each example, for error messages.
        string_columns: Whether to return byte strings as BytesColumns instead of object arrays of
            bytes.

    Returns:
        The context's columns, as from `parse_example`; the feature lists' columns: a
        FixedLenSequenceFeature is an array of `[batch, longest, *shape]`, padded with 0 or `b""`, a
        VarLenFeature a SparseTensor of `[batch, longest, most values]`, a RaggedFeature a
        RaggedTensor of at least two ragged dimensions; and for each FixedLenSequenceFeature the
        number of steps of each example, int64 of `[batch]`.

    Raises:
        FeatureError: A message is damaged, a required feature is missing, values differ in kind or
            number from the description, partitions do not fit the values, or the features
            contradict each other.
        TypeError: An item of `serialized` is not bytes.
    """
    single = is_scalar(serialized)
    if single:
        serialized, example_names = single_record(serialized, example_names)
    return parse_sequences(
        serialized,
        context_features,
        sequence_features,
        example_names,
        string_columns,
        single=single,
    )


@border
def parse_single_sequence_example(
    serialized: Any,
    context_features: Mapping[str, Feature] | None = None,
    sequence_features: Mapping[str, Feature] | None = None,
    example_name: str | bytes | None = None,
    *,
    string_columns: bool = False,
) -> tuple[Columns, Columns]:
    """Parses one serialized SequenceExample, as `tf.io.parse_single_sequence_example` does.

    Args:
        serialized: The message, as bytes.
        context_features: FixedLen-, VarLen- and RaggedFeatures of the context, by key.
        sequence_features: FixedLenSequence-, VarLen- and RaggedFeatures of the feature lists, by
            key.
        example_name: The example's name, for error messages.
        string_columns: Whether to return byte strings as BytesColumns instead of object arrays of
            bytes.

    Returns:
        The columns of the context and of the feature lists, without a batch dimension.

    Raises:
        FeatureError: As for `parse_sequence_example`.
        TypeError: `serialized` is not bytes.
    """
    record, names = single_record(serialized, example_name)
    return parse_sequences(
        record, context_features, sequence_features, names, string_columns, single=True
    )[:2]


def parse_sequences(
    serialized: Any, context: Any, lists: Any, names: Any, string_columns: bool, *, single: bool
) -> tuple[Columns, Columns, dict[str, Offsets]]:
    """Parses a batch of SequenceExamples; a `single` message is a batch of one."""
    if not context and not lists:
        raise FeatureError(
            "context_features and sequence_features are empty; describe at least one feature"
        )
    plan = make_plan("context", context or {})
    list_plan = make_plan("lists", lists or {})
    records = as_records(serialized, string_columns)
    check_names(names, len(records))
    count = len(records)
    spanned = records if string_columns else None
    required = [slot for slot in plan.slots if slot.dense and slot.required and slot.size]
    try:
        if not count and required:  # TensorFlow rejects these even for an empty batch
            raise failure(Code.COUNT, 0, required[0])
        found, steps = walk_sequences(records, plan.slots, list_plan.slots, string_columns)
        columns = to_columns(plan, found, count, spanned, single)
        list_columns = to_columns(list_plan, steps, count, spanned, single)
    except FeatureError as error:
        raise name_example(error, names, single, records, list_plan.features) from None
    lengths = {
        slot.name: np.diff(raw.splits).reshape(() if single else count)
        for slot, raw in zip(list_plan.slots, steps, strict=True)
        if isinstance(slot.form, FixedLenSequenceFeature)
    }
    return columns, list_columns, lengths


def name_example(
    error: FeatureError,
    names: Sequence[str | bytes] | None,
    single: bool,
    records: Records,
    lists: Any = None,
) -> FeatureError:
    """Adds the example's name to an error.

    For a missing feature it also adds the names that the record has instead.
    """
    reason = error.reason
    if error.feature is not None and error.record is not None and len(records):
        reason += _describe_missing(error.feature, records.message(error.record), lists)
    name = None if names is None or error.record is None else names[error.record]
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return FeatureError(reason, error.feature, None if single else error.record, text)


def _describe_missing(name: str, data: bytes, lists: Any) -> str:
    """Advice for a feature that a record does not have, for the end of a message.

    "" if it has the feature.
    """
    try:
        # The context of an Example is its features.
        message = example.SequenceExample.FromString(data)
    except Exception:  # protobuf rejects what TensorFlow's parser reads over
        return f"; the record is {example.describe_other(data)}"
    context = set(message.context.feature)
    steps = set(message.feature_lists.feature_list)
    if lists is not None and name in lists:
        here = steps
        there = context
        advice = "allow_missing=True"
        other = "has it as a feature, not as a feature list"
    else:
        here = context
        there = steps
        advice = "a default_value"
        other = "is a SequenceExample that has it as a feature list"
    if name in here:
        return ""
    if not here and not there and example.kind_of(data) == "bytes":
        return f"; the record is {example.describe_other(data)}"
    near = get_close_matches(name, here, 3, 0.5)
    names = join_names(map(repr, [*near, *sorted(here.difference(near))])) or "no feature"
    other = other if name in there else f"has {names}"
    return f": give {advice} if it may be missing; this record {other}"


def is_scalar(serialized: Any) -> bool:
    """Whether `serialized` is one message, not a batch."""
    return (
        isinstance(serialized, bytes | bytearray | memoryview)
        or getattr(serialized, "ndim", 1) == 0
    )


def single_record(serialized: Any, name: Any) -> tuple[list[bytes], list[Any] | None]:
    """Converts one message and its name to a batch of one."""
    if not is_scalar(serialized):
        raise TypeError(
            f"serialized is {name_type(serialized)}; one message is bytes, for more use a batch"
        )
    if name is not None and not isinstance(name, str | bytes):
        raise FeatureError(f"the name of one example is {name!r}; it must be a str")
    item = np.asarray(serialized).item() if hasattr(serialized, "dtype") else serialized
    if not isinstance(item, bytes | bytearray | memoryview):
        raise TypeError(f"serialized holds {name_type(item)} where bytes are expected")
    return [bytes(item)], None if name is None else [name]


def as_records(serialized: Any, spanned: bool) -> Records:
    """Converts messages to Records, as spans if `spanned`."""
    places = getattr(serialized, "places", None)  # of Frames, or of a BytesColumn
    if places is not None and places.shape[-1] > 2:
        return Records(
            None, tuple(serialized.buffers), np.ascontiguousarray(places, dtype=np.int64)
        )
    spans = getattr(serialized, "spans", None)
    if spans is not None:
        return Records(None, serialized.buffer, np.ascontiguousarray(spans, dtype=np.int64))
    if hasattr(serialized, "dtype"):
        serialized = _to_list(np.asarray(serialized))
    if not isinstance(serialized, Iterable) or isinstance(serialized, str):
        raise TypeError(
            f"serialized is {name_type(serialized)} where messages are expected, as a list of bytes"
        )
    items = tuple(serialized)
    for item in items:
        if not isinstance(item, bytes):
            raise TypeError(f"serialized holds {name_type(item)} where bytes are expected")
    if not spanned:
        return Records(items)
    joined = BytesColumn.of(items)
    return Records(None, joined.buffer, joined.spans)


def _to_list(array: npt.NDArray[Any]) -> list[Any]:
    if array.ndim != 1:
        raise FeatureError(
            f"serialized has the shape {list(array.shape)}; it must be a vector of messages"
        )
    if array.dtype.kind != "O" and len(array):
        raise TypeError(
            f"serialized is an array of {array.dtype}; use an object array of bytes ('S' arrays "
            "drop trailing NULs)"
        )
    items: list[Any] = array.tolist()
    return items


def check_names(names: Any, count: int) -> None:
    """Checks that there are as many `example_names` as examples; None for no names."""
    if names is not None and (isinstance(names, str | bytes) or len(names) != count):
        raise FeatureError(f"example_names must be a list of {count:,} names, one for each example")
