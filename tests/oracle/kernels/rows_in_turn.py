"""Rows of records in turn, which stay where they lie; the twin of rows_in_turn.c."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamrec.kernels.codes import Int64s
from tests.oracle.kernels.args import in_turn, int64s, integer

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["rows_in_turn"]


def rows_in_turn(queues: Sequence[Sequence[tuple[Int64s, int]]], block: int) -> Buffer:
    """Says where the records of many queues lie, in turn: `block` of each queue, again and again.

    Args:
        queues: For each queue its parts in order. A part is int64 [n, 2], spans of records in the buffer of that
            number; or int64 [n, 4], rows, whose buffers are numbered from that number on. A queue holds exactly what
            its turns take: the last turn of all may be a shorter one.
        block: Records in a turn, 1 or more.

    Returns:
        int64 [n, 4], as bytes: rows as `pick` takes them, START, END, `buffer << 32`, and what the fourth was, or 0.

    Raises:
        ValueError: A queue that has no record left when its turn comes.

    >>> import numpy as np
    >>> packed = rows_in_turn([[(np.array([[0, 1], [1, 3]]), 0)], [(np.array([[5, 9], [9, 9]]), 1)]], 1)
    >>> [(start, end, tag >> 32) for start, end, tag, _ in np.frombuffer(packed, np.int64).reshape(-1, 4).tolist()]
    [(0, 1, 0), (5, 9, 1), (1, 3, 0), (9, 9, 1)]
    """
    rows = [[row for part in queue for row in _rows(*_part(part))] for queue in map(tuple, queues)]
    return b"".join(row.tobytes() for row in in_turn(rows, block))


def _part(pair: object) -> tuple[Int64s, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"a part is a tuple (places, first), not {type(pair)}")
    return pair


def _rows(places: Int64s, first: int) -> npt.NDArray[np.int64]:
    number = integer(first, 2**31 - 1)
    cells = int64s(places, 2, "spans or rows as an int64 array of shape [n, 2] or [n, 4]", most=4)
    rows = np.zeros((len(cells), 4), np.int64)
    rows[:, : cells.shape[1]] = cells
    rows[:, 2] += number << 32
    return rows
