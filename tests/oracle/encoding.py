"""The readable twin of the native `encode_examples`, on protobuf: the specification of what it writes.

It checks what the native function checks, but for a column that changes during the call.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from streamrec.example.encoding.encode import feature_of
from streamrec.example.encoding.values import Kind
from streamrec.example.messages import BytesList, Feature, Features

__all__ = ["encode_examples"]

_OK, _BAD_SPLITS, _BAD_SPANS, _TOO_LARGE = range(4)
_LARGEST = 2**31 - 1


def _values(kind: Kind, values: Any, spans: Any) -> Any:
    """The values of all rows, or None where a span leaves its buffer."""
    if kind is Kind.BYTES and spans is not None:
        buffer = memoryview(values).cast("B")
        if any(not 0 <= start <= end <= len(buffer) for start, end in spans.tolist()):
            return None
        return [bytes(buffer[start:end]) for start, end in spans.tolist()]
    return values


def _record(features: list[tuple[bytes, Feature]]) -> bytes:
    """The Example of some features, in their order.

    A map's entries may be serialized one by one, since concatenated messages are merged. Example.features is
    field 1 and length-delimited, as a BytesList's values are, so a BytesList writes its header.
    """
    entries = [Features(feature={key.decode(): feature}).SerializeToString() for key, feature in features]
    return BytesList(value=[b"".join(entries)]).SerializeToString()


def encode_examples(
    columns: tuple[tuple[bytes, int, Any, Any, Any], ...], rows: int, /
) -> tuple[int, int, int, bytes | None, bytes | None]:
    """Encodes columns as serialized Examples, in one buffer; see the native function for the arguments.

    Returns:
        `(code, record, column, buffer, spans)`: code 0 with the records and the int64 pairs of their start
        and end, or the code of an error with the record and column where it was found.
    """
    features: list[list[tuple[bytes, Feature]]] = [[] for _ in range(rows)]
    for number, (key, kind, values, spans, splits) in enumerate(columns):
        items = _values(Kind(kind), values, spans)
        if items is None:
            return _BAD_SPANS, 0, number, None, None
        bounds = [row * splits for row in range(rows + 1)] if isinstance(splits, int) else splits.tolist()
        for record, (first, last) in enumerate(pairwise(bounds)):
            if not 0 <= first <= last <= len(items):
                return _BAD_SPLITS, record, number, None, None
            features[record].append((key, feature_of(Kind(kind), items[first:last])))
    records = [_record(items) for items in features]
    for record, data in enumerate(records):
        if len(data) > _LARGEST:
            return _TOO_LARGE, record, 0, None, None
    ends = np.cumsum([0, *map(len, records)], dtype="<i8")
    pairs = np.stack([ends[:-1], ends[1:]], axis=1)
    return _OK, 0, 0, b"".join(records), pairs.tobytes()
