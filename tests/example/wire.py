"""Writes Examples byte by byte: also the forms that are allowed, or damaged, and that no library
writes.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def varint(number: int) -> bytes:
    """An unsigned varint; a negative int64 takes ten bytes."""
    number &= 0xFFFFFFFFFFFFFFFF
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(kind: Any, values: Iterable[Any], packed: bool = True) -> bytes:
    """A Feature that holds a list of `np.int64`, `np.float32` or `bytes`."""
    if kind is bytes:
        return field(1, b"".join(field(1, value) for value in values))
    number, tag = (3, b"\x08") if kind is np.int64 else (2, b"\x0d")
    encode = varint if kind is np.int64 else lambda value: struct.pack("<f", value)
    encoded = [encode(value) for value in values]
    if packed:
        return field(number, field(1, b"".join(encoded)) if encoded else b"")
    return field(number, b"".join(tag + value for value in encoded))


def ints(*values: int) -> bytes:
    return feature(np.int64, values)


def floats(*values: float) -> bytes:
    return feature(np.float32, values)


def strings(*values: bytes) -> bytes:
    return feature(bytes, values)


def entry(key: str | bytes, value: bytes, value_first: bool = False) -> bytes:
    """An entry of a map, as a field of the map's message."""
    parts = [field(1, key.encode() if isinstance(key, str) else key), field(2, value)]
    return field(1, b"".join(reversed(parts) if value_first else parts))


def example(*entries: tuple[str | bytes, bytes]) -> bytes:
    return field(1, b"".join(entry(*each) for each in entries))


def sequence(
    context: Sequence[tuple[str, bytes]] = (), lists: Sequence[tuple[str, Sequence[bytes]]] = ()
) -> bytes:
    """A SequenceExample of keys and Features, and of keys and lists of Features."""
    features = b"".join(entry(*each) for each in context)
    steps = b"".join(entry(key, b"".join(field(1, step) for step in each)) for key, each in lists)
    return field(1, features) + field(2, steps)
