"""`parse_sequence_example` and `parse_single_sequence_example`, with TensorFlow's semantics.

What TensorFlow 2.21 does is the specification. Where TensorFlow raises InvalidArgumentError, ValueError or
TypeError, FeatureError (a ValueError) is raised here. Known differences, both where TensorFlow breaks:
  - a byte string whose length runs past its list is an error (TensorFlow crashes on some);
  - SparseFeature is refused for both parts, as there, and so is a FixedLenSequenceFeature without values in a
    step, on which TensorFlow divides by zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from streamrec.errors import FeatureError
from streamrec.example.columns import Column, Values
from streamrec.example.features import Feature, FixedLenSequenceFeature, RaggedFeature
from streamrec.example.parsing.assemble import (
    Part,
    batch_columns,
    combine,
    pad_rows_of,
    positions,
    single_columns,
    sparse_tensor,
    wrapper,
)
from streamrec.example.parsing.native import NATIVE, NativeWalker
from streamrec.example.parsing.parse import as_records, check_names, is_scalar, single_record
from streamrec.example.parsing.plan import Plan, plan_context, plan_lists
from streamrec.example.parsing.ragged import Rows
from streamrec.example.parsing.walk import Array, Code, Found, Offsets, Raw, Records, Slot, WalkError

__all__ = ["parse_sequence_example", "parse_single_sequence_example"]

Features: TypeAlias = Mapping[str, Feature] | None
Columns: TypeAlias = dict[str, Column]


def parse_sequence_example(
    serialized: Any,
    context_features: Features = None,
    sequence_features: Features = None,
    example_names: Sequence[str | bytes] | None = None,
    *,
    string_columns: bool = False,
) -> tuple[Columns, Columns, dict[str, Offsets]]:
    """Parses a batch of serialized SequenceExample messages, as `tf.io.parse_sequence_example` does.

    Args:
        serialized: A list, tuple or one-dimensional object array of bytes; or Frames from a reader, or
            anything else with a `buffer` and `spans`. A single bytes object is parsed without a batch
            dimension.
        context_features: FixedLen-, VarLen- and RaggedFeatures of the context, by key.
        sequence_features: FixedLenSequence-, VarLen- and RaggedFeatures of the feature lists, by key.
        example_names: A name for each example, for error messages.
        string_columns: Whether byte strings come as BytesColumns instead of object arrays of bytes.

    Returns:
        The context's columns, as from `parse_example`; the feature lists' columns: a FixedLenSequenceFeature
        is an array of `[batch, longest, *shape]`, padded with 0 or `b""`, a VarLenFeature a SparseTensor of
        `[batch, longest, most values]`, a RaggedFeature a RaggedTensor of at least two ragged dimensions;
        and for each FixedLenSequenceFeature the number of steps of each example, int64 of `[batch]`.

    Raises:
        FeatureError: A message that is damaged, a required feature that is missing, values of another kind or
            number than described, partitions that don't fit; or features that don't go together.
        TypeError: Something in `serialized` that is not bytes.
    """
    arguments = (serialized, context_features, sequence_features, example_names, string_columns)
    return parse_sequences_with(NATIVE, *arguments)


def parse_single_sequence_example(
    serialized: Any,
    context_features: Features = None,
    sequence_features: Features = None,
    example_name: str | bytes | None = None,
    *,
    string_columns: bool = False,
) -> tuple[Columns, Columns]:
    """Parses one serialized SequenceExample, as `tf.io.parse_single_sequence_example` does.

    Args:
        serialized: The message, as bytes.
        context_features: FixedLen-, VarLen- and RaggedFeatures of the context, by key.
        sequence_features: FixedLenSequence-, VarLen- and RaggedFeatures of the feature lists, by key.
        example_name: The example's name, for error messages.
        string_columns: Whether byte strings come as BytesColumns instead of object arrays of bytes.

    Returns:
        The columns of the context and of the feature lists, without a batch dimension.

    Raises:
        FeatureError: As for `parse_sequence_example`.
        TypeError: `serialized` is not bytes.
    """
    arguments = (serialized, context_features, sequence_features, example_name, string_columns)
    context, lists, _ = parse_single_sequence_with(NATIVE, *arguments)
    return context, lists


def parse_sequences_with(
    walker: NativeWalker, serialized: Any, context: Features, lists: Features, names: Any, string_columns: bool
) -> tuple[Columns, Columns, dict[str, Offsets]]:
    """`parse_sequence_example` on a walker of choice: the tests run both."""
    if is_scalar(serialized):
        return parse_single_sequence_with(walker, serialized, context, lists, names, string_columns)
    plans = _plans(context, lists)
    records = as_records(serialized, string_columns)
    check_names(names, len(records))
    features, steps = _walk(walker, records, plans, names, string_columns)
    spanned = records if string_columns else None
    columns = batch_columns(plans[0], features, len(records), spanned)
    parts = {slot.name: _batch_part(slot, form, raw, spanned) for slot, form, raw in _triples(plans[1], steps)}
    return columns, combine(plans[1], parts), _lengths(plans[1], steps)


def parse_single_sequence_with(
    walker: NativeWalker, serialized: Any, context: Features, lists: Features, name: Any, string_columns: bool
) -> tuple[Columns, Columns, dict[str, Offsets]]:
    """`parse_single_sequence_example` on a walker of choice: the tests run both."""
    plans = _plans(context, lists)
    records, names = single_record(serialized, name, string_columns)
    features, steps = _walk(walker, records, plans, names, string_columns, single=True)
    spanned = records if string_columns else None
    parts = {slot.name: _single_part(slot, form, raw, spanned) for slot, form, raw in _triples(plans[1], steps)}
    lengths = {name: length.reshape(()) for name, length in _lengths(plans[1], steps).items()}
    columns = single_columns(plans[0], features, spanned)
    try:
        return columns, combine(plans[1], parts), lengths
    except FeatureError as error:  # its record is a step
        raise FeatureError(error.reason, error.feature) from None


def _plans(context: Features, lists: Features) -> tuple[Plan, Plan]:
    if not context and not lists:
        raise FeatureError("context_features and sequence_features are empty; describe at least one feature")
    return plan_context(context), plan_lists(lists)


def _walk(
    walker: NativeWalker, records: Records, plans: tuple[Plan, Plan], names: Any, spans: bool, single: bool = False
) -> tuple[list[Found], list[Raw]]:
    """What a walk finds; TensorFlow refuses required context features also for a batch of nothing."""
    required = [slot for slot in plans[0].slots if slot.dense and slot.required and slot.size]
    if not len(records) and required:
        raise WalkError(Code.COUNT, 0, required[0], 0).error(None)
    try:
        return walker.sequences(records, plans[0].slots, plans[1].slots, spans)
    except WalkError as failure:
        raise failure.error(names, single) from None


def _triples(plan: Plan, raws: list[Raw]) -> list[tuple[Slot, Feature, Raw]]:
    return list(zip(plan.slots, plan.forms, raws, strict=True))


def _lengths(plan: Plan, raws: list[Raw]) -> dict[str, Offsets]:
    dense = [(slot, raw) for slot, form, raw in _triples(plan, raws) if isinstance(form, FixedLenSequenceFeature)]
    return {slot.name: np.diff(raw.splits) for slot, raw in dense}


def _splits(raw: Raw) -> tuple[Offsets, Offsets]:
    """Where each record's steps and each step's values start and end."""
    assert raw.inner is not None
    return raw.splits, raw.inner


def _padding(slot: Slot, values: Array) -> Any:
    if values.ndim == 2:  # spans of empty strings
        return 0
    return b"" if slot.dtype is bytes else 0


def _batch_part(slot: Slot, form: Feature, raw: Raw, spanned: Records | None) -> Part:
    outer, inner = _splits(raw)
    wrap = wrapper(spanned)
    if isinstance(form, FixedLenSequenceFeature):
        pad = _padding(slot, raw.values)
        return wrap(pad_rows_of(raw.values, outer * slot.size, form.shape, slot.size, pad), slot.dtype, None)
    values = wrap(raw.values, slot.dtype, None)
    if isinstance(form, RaggedFeature):
        return Rows(Rows(values, inner), outer)
    examples, steps, longest = positions(outer)
    rows, places, most = positions(inner)
    return sparse_tensor(values, (examples[rows], steps[rows], places), (len(outer) - 1, longest, most))


def _single_part(slot: Slot, form: Feature, raw: Raw, spanned: Records | None) -> Part:
    _, inner = _splits(raw)
    wrap = wrapper(spanned)
    if isinstance(form, FixedLenSequenceFeature):
        shaped = raw.values.reshape(-1, *form.shape, *raw.values.shape[1:])
        return wrap(shaped, slot.dtype, None)
    values: Values = wrap(raw.values, slot.dtype, None)
    if isinstance(form, RaggedFeature):
        return Rows(values, inner)
    rows, places, most = positions(inner)
    return sparse_tensor(values, (rows, places), (len(inner) - 1, most))
