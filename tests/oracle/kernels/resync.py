"""Finding a record where the last one's end is not known; the twin of resync.c."""

from __future__ import annotations

import sys

from streamrec.kernels.codes import OK, BytesLike
from tests.oracle.kernels.args import bytes_of, integer
from tests.oracle.kernels.checksum import masked_crc32c
from tests.oracle.kernels.frames import HEADER, look_at

__all__ = ["find_header"]


def find_header(data: BytesLike, start: int, verify: bool, max_record_bytes: int) -> tuple[int, int]:
    """Finds the next record where the last one's end is not known, place by place.

    A header is a length of at most `max_record_bytes` and its right CRC: twelve bytes that are none by chance pass
    once in 2^66 places. A record whose payload is not all there is found too, and its CRC left to the caller.

    Args:
        data: Bytes of a TFRecord stream.
        start: Where to begin.
        verify: Whether the payload's CRC must be right too, where the payload is all there.
        max_record_bytes: A longer length is none.

    Returns:
        position: Where the header begins; if there is none, the first place whose twelve bytes are not all there.
        wants: How many bytes from `position` on the record has; 12 if there is no header.

    Raises:
        ValueError: `start` is outside of `data`, or an argument is negative.

    >>> import numpy as np
    >>> from tests.oracle.kernels.frames import encode_frames
    >>> frames = encode_frames(b"helloworld", np.array([[0, 5], [5, 10]]))
    >>> find_header(frames, 1, True, 1000), find_header(frames, 22, True, 1000)
    ((21, 21), (31, 12))
    """
    content = bytes_of(data)
    begin = integer(start, sys.maxsize)
    limit = integer(max_record_bytes, sys.maxsize)
    if begin > len(content):
        raise ValueError(f"start is {begin}, beyond the {len(content)} bytes of data")
    stop = max(begin, len(content) - HEADER.size + 1)
    for position in range(begin, stop):
        length, length_crc = HEADER.unpack_from(content, position)
        if length <= limit and masked_crc32c(content[position : position + 8]) == length_crc:
            code, wants = look_at(content, position, verify, limit)
            if code == OK:
                return position, wants
    return stop, HEADER.size
