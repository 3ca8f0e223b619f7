"""The readable walk: the specification of which bytes are an Example, in plain Python.

TensorFlow does not read Examples with protobuf. Its parser (tf.io.parse_example, 2.21) reads the
wire format by itself, and where bytes are unusual or damaged the two differ, so that a walk over
protobuf's messages could not give TensorFlow's results. What this file keeps, rule by rule, is
TensorFlow's reading; the tests compare both on any messages
(tests/example/parsing/test_differential.py).

Both kinds of messages:
  - a length that runs past its enclosing message is cut to it, except where a key, a value, a byte
    string or (in an Example) packed floats are taken whole: there it is a failure;
  - lengths are varints of which 32 bits count; a varint has at most 10 bytes;
  - unknown fields are skipped at the top level only, by wire type; groups are failures; a
    length-delimited one may run past the end;
  - of a Feature only the first list counts, of packed values only the first run; what follows is
    not looked at;
  - a list is packed or not: one of both kinds is read as its first byte says.

Example: a map entry has a key and a value in either order, and nothing else. Only a Feature whose
key is asked for is looked at. The last of duplicate keys counts (FeatureSlot.empty_counts says
which empty ones don't).

SequenceExample: a map entry has the key first and the value second. The last of duplicate keys
counts, also if empty; an empty Feature is one without values, not a missing one. A Feature in a
list ends where its first list ends, and what follows is read as the next step.
"""

import itertools
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from streamrec.example.features import NUMBERS
from streamrec.example.walk import Array, Code, FeatureSlot, Found, Records, Rows, failure

_DELIMITED_1: Final = 0x0A  # field 1, length-delimited
_DELIMITED_2: Final = 0x12
_VARINT_1: Final = 0x08
_FIXED32_1: Final = 0x0D


class _DamagedError(Exception):
    """Bytes that are not what the rules say."""


class _Wire(NamedTuple):
    """A byte string and the part of it that a message takes up."""

    data: bytes | memoryview
    start: int
    end: int


def _varint(wire: _Wire, at: int) -> tuple[int, int]:
    """The unsigned value of 64 bits at `at`, and where it ends."""
    value = 0
    for count in range(10):
        if at + count >= wire.end:
            break
        byte = wire.data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at + count + 1
    raise _DamagedError


def _length(wire: _Wire, at: int) -> tuple[int, int]:
    value, at = _varint(wire, at)
    return value & 0xFFFFFFFF, at


def _cut(wire: _Wire, at: int) -> _Wire:
    """The message whose length stands at `at`, cut to the enclosing one."""
    length, at = _length(wire, at)
    return _Wire(wire.data, at, min(at + length, wire.end))


def _whole(wire: _Wire, at: int) -> _Wire:
    """The bytes whose length stands at `at`; they must lie within the enclosing message."""
    length, at = _length(wire, at)
    if length > wire.end - at:
        raise _DamagedError
    return _Wire(wire.data, at, at + length)


def _tag(wire: _Wire, at: int, tag: int) -> int:
    """Where the field starts whose one-byte tag stands at `at`."""
    if at >= wire.end or wire.data[at] != tag:
        raise _DamagedError
    return at + 1


def _skip(wire: _Wire, at: int) -> int:
    """Where an unknown field at the top level ends."""
    tag, at = _length(wire, at)
    wire_type = tag & 7
    if wire_type == 0:
        return _varint(wire, at)[1]
    if wire_type == 2:
        length, at = _length(wire, at)
        return (
            at if length >= 1 << 31 else min(at + length, wire.end)
        )  # TensorFlow's int turns negative
    if wire_type in (1, 5):
        at += 8 if wire_type == 1 else 4
        if at <= wire.end:
            return at
    raise _DamagedError


def _fields(wire: _Wire) -> Iterator[tuple[int, _Wire]]:
    """The fields 1 and 2 of a message at the top level, as (tag, contents)."""
    at = wire.start
    while at < wire.end:
        tag = wire.data[at]
        if tag in (_DELIMITED_1, _DELIMITED_2):
            inner = _cut(wire, at + 1)
            yield tag, inner
            at = inner.end
        else:
            at = _skip(wire, at)


