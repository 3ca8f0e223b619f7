"""Payloads picked from many buffers, back to back in a new one; the twin of gather.c."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamrec.kernels.codes import BytesLike, Int64s
from tests.oracle.kernels.args import bytes_of, int64s, joined, payload_of, spans_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["gather", "objects"]


def gather(buffers: Sequence[BytesLike], sources: Int64s | None, spans: Int64s) -> tuple[Buffer, bytes]:
    """Copies payloads from one or many buffers back to back into a new one.

    Args:
        buffers: The buffers that the payloads lie in.
        sources: int64 [n]: for each record, the index of its buffer. None: there is only one buffer.
        spans: int64 [n, 2]: for each record, start and end of its payload in its buffer. They may overlap.

    Returns:
        buffer: The payloads, one after the other.
        spans: bytes, int64 [n, 2]: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, a source that is none, other numbers of sources and spans.

    >>> import numpy as np
    >>> buffer, spans = gather([b"abcdef", b"uvwxyz"], np.array([1, 0]), np.array([[0, 2], [3, 6]]))
    >>> buffer, np.frombuffer(spans, np.int64).tolist()
    (b'uvdef', [0, 2, 2, 5])
    """
    indexes = None if sources is None else int64s(sources, 1, "None or an int64 array of shape [n]")
    pairs = spans_of(spans)
    contents = [bytes_of(buffer) for buffer in tuple(buffers)]
    if indexes is None and len(contents) != 1:
        raise ValueError(f"sources is None, which is for one buffer; found {len(contents)} buffers")
    if indexes is not None and len(indexes) != len(pairs):
        raise ValueError(f"found {len(indexes)} sources for {len(pairs)} spans")
    payloads = []
    for i, pair in enumerate(pairs):
        source = 0 if indexes is None else int(indexes[i])
        if not 0 <= source < len(contents):
            raise ValueError(f"source {i} is {source}: wanted 0 <= source < {len(contents)}, the number of buffers")
        payloads.append(payload_of(contents[source], i, pair))
    return joined(payloads)


def objects(buffers: Sequence[BytesLike], places: Int64s) -> list[bytes]:
    """Copies each payload to an object of its own.

    Args:
        buffers: What the payloads lie in.
        places: int64 [n, 2], spans in the first buffer; or [n, 4], rows: start, end, `buffer << 32`, and anything.

    Returns:
        The payloads, in order.

    Raises:
        ValueError: A span outside of its buffer, or a buffer that is none.

    >>> import numpy as np
    >>> objects([b"abcdef", b"uvwxyz"], np.array([[1, 3, 1 << 32, 0], [0, 1, 0, 0]]))
    [b'vw', b'a']
    """
    rows = int64s(places, 2, "spans or rows as an int64 array of shape [n, 2] or [n, 4]", most=4).tolist()
    contents = [bytes_of(buffer) for buffer in tuple(buffers)]
    found = []
    for index, (start, end, *rest) in enumerate(rows):
        buffer = rest[0] >> 32 if rest else 0
        if not 0 <= buffer < len(contents) or not 0 <= start <= end <= len(contents[buffer]):
            raise ValueError(f"record {index} does not lie in one of the {len(contents)} buffers")
        found.append(contents[buffer][start:end])
    return found
