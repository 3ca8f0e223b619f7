"""What arguments of kernels may be, and how results with spans are made; the twin of args.c."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from streamrec.kernels.codes import BytesLike, Int64s

__all__ = ["bytes_of", "in_turn", "int64s", "integer", "joined", "packed", "payload_of", "rows_of", "spans_of"]


T = TypeVar("T")


def bytes_of(data: BytesLike) -> bytes:
    """What a C-contiguous buffer holds."""
    return data if type(data) is bytes else _contiguous(_view(data)).tobytes()


def spans_of(value: Int64s) -> list[tuple[int, int]]:
    """The pairs of an int64 array of shape [n, 2]."""
    pairs = int64s(value, 2, "spans as an int64 array of shape [n, 2]")
    return [(start, end) for start, end in pairs.tolist()]


def int64s(value: Int64s, ndim: int, wanted: str, most: int = 2) -> npt.NDArray[np.int64]:
    """A C-contiguous int64 array of so many dimensions, aligned or not; of two, the second has 2, or `most`."""
    view = _view(value)
    shape = view.shape or ()
    right_type = view.itemsize == 8 and view.format in ("l", "q", "=q")  # the last: not aligned
    if not right_type or len(shape) != ndim or (ndim == 2 and shape[1] not in (2, most)):
        message = f"wanted {wanted}, found {len(shape)} dimension(s) of format '{view.format}'"
        raise (ValueError if right_type else TypeError)(message)
    return np.frombuffer(_contiguous(view), np.int64).reshape(shape)


def rows_of(value: Int64s, writable: bool) -> npt.NDArray[np.int64]:
    """The rows of a shuffle buffer: a C-contiguous int64 array of shape [n, 4], whose memory the result shares."""
    view = _view(value)
    if writable and view.readonly:
        raise BufferError("Object is not writable.")
    right_type = view.itemsize == 8 and view.format in ("l", "q")
    if not right_type or view.ndim != 2 or view.shape is None or view.shape[1] != 4 or not view.c_contiguous:
        message = (
            "wanted rows as a C-contiguous int64 array of shape [n, 4], "
            f"found {view.ndim} dimension(s) of format '{view.format}'"
        )
        raise (ValueError if right_type else TypeError)(message)
    return np.frombuffer(view, np.int64).reshape(view.shape)


def integer(value: int, limit: int) -> int:
    """An integer from 0 to a limit."""
    index = operator.index(value)
    if not 0 <= index <= limit:
        raise ValueError(f"wanted an integer from 0 to {limit}, found {index!r}")
    return index


def in_turn(queues: Sequence[Iterable[T]], block: int) -> list[T]:
    """What the queues hold, `block` of each in turn, again and again."""
    if integer(block, sys.maxsize) == 0:
        raise ValueError("block is 0: wanted 1 or more")
    lists = [list(queue) for queue in queues]
    count = sum(map(len, lists))
    ordered: list[T] = []
    for queue in itertools.cycle([iter(held) for held in lists]):
        if len(ordered) == count:
            break
        turn = list(itertools.islice(queue, min(block, count - len(ordered))))
        ordered += turn
        if len(turn) < block and len(ordered) < count:
            raise ValueError(
                f"the queue whose turn it is has no record after {len(ordered)} of {count}: each queue must hold what "
                f"its turns of {block} take"
            )
    return ordered


def payload_of(content: bytes, index: int, pair: tuple[int, int]) -> bytes:
    """What span number `index` stands for."""
    start, end = pair
    if not 0 <= start <= end <= len(content):
        raise ValueError(
            f"span {index} is [{start}, {end}): wanted 0 <= start <= end <= {len(content)}, the buffer's size"
        )
    return content[start:end]


def joined(payloads: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Payloads one after the other, and where each lies: int64 spans, as bytes."""
    ends = np.cumsum([0, *map(len, payloads)])
    return b"".join(payloads), packed(itertools.pairwise(ends))


def packed(spans: Iterable[tuple[int, int]]) -> bytes:
    """Spans as int64 [n, 2], as bytes."""
    return np.array(list(spans), np.int64).tobytes()


def _view(value: Any) -> memoryview:
    try:
        return memoryview(value)
    except TypeError as error:
        raise TypeError(f"a bytes-like object is required, not {type(value)!r}") from error


def _contiguous(view: memoryview) -> memoryview:
    if not view.c_contiguous:
        raise BufferError("the buffer is not C-contiguous; pass np.ascontiguousarray() of it")
    return view