def _entries(features: _Wire) -> Iterator[_Wire]:
    at = features.start
    while at < features.end:
        entry = _cut(features, _tag(features, at, _DELIMITED_1))
        yield entry
        at = entry.end


def _example_features(wire: _Wire) -> Iterator[tuple[bytes, _Wire]]:
    """Key and Feature of each entry of an Example, in either order."""
    at = wire.start
    while at < wire.end:
        if wire.data[at] != _DELIMITED_1:
            at = _skip(wire, at)
            continue
        features = _cut(wire, at + 1)
        for entry in _entries(features):
            yield _either_order(entry)
        at = features.end


def _either_order(entry: _Wire) -> tuple[bytes, _Wire]:
    key = b""
    value = _Wire(entry.data, entry.start, entry.start)
    at = entry.start
    for _ in range(2):
        tag, at = _length(entry, at)
        if tag not in (_DELIMITED_1, _DELIMITED_2):
            raise _DamagedError
        part = _whole(entry, at)
        if tag == _DELIMITED_1:
            key = bytes(part.data[part.start : part.end])
        else:
            value = part
        at = part.end
    if at != entry.end:
        raise _DamagedError
    return key, value


def _key_first(entry: _Wire) -> tuple[bytes, _Wire]:
    key = _whole(entry, _tag(entry, entry.start, _DELIMITED_1))
    value = _whole(entry, _tag(entry, key.end, _DELIMITED_2))
    if value.end != entry.end:
        raise _DamagedError
    return bytes(key.data[key.start : key.end]), value


class _Values:
    """One slot's values, as they are found.

    Args:
        slot: What is expected.
        sequence: Whether the rules of a SequenceExample hold.
        spans: Whether byte strings are kept as spans.
    """

    def __init__(self, slot: FeatureSlot, sequence: bool, spans: bool) -> None:
        self.slot = slot
        self.sequence = sequence
        self.spans = spans and slot.dtype is bytes
        self.found: list[object] = []

    def take_list(self, wire: _Wire, at: int) -> int:
        """Adds the values of the list whose length stands at `at`; returns where the reading
        ended.
        """
        length, start = _length(wire, at)
        inner = _Wire(wire.data, start, min(start + length, wire.end))
        if self.slot.dtype is bytes:
            return self._take_bytes(inner)
        if length == 0 or (inner.start == inner.end and not self.sequence):
            return inner.start
        if inner.start == inner.end:
            raise _DamagedError
        return self._take_floats(inner) if self.slot.dtype is np.float32 else self._take_ints(inner)

    def _take_bytes(self, wire: _Wire) -> int:
        at = wire.start
        while at < wire.end:
            item = _whole(wire, _tag(wire, at, _DELIMITED_1))
            at = item.end
            text = bytes(item.data[item.start : item.end])
            self.found.append((item.start, item.end) if self.spans else text)
        return at

    def _take_ints(self, wire: _Wire) -> int:
        packed = wire.data[wire.start] == _DELIMITED_1
        run = _cut(wire, wire.start + 1) if packed else wire
        at = run.start
        while at < run.end:
            value, at = _varint(run, at if packed else _tag(run, at, _VARINT_1))
            self.found.append(value - (1 << 64) if value >> 63 else value)
        return at

    def _take_floats(self, wire: _Wire) -> int:
        if wire.data[wire.start] == _DELIMITED_1:
            return self._take_packed_floats(wire)
        at = wire.start
        while at < wire.end:
            at = _tag(wire, at, _FIXED32_1)
            if at + 4 > wire.end:
                raise _DamagedError
            self.found += struct.unpack_from("<f", wire.data, at)
            at += 4
        return at

    def _take_packed_floats(self, wire: _Wire) -> int:
        length, at = _length(wire, wire.start + 1)
        rest = wire.end - at
        if self.sequence:
            length = min(length, rest)
        count = length // 4
        if 4 * count > rest or (self.sequence and length % 4):
            raise _DamagedError
        self.found += struct.unpack_from(f"<{count}f", wire.data, at)
        return at + 4 * count

    def take_default(self, default: Array) -> None:
        self.found += [(-1, -1)] * default.size if self.spans else default.reshape(-1).tolist()

    def array(self, records: Records, splits: Array) -> Array:
        """All values found; `splits` says where each record's values start and end."""
        if self.spans:
            spans = np.array(self.found, dtype=np.int64).reshape(-1, 2)
            if not records.is_scattered:
                return spans
            rows = records.make_rows(np.diff(splits))
            rows[:, :2] = spans
            return rows
        array = np.empty(
            len(self.found), dtype=object if self.slot.dtype is bytes else self.slot.dtype
        )
        array[:] = self.found
        return array


