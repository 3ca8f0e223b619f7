"""The search for the next record behind a length that cannot be believed. Pure.

What it can tell: twelve bytes that are a header by chance pass once in 2^66 places, and a payload's CRC is 32 bits
more. So what is found was written as a record. What it cannot tell: whether as a record of this shard. Where the
damaged record holds a TFRecord file in its payload, the records of that file are found first, and come as if they were
the shard's; behind the last of them the search goes on, and finds the shard's own. Nothing in the format tells one from
the other.

Rules:
- A header whose payload is not all there is waited for, up to WINDOW bytes. Where it claims more, a whole record within
  what is there is believed instead of it. So a stale length does not hold up the search for a gigabyte; and a
  record of more than WINDOW bytes behind damage is found, if it does not hold whole records itself.
- Nothing is allocated for a length; looking again while bytes arrive costs twice the work of looking once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec import kernels
from streamrec.tfrecord.frames import HEADER_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["WINDOW", "search"]

WINDOW = 16 << 20
"""Bytes that a search waits for a record without looking for another one within it."""


def search(data: Buffer, start: int, max_record_bytes: int, final: bool) -> tuple[int, int]:
    """The next record at or after `start`.

    Args:
        data: All bytes that are there.
        start: The first place that is looked at.
        max_record_bytes: A longer length is none.
        final: No more bytes come: a record that is not whole is none.

    Returns:
        position: Of the record, or of the first byte that must be kept until more come.
        wants: How many bytes from there on must be there. If they are, `position` is a whole good record; else this is
            when to search again. At the end of all bytes with `final`, where there is none.
    """
    size = memoryview(data).nbytes
    position, wants = kernels.find_header(data, start, True, max_record_bytes)
    waiting = position, min(wants, max(WINDOW, 2 * (size - position)))
    if position + wants <= size or not (final or wants > WINDOW):
        return position, wants
    while wants != HEADER_BYTES and position + wants > size:
        position, wants = kernels.find_header(data, position + 1, True, max_record_bytes)
    if wants != HEADER_BYTES:
        return position, wants
    return (size, HEADER_BYTES) if final else waiting
