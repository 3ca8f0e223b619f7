"""The walk over the wire bytes of messages: plans, results, and calls of the C kernels.

A description is compiled once to a plan (`make_plan`). Work on whole columns (sparse positions,
ragged partitions, padding of strings and feature lists) comes after the walk, in NumPy
(assemble.py). tests/oracle/parsing.py specifies the walk in plain Python.

Contract of a walk:
- Each record is read once, in order; the first failure ends the walk with a FeatureError (see
  `failure`).
- Bytes are accepted and interpreted as TensorFlow reads the wire format, damaged bytes included
  (the docstring of tests/oracle/parsing.py has the rules).
- A dense slot returns `size` values for each record; its default if the record has none.
- A padded slot returns rows of the length of the longest: each record's values, and padding.
- Any other slot returns all values joined, and the offsets at which each record's values end.
- Byte strings are `bytes` objects in object arrays, or, on request, spans over the records' buffer:
  int64 of shape `[n, 2]`, start and end, -1 and -1 for a default; with several buffers `[n, 4]`, as
  in `Records`.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import example
from streamrec.arguments import describe_value
from streamrec.display import join_names, logger
from streamrec.errors import FeatureError
from streamrec.example.features import (
    NUMBERS,
    Dtype,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    default_array,
    encode_name,
)
from streamrec.kernels import _native

MAX_LOOK_BYTES: Final = 1 << 20
"""Longer records are not searched for features that were misspelt."""

Array: TypeAlias = npt.NDArray[Any]
Offsets: TypeAlias = npt.NDArray[np.int64]


class Records(NamedTuple):
    """Serialized messages: bytes objects, or spans over one or several buffers.

    Either `items` or `spans` is None.

    The spans are int64 of shape `[n, 2]`, start and end of each message in `buffer`; with a tuple
    of buffers `[n, 4]`: start, end, the number of the buffer times 2**32, and an unused number.
    """

    items: tuple[bytes, ...] | None
    buffer: Any = None
    spans: Offsets | None = None

    def __len__(self) -> int:
        return len(self.items if self.items is not None else self.spans)  # type: ignore[arg-type]

    @property
    def is_scattered(self) -> bool:
        """Whether the messages are in several buffers."""
        return isinstance(self.buffer, tuple)

    @property
    def nbytes(self) -> int:
        assert self.spans is not None
        return int((self.spans[:, 1] - self.spans[:, 0]).sum())

    def first(self, count: int) -> Records:
        """The first messages, at most `count`."""
        items = None if self.items is None else self.items[:count]
        spans = None if self.spans is None else self.spans[:count]
        return Records(items, self.buffer, spans)

    def message(self, record: int) -> bytes:
        """A copy of one message, for error messages and the like."""
        if self.items is not None:
            return self.items[record]
        assert self.spans is not None
        start, end, *owner = self.spans[record].tolist()
        return bytes(memoryview(self.buffer[owner[0] >> 32] if owner else self.buffer)[start:end])

    def length(self, record: int) -> int:
        """The length of one message in bytes."""
        if self.items is not None:
            return len(self.items[record])
        assert self.spans is not None
        return int(self.spans[record, 1] - self.spans[record, 0])

    def make_rows(self, counts: Any) -> Array:
        """Rows for `counts` strings of each message in several buffers.

        The walk completes them.
        """
        assert self.spans is not None
        owners = np.repeat(self.spans[:, 2], counts)
        rows = np.zeros((len(owners), 4), np.int64)
        rows[:, 2] = owners
        return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class FeatureSlot:
    """One key that the walk looks for.

    Args:
        name: The key.
        form: The form of the result: FixedLenFeature (an array), FixedLenSequenceFeature (a padded
            array), VarLenFeature (a SparseTensor) or RaggedFeature (a RaggedTensor, with its
            row_splits_dtype).
        dtype: The required kind of values.
        dense: Whether each record has exactly `size` values. If not, any multiple of `size`.
        size: Values of one record (dense), or of one step (a feature list, a padded feature).
        default: The `size` values for a record that has none, if dense; None makes the key
            required.
        required: Whether a record without the key is a failure.
        empty_counts: Whether a Feature without any kind hides an earlier one of the same key. Among
            duplicate keys the last one counts; TensorFlow ignores empty ones for dense features,
            and for all features of a single example.
        shape: The shape of one record or step, for messages.
        pad: The number that pads the values of shorter records. None without padding by the walk,
            which pads only numbers of Examples that are not dense.
        as_found: Whether the walk's array is the result already: numbers, one for each record.
    """

    name: str
    form: Feature
    dtype: Dtype
    dense: bool = False
    size: int = 1
    default: Array | None = None
    required: bool = False
    empty_counts: bool = False
    shape: tuple[int, ...] = ()
    pad: np.int64 | np.float32 | None = None
    as_found: bool = False


Slots: TypeAlias = tuple[FeatureSlot, ...]


MessagePart: TypeAlias = Literal["examples", "example", "context", "lists"]
"""The subject of a description.

