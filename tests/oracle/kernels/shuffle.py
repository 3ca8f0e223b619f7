"""The rows of a shuffle buffer, and what they stand for; the twin of shuffle.c."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamrec.kernels.codes import BytesLike, Int64s
from tests.oracle.kernels.args import bytes_of, integer, joined, rows_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["exchange", "pick"]


def exchange(
    slots: Int64s,
    held: int,
    weight: int,
    limit: int,
    incoming: Int64s,
    out: Int64s | None,
    most: int,
    key: int,
    step: int,
    ended: bool,
) -> tuple[int, int, int, int]:
    """Lets rows into a shuffle buffer, and random ones out of it to make room.

    A row stands for an element: int64 start, end, and two more that are the caller's. It weighs end - start + 64.
    The buffer is full for a row when all slots are held, or when its weight and theirs would exceed the limit; but an
    empty buffer takes any row. While it is full, a row goes out: number `random * held >> 64` of those held, where
    random is the number of SplitMix64 (key, step); the last row moves to its place; step grows by one. Then the new row
    comes in, behind the last one.

    Args:
        slots: int64 [n, 4], writable: the rows that are held come first.
        held: How many.
        weight: What they weigh.
        limit: What they may weigh.
        incoming: int64 [m, 4]: the rows that come.
        out: int64 [k, 4], writable: where the rows that go are written; None: nowhere.
        most: How many may go; before one more would have to, it ends.
        key: From 0 to 2**64 - 1.
        step: How many rows went out so far.
        ended: Whether nothing comes behind `incoming`: then all rows go out, as far as `most` allows.

    Returns:
        taken: How many rows came in.
        given: How many went out.
        held, weight: What the slots hold now.

    Raises:
        ValueError: A row that ends before it starts, no slot, more held than there are, or `out` is too small.

    >>> slots, out = np.zeros((2, 4), np.int64), np.zeros((3, 4), np.int64)
    >>> rows = np.array([[0, 1, 0, number] for number in range(3)])
    >>> exchange(slots, 0, 0, 1000, rows, out, 3, 7, 0, False), out[:1, 3].tolist(), slots[:, 3].tolist()
    ((3, 1, 2, 130), [0], [1, 2])
    """
    rows, coming = rows_of(slots, True), rows_of(incoming, False)
    going = None if out is None else rows_of(out, True)
    held, weight, limit = (integer(value, sys.maxsize) for value in (held, weight, limit))
    most, step = integer(most, sys.maxsize), integer(step, sys.maxsize)
    if held > len(rows) or not len(rows):
        raise ValueError(
            f"held is {held} of {len(rows)} slots: wanted at least one slot, and no more held than there are"
        )
    if going is not None and most > len(going):
        raise ValueError(f"most is {most}, beyond the {len(going)} rows of out")
    for index, (start, end, *_) in enumerate(coming.tolist()):
        if not 0 <= start <= end <= sys.maxsize // 2:
            raise ValueError(f"row {index} is [{start}, {end}): wanted 0 <= start <= end")
    given = 0

    def give() -> None:
        nonlocal held, weight, given
        chosen = _random(key, step + given) * held >> 64
        if going is not None:
            going[given] = rows[chosen]
        held, weight, given = held - 1, weight - _weight(rows[chosen]), given + 1
        rows[chosen] = rows[held]

    for taken, row in enumerate(coming):
        while held and (held == len(rows) or weight + _weight(row) > limit):
            if given == most:
                return taken, given, held, weight
            give()
        rows[held] = row
        held, weight = held + 1, weight + _weight(row)
    while ended and held and given < most:
        give()
    return len(coming), given, held, weight


def pick(buffers: Sequence[BytesLike], rows: Int64s) -> tuple[Buffer, Buffer]:
    """Copies the payloads of a shuffle buffer's rows back to back into a new buffer, as `gather` does.

    Args:
        buffers: What the payloads lie in.
        rows: int64 [n, 4]: start and end of each payload, `buffer << 32 | anything`, and anything.

    Returns:
        buffer: The payloads, one after the other.
        spans: int64 [n, 2], as bytes: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, or a buffer that is none.

    >>> pick([b"abcdef", b"uvwxyz"], np.array([[1, 3, 1 << 32, 0], [0, 1, 0, 0]]))[0]
    b'vwa'
    """
    contents = [bytes_of(buffer) for buffer in tuple(buffers)]
    payloads = []
    for index, (start, end, tag, _) in enumerate(rows_of(rows, False).tolist()):
        buffer = tag >> 32
        if not 0 <= buffer < len(contents):
            raise ValueError(f"row {index} lies in buffer {buffer}: wanted 0 <= buffer < {len(contents)}")
        size = len(contents[buffer])
        if not 0 <= start <= end <= size:
            raise ValueError(f"row {index} is [{start}, {end}): wanted 0 <= start <= end <= {size}, its buffer's size")
        payloads.append(contents[buffer][start:end])
    return joined(payloads)


def _weight(row: npt.NDArray[np.int64]) -> int:
    return int(row[1]) - int(row[0]) + 64


def _random(key: int, step: int) -> int:
    """Number `step` of SplitMix64, from 0 to 2**64 - 1."""
    mask = 0xFFFFFFFFFFFFFFFF
    z = (key + (step + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31
