"""TFRecord's framing: finding the records of a buffer, and writing them; the twin of frames.c.

A TFRecord file is a row of records, each: uint64 length (little-endian), masked CRC32C of those 8 bytes,
payload, masked CRC32C of the payload. Source: tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamrec.kernels.codes import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG, BytesLike, Int64s, Scan
from tests.oracle.kernels.args import bytes_of, integer, packed, payload_of, spans_of
from tests.oracle.kernels.checksum import masked_crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HEADER", "encode_block", "encode_frames", "encode_objects", "look_at", "scan_frames"]

HEADER = struct.Struct("<QI")  # length, masked CRC32C of the length's 8 bytes
FOOTER = struct.Struct("<I")  # masked CRC32C of the payload
FRAME_BYTES = HEADER.size + FOOTER.size


def scan_frames(data: BytesLike, start: int, verify: bool, max_record_bytes: int) -> Scan:
    """Finds the whole records of a buffer, up to its end or to the first bad one.

    Args:
        data: Bytes of a TFRecord stream.
        start: Where in `data` a record's header begins.
        verify: Whether to check the payloads' CRCs. Those of the lengths are always checked.
        max_record_bytes: A longer payload is a bad record.

    Returns:
        spans: bytes, int64 [n, 2]: start and end of each good record's payload, from the start of `data`.
        position: Where the header of the first record begins that is not among them.
        code: `OK`, `BAD_LENGTH_CRC`, `BAD_PAYLOAD_CRC` or `TOO_LONG` (see `codes`): what is at `position`.
        wants: How many bytes from `position` on the next record needs: 12, its header, as long as that is not
            there whole or is bad; then 16 + length. With `BAD_PAYLOAD_CRC`, the size of the damaged record.

    Raises:
        ValueError: `start` is outside of `data`, or an argument is negative.

    >>> import numpy as np
    >>> frames = encode_frames(b"helloworld", np.array([[0, 5], [5, 10]]))
    >>> spans, position, code, wants = scan_frames(frames[:-1], 0, True, 1000)
    >>> np.frombuffer(spans, np.int64).reshape(-1, 2).tolist(), position, code, wants
    ([[12, 17]], 21, 0, 21)
    """
    content = bytes_of(data)
    position = integer(start, sys.maxsize)
    limit = integer(max_record_bytes, sys.maxsize)
    if position > len(content):
        raise ValueError(f"start is {position}, beyond the {len(content)} bytes of data")
    spans: list[tuple[int, int]] = []
    while True:
        code, wants = look_at(content, position, verify, limit)
        if code != OK or position + wants > len(content):
            return packed(spans), position, code, wants
        spans.append((position + HEADER.size, position + wants - FOOTER.size))
        position += wants


def encode_frames(buffer: BytesLike, spans: Int64s) -> bytes:
    """Frames payloads as TFRecord does.

    Args:
        buffer: What the payloads lie in.
        spans: int64 [n, 2]: start and end of each payload in it.

    Returns:
        The n records, one after the other; 16 bytes more each than its payload.

    Raises:
        ValueError: A span outside of the buffer.
    """
    content = bytes_of(buffer)
    return b"".join(_frame(payload_of(content, i, pair)) for i, pair in enumerate(spans_of(spans)))


def encode_block(buffer: BytesLike, spans: Int64s) -> Buffer:
    """As `encode_frames`; in C, many bytes come as a Block."""
    return encode_frames(buffer, spans)


def encode_objects(records: Sequence[bytes]) -> Buffer:
    """Frames records that are objects; in C, many bytes come as a Block.

    Args:
        records: `bytes` each.

    Returns:
        The records, one after the other.

    Raises:
        TypeError: One of them is something else.
    """
    for record in records:
        if not isinstance(record, bytes):
            raise TypeError(f"expected bytes, {type(record).__name__} found")
    return b"".join(map(_frame, records))


def look_at(content: bytes, position: int, verify: bool, limit: int) -> tuple[int, int]:
    """The code of the record whose header begins at `position`, and how many bytes it has or wants."""
    header = content[position : position + HEADER.size]
    if len(header) < HEADER.size:
        return OK, HEADER.size
    length, length_crc = HEADER.unpack(header)
    if masked_crc32c(header[:8]) != length_crc:
        return BAD_LENGTH_CRC, HEADER.size
    if length > limit:
        return TOO_LONG, HEADER.size
    wants = FRAME_BYTES + length
    if verify and position + wants <= len(content):
        end = position + wants - FOOTER.size
        (payload_crc,) = FOOTER.unpack_from(content, end)
        if masked_crc32c(content[position + HEADER.size : end]) != payload_crc:
            return BAD_PAYLOAD_CRC, wants
    return OK, wants


def _frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    header = length + FOOTER.pack(masked_crc32c(length))
    return header + payload + FOOTER.pack(masked_crc32c(payload))