It is a batch of Examples, one Example, or the context or feature lists of SequenceExamples.
"""

_OF_EXAMPLES = (
    VarLenFeature,
    SparseFeature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
)
_FEATURES: dict[MessagePart, tuple[type, ...]] = {
    "examples": _OF_EXAMPLES,
    "example": _OF_EXAMPLES,
    "context": (VarLenFeature, FixedLenFeature, RaggedFeature),
    "lists": (VarLenFeature, FixedLenSequenceFeature, RaggedFeature),
}


@dataclass(eq=False)
class ParsePlan:
    """A compiled description, which all calls with an equal description share.

    A misspelt name of an optional feature would silently return defaults, so the log names, once,
    the optional features that none of the first records has.

    Args:
        features: The description, in sorted order.
        slots: The keys that the walk looks for, in the order of the results: sparse keys, dense
            keys, ragged keys, as in TensorFlow, each in the sorted order of their features.
        composite: Whether the description has a SparseFeature or RaggedFeature, which is combined
            after the walk.
        unseen: The optional slots that no record had so far, by key; empty after the warning.
        left: How many further records to check.
        names: The features of a record, if records have features without a slot.
    """

    features: dict[str, Feature]
    slots: Slots
    composite: bool
    unseen: dict[str, FeatureSlot]
    left: int = 1000
    names: tuple[str, ...] = ()

    def note_values(self, found: Sequence[Found]) -> None:
        """Notes the optional features of which a walk has found values.

        For most data sets that is all of them, so that `look` need not import protobuf: 59 modules,
        25 ms of a process's first batch. Only `look` tells an empty feature from one that is
        absent, or a default from a value.
        """
        for slot, values in zip(self.slots, found, strict=True):
            held = values.values if isinstance(values, Rows) else values
            if not slot.dense and held.size:
                self.unseen.pop(slot.name, None)

    def look(self, records: Records) -> None:
        """Notes which optional features the records have.

        Logs the warning after the last record to check.
        """
        part = records.first(self.left)
        self.left -= len(part)
        known = {slot.name for slot in self.slots}
        for record in range(len(part)):
            # protobuf copies all of a message: an episode of a gigabyte would need two more.
            if part.length(record) > MAX_LOOK_BYTES:
                continue
            try:
                names = set(example.Example.FromString(part.message(record)).features.feature)
            except Exception:  # protobuf rejects this message, so its features are unknown
                self.unseen.clear()
            if not self.unseen:
                break
            for name in names.intersection(list(self.unseen)):
                self.unseen.pop(name, None)
            self.names = self.names or (tuple(names) if names - known else ())
        if self.left <= 0:
            self.warn_of_unseen()

    def warn_of_unseen(self) -> None:
        """Logs the optional features that no record had, if the records have other features."""
        unseen = list(self.unseen)
        self.unseen.clear()
        if unseen and self.names:
            near = [name for each in unseen for name in get_close_matches(each, self.names, 1)]
            others = join_names(map(repr, dict.fromkeys([*near, *sorted(self.names)])))
            quoted = join_names(map(repr, unseen))
            logger.warning(
                "no record so far has the feature %s: is that its name? The records have %s",
                quoted,
                others,
            )


def make_plan(part: MessagePart, features: Any) -> ParsePlan:
    """Compiles a description, or returns the plan of an equal one."""
    if not isinstance(features, Mapping):
        raise FeatureError(
            f"features is {describe_value(features)}: it must be a dict of feature configurations, "
            "such as {'image': FixedLenFeature([], bytes)}"
        )
    items = tuple(features.items())
    try:
        return _plan(part, items)
    except TypeError:  # an unhashable object is not a configuration: `_plan` raises an error for it
        return _plan.__wrapped__(part, items)


def check_features(part: MessagePart, features: Mapping[str, Any]) -> None:
    """Refuses values of a description that are not configurations of features."""
    for name, feature in features.items():
        if not isinstance(feature, _FEATURES[part]):
            wanted = ", ".join(kind.__name__ for kind in _FEATURES[part])
            is_another = isinstance(feature, Feature)
            found = type(feature).__name__ if is_another else describe_value(feature)
            raise FeatureError(
                f"{found} where one of {wanted} is expected, such as FixedLenFeature([], 'int64')",
                name,
            )


@functools.lru_cache(maxsize=128)
def _plan(part: MessagePart, items: tuple[tuple[str, Feature], ...]) -> ParsePlan:
    if not items and part in ("examples", "example"):
        raise FeatureError("features is empty; describe at least one feature")
    check_features(part, dict(items))
    for name, feature in items:
        encode_name(name)
        if isinstance(feature, FixedLenSequenceFeature):
            _check_sequence(part, name, feature)
    # Sorted, so that the order of the columns does not depend on the description's.
    features = dict(sorted(items))
    slots = tuple(_slot(part, name, form) for name, form in _forms(features).items())
    composite = any(
        isinstance(feature, SparseFeature | RaggedFeature) for feature in features.values()
    )
    watched = slots if part in ("examples", "example") else ()
    unseen = {slot.name: slot for slot in watched if not slot.required}
    return ParsePlan(features, slots, composite, unseen)


def _check_sequence(part: MessagePart, name: str, feature: FixedLenSequenceFeature) -> None:
    if part == "lists":
        if feature.default_value is not None:
            raise FeatureError(
                "a feature list is padded with 0 or b''; leave default_value out", name
            )
    elif not feature.allow_missing:
        raise FeatureError("a FixedLenSequenceFeature of an Example needs allow_missing=True", name)


def _forms(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """The keys that features need, with the form of their results.

    A key with two forms is an error.
    """
    sparse: dict[str, Feature] = {}
    dense: dict[str, Feature] = {}
    ragged: dict[str, Feature] = {}

    # Several features may share a key, such as the positions of two sparse features: the walk looks
    # for it once.
    def want(group: dict[str, Feature], key: str, form: Feature) -> None:
        if group.setdefault(key, form) != form:
            raise FeatureError(
                "two features use this key with different dtypes or row_splits_dtypes", key
            )

    for name, feature in features.items():
        if isinstance(feature, VarLenFeature):
            want(sparse, name, feature)
        elif isinstance(feature, SparseFeature):
            for key in sorted(feature.index_keys):
                want(sparse, key, VarLenFeature(np.int64))
            want(sparse, feature.value_key, VarLenFeature(feature.dtype))
        elif isinstance(feature, RaggedFeature):
            keys = [(each.key, np.int64) for each in feature.keyed_partitions]
            for key, dtype in [(feature.value_key or name, feature.dtype), *keys]:
                want(ragged, key, RaggedFeature(dtype, row_splits_dtype=feature.row_splits_dtype))
        else:
            dense[name] = feature
    for one, other in ((dense, sparse), (dense, ragged), (ragged, sparse)):
        if shared := sorted(one.keys() & other.keys()):
            raise FeatureError(
                "two features use this key in different forms (dense, sparse, ragged)", shared[0]
            )
    return sparse | dense | ragged


def padding_of(form: FixedLenSequenceFeature) -> Any:
    """The value that pads shorter records: the default value, or 0 or b""."""
    default = form.default_value
    while isinstance(default, tuple):  # one value, in any nesting
        default = default[0]
    if form.dtype is bytes:
        return default.encode() if isinstance(default, str) else default or b""
    return default or 0


def _slot(part: MessagePart, name: str, form: Feature) -> FeatureSlot:
    """The slot of a feature, in one of three forms."""
    if isinstance(form, FixedLenFeature):
        return _dense_slot(name, form)
    if isinstance(form, FixedLenSequenceFeature):
        return _list_slot(name, form) if part == "lists" else _padded_slot(name, form)
    return _rows_slot(name, form, counts_empty=part == "examples")


def _dense_slot(name: str, form: FixedLenFeature) -> FeatureSlot:
    """The same number of values in each record, or the default."""
    size = math.prod(form.shape)
    default = None
    if form.default_value is not None and size:  # TensorFlow treats an empty default as None
        default = default_array(form.default_value, form.dtype, form.shape)
    return FeatureSlot(
        name=name,
        form=form,
        dtype=form.dtype,
        dense=True,
        size=size,
        default=default,
        required=default is None,
        shape=form.shape,
        as_found=not form.shape and form.dtype is not bytes,
    )


def _list_slot(name: str, form: FixedLenSequenceFeature) -> FeatureSlot:
    """The same number of values in each step of a feature list."""
    return FeatureSlot(
        name=name,
        form=form,
        dtype=form.dtype,
        dense=True,
        size=math.prod(form.shape),
        required=not form.allow_missing,
        shape=form.shape,
    )


def _padded_slot(name: str, form: FixedLenSequenceFeature) -> FeatureSlot:
    """Any number of values in each record, padded to the longest."""
    pad = None
    if form.dtype is not bytes:
        pad = np.dtype(form.dtype).type(padding_of(form))
    return FeatureSlot(
        name=name,
        form=form,
        dtype=form.dtype,
        size=math.prod(form.shape),
        required=False,
        shape=form.shape,
        pad=pad,
    )


def _rows_slot(name: str, form: Feature, *, counts_empty: bool) -> FeatureSlot:
    """Any number of values in each record, as rows."""
    return FeatureSlot(name=name, form=form, dtype=form.dtype, empty_counts=counts_empty)


class Rows(NamedTuple):
    """Values split into rows; the values may be rows themselves.

    Row i goes from split i to split i + 1, int64, of the values.
    """

    values: Any
    splits: Offsets

    @property
    def lengths(self) -> Offsets:
        return np.diff(self.splits)

    @property
    def flat_values(self) -> Any:
        return self.values.flat_values if isinstance(self.values, Rows) else self.values

    def with_values(self, values: Any) -> Rows:
        """Rows of other innermost values."""
        inner = self.values.with_values(values) if isinstance(self.values, Rows) else values
        return Rows(inner, self.splits)


Found: TypeAlias = "Array | Rows"
"""The values that a walk found for a slot of an Example or a context.