def _feature(values: _Values, wire: _Wire, record: int) -> int:
    """Adds the values of a Feature that is not empty; returns where the reading ended."""
    slot, kind = values.slot, wire.data[wire.start]
    if kind != NUMBERS[slot.dtype] << 3 | 2:
        raise failure(Code.KIND, record, slot, {0x0A: 1, 0x12: 2, 0x1A: 3}.get(kind, 0))
    try:
        return values.take_list(wire, wire.start + 1)
    except _DamagedError:
        raise failure(Code.LIST, record, slot) from None


def _take(values: _Values, wire: _Wire | None, record: int) -> None:
    """Adds what one record has for a slot of an Example or of a context; None where it has
    nothing.
    """
    slot, before = values.slot, len(values.found)
    if wire is None:
        if slot.required:
            raise failure(Code.MISSING, record, slot)
        if slot.default is not None:
            values.take_default(slot.default)
    elif wire.start < wire.end:
        _feature(values, wire, record)
    count = len(values.found) - before
    if count != slot.size if slot.dense else count % slot.size:
        raise failure(Code.COUNT, record, slot, count)


def _latest(wire: _Wire, slots: dict[bytes, FeatureSlot], record: int) -> dict[str, _Wire]:
    """The Features of an Example that count, by name."""
    chosen: dict[str, _Wire] = {}
    for key, value in list(_example_features(wire)):
        slot = slots.get(key)
        if slot is None:
            continue
        empty = value.start == value.end
        if not empty and value.data[value.start] not in (0x0A, 0x12, 0x1A):
            raise failure(Code.KIND, record, slot, 0)
        if slot.empty_counts or not empty:
            chosen[slot.name] = value
    return chosen


def _messages(records: Records) -> Iterator[_Wire]:
    if records.items is not None:
        yield from (_Wire(item, 0, len(item)) for item in records.items)
        return
    assert records.spans is not None
    several = isinstance(records.buffer, tuple)
    views = [
        memoryview(buffer).cast("B") for buffer in (records.buffer if several else [records.buffer])
    ]
    for start, end, *more in records.spans.tolist():
        number = more[0] >> 32 if several else 0
        if not 0 <= number < len(views):
            raise ValueError(f"a span lies in buffer {number} of {len(views)}")
        view = views[number]
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"span {start} to {end} leaves a buffer of {len(view)} bytes")
        yield _Wire(view, start, end)


def walk_examples(records: Records, slots: tuple[FeatureSlot, ...], spans: bool) -> list[Found]:
    columns = [_Values(slot, False, spans) for slot in slots]
    by_key = {slot.name.encode(): slot for slot in slots}
    ends: list[list[int]] = [[0] for _ in slots]
    for record, wire in enumerate(_messages(records)):
        try:
            chosen = _latest(wire, by_key, record)
        except _DamagedError:
            raise failure(Code.MESSAGE, record) from None
        for column, end in zip(columns, ends, strict=True):
            _take(column, chosen.get(column.slot.name), record)
            end.append(len(column.found))
    return [_found(column, end, records) for column, end in zip(columns, ends, strict=True)]


