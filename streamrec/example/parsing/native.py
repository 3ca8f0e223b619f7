"""The native walker: allocates what is known beforehand, and lets the C kernels do the walk in one call.

The kernels (decode_core.c) agree with tests/oracle/parsing.py on every input, which the tests check.
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeAlias

import numpy as np

from streamrec.example.parsing.walk import Array, Code, Found, Raw, Records, Slot, WalkError
from streamrec.kernels import _native

__all__ = ["NATIVE", "NativeWalker"]


class NativeWalker:
    """The walk (walk.py) in C.

    With `spans`, byte strings come as spans, and records are not bytes objects. No two slots have one
    name. The first record that TensorFlow would refuse is a WalkError.
    """

    def examples(self, records: Records, slots: tuple[Slot, ...], spans: bool) -> list[Found]:
        """What Example messages hold for each slot."""
        arrays, blocks, _ = _walk(records, slots)
        return _gather(slots, arrays, blocks, records if spans else None)

    def count_others(self, records: Records, slots: tuple[Slot, ...]) -> int:
        """How many features Examples hold that have no slot."""
        return _walk(records, slots)[2]

    def sequences(
        self, records: Records, context: tuple[Slot, ...], lists: tuple[Slot, ...], spans: bool
    ) -> tuple[list[Found], list[Raw]]:
        """What SequenceExample messages hold for each slot of the context, and a Raw for each of the feature lists."""
        (features, layout), (steps, _) = _compile_plan(context), _compile_plan(lists)
        arrays = _arrays(layout, len(records))
        splits = tuple(np.empty(len(records) + 1, dtype=np.int64) for _ in lists)
        found = _native.decode_sequences(features, steps, *records, arrays, splits)
        if isinstance(found, tuple):
            raise _failure(found, context, lists)
        spanned = records if spans else None
        raws = [_steps(*column, spanned) for column in zip(lists, splits, found[1], strict=True)]
        return _gather(context, arrays, found[0], spanned), raws


NATIVE: Final = NativeWalker()

_Layout: TypeAlias = "list[tuple[int, int, np.dtype[Any]] | None]"
"""For each slot the array that the walk fills, dense numbers or splits: elements for each record, further elements,
their type. None for dense byte strings, and for padded numbers, whose number is not known beforehand."""

_SPLITS = 1, 1, np.dtype(np.int64)


@functools.lru_cache(maxsize=256)
def _compile_plan(slots: tuple[Slot, ...]) -> tuple[object, _Layout]:
    """The compiled plan; slots are compared by identity, and plan.py makes them once for each description."""
    return _native.decode_plan(tuple(map(_compile_slot, slots))), list(map(_array_layout, slots))


def _walk(records: Records, slots: tuple[Slot, ...]) -> tuple[tuple[Any, ...], list[Any], int]:
    """The arrays and the blocks of Examples, and how many of their features have no slot."""
    plan, layout = _compile_plan(slots)
    arrays = _arrays(layout, len(records))
    found = _native.decode_examples(plan, *records, arrays)
    if isinstance(found, tuple):
        raise _failure(found, slots, ())
    return arrays, found[0], found[1]


def _array_layout(slot: Slot) -> tuple[int, int, np.dtype[Any]] | None:
    """One slot's part of the layout."""
    if slot.pad is not None or (slot.dense and slot.dtype is bytes):
        return None
    return (slot.size, 0, np.dtype(slot.dtype)) if slot.dense else _SPLITS


def _compile_slot(slot: Slot) -> tuple[bytes, int, bool, bool, int, bytes | None, bool, bool]:
    padded = slot.pad is not None
    fills = slot.pad if padded else slot.default
    fill = None if fills is None or slot.dtype is bytes else np.ascontiguousarray(fills).tobytes()
    return slot.name.encode(), slot.kind, slot.dense, padded, slot.size, fill, slot.required, slot.empty_counts


def _arrays(layout: _Layout, count: int) -> tuple[Any, ...]:
    """The arrays for `count` records. There may be dozens for each batch: no call of ours for each of them."""
    return tuple([each and np.empty(count * each[0] + each[1], each[2]) for each in layout])


def _gather(
    slots: tuple[Slot, ...], arrays: tuple[Any, ...], blocks: list[Any], spanned: Records | None
) -> list[Found]:
    """What was found for each slot; dense numbers have no block, they are in their array."""
    return [
        array if block is None else _result(slot, array, block, spanned)
        for slot, array, block in zip(slots, arrays, blocks, strict=True)
    ]


def _result(slot: Slot, array: Any, block: Any, spanned: Records | None) -> Found:
    if slot.pad is not None:
        return np.frombuffer(memoryview(block), slot.dtype)
    if slot.dense:
        return _strings(slot, block, None, spanned)
    return Raw(_values(slot, block, array, spanned), array)


def _steps(slot: Slot, splits: Any, blocks: tuple[Any, Any], spanned: Records | None) -> Raw:
    values, inner = blocks[0], np.frombuffer(blocks[1], dtype=np.int64)
    return Raw(_values(slot, values, inner[splits], spanned), splits, inner)


def _values(slot: Slot, block: Any, splits: Array, spanned: Records | None) -> Array:
    if slot.dtype is bytes:
        return _strings(slot, block, splits, spanned)
    return np.frombuffer(block, dtype=slot.dtype)


def _strings(slot: Slot, block: Any, splits: Array | None, spanned: Records | None) -> Array:
    """Byte strings as objects, or as spans in the records of `spanned`; `splits` is None for a dense slot."""
    count = memoryview(block).nbytes // 16
    if spanned is not None:
        if spanned.scattered:
            spans = spanned.owned(slot.size if splits is None else np.diff(splits))
        else:
            spans = np.empty((count, 2), dtype=np.int64)
        _native.decode_spans(block, spanned.buffer, spans)
        return spans
    strings = np.empty(count, dtype=object)
    defaults = () if slot.default is None else tuple(slot.default.flat)
    _native.decode_strings(block, strings, defaults)
    return strings


def _failure(found: tuple[int, int, int, int, int], slots: tuple[Slot, ...], lists: tuple[Slot, ...]) -> WalkError:
    code, record, slot, count, in_lists = found
    part = lists if in_lists else slots
    return WalkError(Code(code), record, part[slot] if slot >= 0 else None, count)