Without rows if it is dense or padded.
"""


class Code(enum.IntEnum):
    """Why a walk ended. The numbers are those of decode_core.h."""

    MESSAGE = 1  # the record is not an Example
    KIND = 2  # a Feature that holds another kind than the one wanted
    LIST = 3  # a Feature whose list of values is damaged
    COUNT = 4  # another number of values than the shape needs
    MISSING = 5  # no such key, and no default


def failure(
    code: Code, record: int, slot: FeatureSlot | None = None, found: int = 0
) -> FeatureError:
    """The error for the failure that ended a walk.

    For KIND, `found` is the field number of the kind (0 if it is none of the three); for COUNT, the
    number of values.
    """
    if code is Code.MESSAGE or slot is None:
        reason = (
            "the bytes are not a serialized message; was the record read whole, and is it the "
            "right type?"
        )
        return FeatureError(reason, None if slot is None else slot.name, record)
    # Protobuf lets any field number occur, so the kind may be none of the three.
    wanted = slot.dtype.__name__
    kind = next((dtype for dtype, number in NUMBERS.items() if number == found), None)
    if code is Code.KIND and kind is None:
        reason = (
            f"found an unknown kind of values where {wanted} is expected; write the record again"
        )
    elif code is Code.KIND and kind is not None:
        dtype = "bytes" if kind is bytes else f"np.{kind.__name__}"
        reason = (
            f"found {kind.__name__} values where {wanted} is expected: write {dtype} as the "
            "feature's dtype"
        )
    elif code is Code.LIST:
        reason = f"the {wanted} values are damaged; write the record again"
    elif code is Code.COUNT:
        multiple = "" if slot.dense else "a multiple of "
        reason = (
            f"found {found:,} values where the shape {list(slot.shape)} needs "
            f"{multiple}{slot.size:,}"
        )
    else:
        reason = f"found nothing where {slot.size:,} {wanted} values are expected"
    return FeatureError(reason, slot.name, record)


def walk_examples(records: Records, slots: Slots, spans: bool) -> tuple[list[Found], int]:
    """Finds the values of Example messages for each slot.

    Also counts the features of these that have no slot.

    The names of slots are unique. With `spans`, the records must be spans, too.
    """
    plan, layout = _compile_plan(slots)
    arrays = _arrays(layout, len(records))
    found = _native.decode_examples(plan, *records, arrays)
    if isinstance(found, tuple):
        raise _failure(found, slots, ())
    return _gather(slots, arrays, found[0], records if spans else None), found[1]


def walk_sequences(
    records: Records, context: Slots, lists: Slots, spans: bool
) -> tuple[list[Found], list[Rows]]:
    """Finds the values of SequenceExamples.

    Returns them for each slot of the context, and the rows of each feature list's steps.
    """
    features, layout = _compile_plan(context)
    steps, _ = _compile_plan(lists)
    arrays = _arrays(layout, len(records))
    splits = tuple(np.empty(len(records) + 1, dtype=np.int64) for _ in lists)
    found = _native.decode_sequences(features, steps, *records, arrays, splits)
    if isinstance(found, tuple):
        raise _failure(found, context, lists)
    spanned = records if spans else None
    raws = [_steps(*column, spanned) for column in zip(lists, splits, found[1], strict=True)]
    return _gather(context, arrays, found[0], spanned), raws


_Layout: TypeAlias = "list[tuple[int, int, np.dtype[Any]] | None]"
"""The array that the walk fills for each slot, with dense numbers or splits.