def walk_sequences(
    records: Records, context: tuple[FeatureSlot, ...], lists: tuple[FeatureSlot, ...], spans: bool
) -> tuple[list[Found], list[Rows]]:
    """What SequenceExamples hold for each slot of the context and of the feature lists."""
    features = [_Values(slot, True, spans) for slot in context]
    ends: list[list[int]] = [[0] for _ in context]
    steps = [_Steps(slot, spans) for slot in lists]
    for record, wire in enumerate(_messages(records)):
        try:
            found = _sequence_features(wire)
        except _DamagedError:
            raise failure(Code.MESSAGE, record) from None
        for column, end in zip(features, ends, strict=True):
            _take(column, found[_DELIMITED_1].get(column.slot.name.encode()), record)
            end.append(len(column.found))
        for step in steps:
            step.take(found[_DELIMITED_2].get(step.values.slot.name.encode()), record)
    found_in_context = [
        _found(column, end, records) for column, end in zip(features, ends, strict=True)
    ]
    return found_in_context, [step.raw(records) for step in steps]


def _sequence_features(wire: _Wire) -> dict[int, dict[bytes, _Wire]]:
    """The last value of each key, of the context (field 1) and of the feature lists (field 2)."""
    found: dict[int, dict[bytes, _Wire]] = {_DELIMITED_1: {}, _DELIMITED_2: {}}
    for tag, features in _fields(wire):
        for entry in _entries(features):
            key, value = _key_first(entry)
            found[tag][key] = value
    return found


class _Steps:
    """One slot of the feature lists: its values, and where steps and records end."""

    def __init__(self, slot: FeatureSlot, spans: bool) -> None:
        self.values = _Values(slot, True, spans)
        self.inner = [0]
        self.outer = [0]

    def take(self, wire: _Wire | None, record: int) -> None:
        slot = self.values.slot
        if wire is None and slot.required:
            raise failure(Code.MISSING, record, slot)
        at = wire.start if wire is not None else 0
        while wire is not None and at < wire.end:
            before = len(self.values.found)
            at = self._step(wire, at, record)
            count = len(self.values.found) - before
            if slot.dense and count != slot.size:
                raise failure(Code.COUNT, record, slot, count)
            self.inner.append(len(self.values.found))
        self.outer.append(len(self.inner) - 1)

    def _step(self, wire: _Wire, at: int, record: int) -> int:
        slot = self.values.slot
        try:
            length, at = _length(wire, _tag(wire, at, _DELIMITED_1))
            if length > 2:
                inner = _Wire(wire.data, at, min(at + length, wire.end))
                if inner.start == inner.end:
                    raise failure(Code.KIND, record, slot, 0)
                return _feature(self.values, inner, record)
            if (
                length == 2
            ):  # a kind and a list of length 0, which TensorFlow reads without this limit
                size, end = _length(wire, _tag(wire, at, NUMBERS[slot.dtype] << 3 | 2))
                if size == 0:
                    return end
            elif length == 0:
                return at
        except _DamagedError:
            pass
        raise failure(Code.LIST, record, slot)

    def raw(self, records: Records) -> Rows:
        splits, inner = np.array(self.outer, dtype=np.int64), np.array(self.inner, dtype=np.int64)
        return Rows(Rows(self.values.array(records, inner[splits]), inner), splits)


def _found(column: _Values, ends: list[int], records: Records) -> Found:
    splits = np.array(ends, dtype=np.int64)
    values = column.array(records, splits)
    if column.slot.pad is not None:
        return _rows(values, splits, column.slot.pad)
    return values if column.slot.dense else Rows(values, splits)


def _rows(values: Array, ends: Array, pad: np.int64 | np.float32) -> Array:
    """Rows of one length, one after the other: each record's values, and what fills them up."""
    rows = np.full((len(ends) - 1, int(np.diff(ends).max(initial=0))), pad, values.dtype)
    for row, (first, last) in zip(rows, itertools.pairwise(ends.tolist()), strict=True):
        row[: last - first] = values[first:last]
    return rows.reshape(-1)
