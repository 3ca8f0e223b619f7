"""The native walker: allocates what is known beforehand, and lets the C kernels do the walk in one call.

The kernels (decode_core.c) agree with reference.py on every input; the tests hold the one against the other.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from streamrec.example.walk import Array, Code, Raw, Records, Slot, WalkError
from streamrec.kernels import _native

__all__ = ["NativeWalker"]


class NativeWalker:
    """Walker (walk.py) in C."""

    def examples(self, records: Records, slots: tuple[Slot, ...], spans: bool) -> list[Raw]:
        """See walk.Walker."""
        arrays = _arrays(slots, len(records))
        found = _native.decode_examples(_plan(slots), *records, arrays)
        if isinstance(found, tuple):
            raise _failure(found, slots, ())
        buffer = records.buffer if spans else None
        columns = zip(slots, arrays, found, strict=True)
        return [
            Raw(array) if block is None else _raw(slot, array, block, buffer)  # None: dense numbers, in their array
            for slot, array, block in columns
        ]

    def sequences(
        self, records: Records, context: tuple[Slot, ...], lists: tuple[Slot, ...], spans: bool
    ) -> tuple[list[Raw], list[Raw]]:
        """See walk.Walker."""
        arrays = _arrays(context, len(records))
        splits = tuple(np.empty(len(records) + 1, dtype=np.int64) for _ in lists)
        found = _native.decode_sequences(_plan(context), _plan(lists), *records, arrays, splits)
        if isinstance(found, tuple):
            raise _failure(found, context, lists)
        buffer = records.buffer if spans else None
        features = [_raw(*column, buffer) for column in zip(context, arrays, found[0], strict=True)]
        steps = [_steps(*column, buffer) for column in zip(lists, splits, found[1], strict=True)]
        return features, steps


@functools.lru_cache(maxsize=256)
def _plan(slots: tuple[Slot, ...]) -> object:
    """The compiled plan; slots are compared by identity, and plan.py makes them once for each description."""
    return _native.decode_plan(tuple(map(_compiled, slots)))


def _compiled(slot: Slot) -> tuple[bytes, int, bool, int, bytes | None, bool, bool]:
    numbers = slot.default is not None and slot.dtype is not bytes
    fill = np.ascontiguousarray(slot.default).tobytes() if numbers else None
    return slot.name.encode(), slot.kind, slot.dense, slot.size, fill, slot.required, slot.empty_counts


def _arrays(slots: tuple[Slot, ...], count: int) -> tuple[Any, ...]:
    """For each slot the array that the walk fills: dense numbers, or splits; None for dense byte strings."""
    return tuple([_array(slot, count) for slot in slots])


def _array(slot: Slot, count: int) -> Array | None:
    if not slot.dense:
        return np.empty(count + 1, dtype=np.int64)
    return None if slot.dtype is bytes else np.empty(count * slot.size, dtype=slot.dtype)


def _raw(slot: Slot, array: Any, block: Any, buffer: Any) -> Raw:
    if slot.dense:
        return Raw(array if array is not None else _strings(slot, block, buffer))
    return Raw(_values(slot, block, buffer), array)


def _steps(slot: Slot, splits: Any, blocks: tuple[Any, Any], buffer: Any) -> Raw:
    values, inner = blocks
    return Raw(_values(slot, values, buffer), splits, np.frombuffer(inner, dtype=np.int64))


def _values(slot: Slot, block: Any, buffer: Any) -> Array:
    if slot.dtype is bytes:
        return _strings(slot, block, buffer)
    return np.frombuffer(block, dtype=slot.dtype)


def _strings(slot: Slot, block: Any, buffer: Any) -> Array:
    """Byte strings as objects, or as spans over `buffer` if that is not None."""
    count = memoryview(block).nbytes // 16
    if buffer is not None:
        spans = np.empty((count, 2), dtype=np.int64)
        _native.decode_spans(block, buffer, spans)
        return spans
    strings = np.empty(count, dtype=object)
    defaults = () if slot.default is None else tuple(slot.default.flat)
    _native.decode_strings(block, strings, defaults)
    return strings


def _failure(found: tuple[int, int, int, int, int], slots: tuple[Slot, ...], lists: tuple[Slot, ...]) -> WalkError:
    code, record, slot, count, in_lists = found
    part = lists if in_lists else slots
    return WalkError(Code(code), record, part[slot] if slot >= 0 else None, count)