It has the elements per record, further elements, and the dtype. It is None for dense byte strings,
and for padded numbers, whose count is unknown before the walk.
"""

_SPLITS = 1, 1, np.dtype(np.int64)


@functools.lru_cache(maxsize=256)
def _compile_plan(slots: Slots) -> tuple[object, _Layout]:
    """Compiles slots for the kernel.

    The cache compares slots by identity: equal descriptions share a plan.
    """
    compiled = []
    layout: list[tuple[int, int, np.dtype[Any]] | None] = []
    for slot in slots:
        padded = slot.pad is not None
        fills = slot.pad if padded else slot.default
        fill = None
        if fills is not None and slot.dtype is not bytes:
            fill = np.ascontiguousarray(fills).tobytes()
        form = slot.dense, padded, slot.size, fill, slot.required, slot.empty_counts
        compiled.append((slot.name.encode(), NUMBERS[slot.dtype], *form))
        if padded or (slot.dense and slot.dtype is bytes):
            layout.append(None)
        else:
            layout.append((slot.size, 0, np.dtype(slot.dtype)) if slot.dense else _SPLITS)
    return _native.decode_plan(tuple(compiled)), layout


def _arrays(layout: _Layout, count: int) -> tuple[Any, ...]:
    """Allocates the arrays for `count` records.

    A batch may need dozens, so this calls no Python function for each.
    """
    return tuple([each and np.empty(count * each[0] + each[1], each[2]) for each in layout])


def _gather(
    slots: Slots, arrays: tuple[Any, ...], blocks: list[Any], spanned: Records | None
) -> list[Found]:
    """The values for each slot; dense numbers have no block, but are in their array."""
    return [
        array if block is None else _result(slot, array, block, spanned)
        for slot, array, block in zip(slots, arrays, blocks, strict=True)
    ]


def _result(slot: FeatureSlot, array: Any, block: Any, spanned: Records | None) -> Found:
    if slot.pad is not None:
        return np.frombuffer(memoryview(block), slot.dtype)
    if slot.dense:
        return _strings(slot, block, None, spanned)
    return Rows(_values(slot, block, array, spanned), array)


def _steps(
    slot: FeatureSlot, splits: Any, blocks: tuple[Any, Any], spanned: Records | None
) -> Rows:
    values, ends = blocks
    inner = np.frombuffer(ends, dtype=np.int64)
    return Rows(Rows(_values(slot, values, inner[splits], spanned), inner), splits)


def _values(slot: FeatureSlot, block: Any, splits: Array, spanned: Records | None) -> Array:
    if slot.dtype is bytes:
        return _strings(slot, block, splits, spanned)
    return np.frombuffer(block, dtype=slot.dtype)


def _strings(slot: FeatureSlot, block: Any, splits: Array | None, spanned: Records | None) -> Array:
    """Byte strings as objects, or as spans in the records of `spanned`.

    `splits` is None for a dense slot.
    """
    count = memoryview(block).nbytes // 16
    if spanned is not None:
        if spanned.is_scattered:
            spans = spanned.make_rows(slot.size if splits is None else np.diff(splits))
        else:
            spans = np.empty((count, 2), dtype=np.int64)
        _native.decode_spans(block, spanned.buffer, spans)
        return spans
    strings = np.empty(count, dtype=object)
    defaults = () if slot.default is None else tuple(slot.default.flat)
    _native.decode_strings(block, strings, defaults)
    return strings


def _failure(found: tuple[int, int, int, int, int], slots: Slots, lists: Slots) -> FeatureError:
    code, record, slot, count, in_lists = found
    part = lists if in_lists else slots
    return failure(Code(code), record, part[slot] if slot >= 0 else None, count)
