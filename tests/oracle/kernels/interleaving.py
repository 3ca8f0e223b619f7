"""Payloads of many queues in turn, back to back in a new buffer; the twin of interleave.c."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamrec.kernels.codes import BytesLike, Int64s
from tests.oracle.kernels.args import bytes_of, in_turn, joined, payload_of, spans_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["interleave"]


def interleave(queues: Sequence[Sequence[tuple[BytesLike, Int64s]]], block: int) -> tuple[Buffer, Buffer]:
    """Copies payloads from many queues in turn, back to back into a new buffer: `block` of each queue, again and again.

    Args:
        queues: For each queue its windows in order, each a buffer and int64 [n, 2] spans of payloads in it. A queue
            holds exactly what its turns take: the last turn of all may be a shorter one.
        block: Payloads in a turn, 1 or more.

    Returns:
        buffer: The payloads, one after the other.
        spans: int64 [n, 2], as bytes: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, or a queue that has no record left when its turn comes.

    >>> import numpy as np
    >>> spans = np.array([[0, 1], [1, 3]])
    >>> buffer, _ = interleave([[(b"abc", spans)], [(b"xyz", spans)]], 1)
    >>> buffer
    b'axbcyz'
    """
    payloads = [
        [payload for window in queue for payload in _payloads(*_window(window))] for queue in map(tuple, queues)
    ]
    return joined(in_turn(payloads, block))


def _window(pair: object) -> tuple[BytesLike, Int64s]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"a window is a tuple (buffer, spans), not {type(pair)}")
    return pair


def _payloads(buffer: BytesLike, spans: Int64s) -> list[bytes]:
    content = bytes_of(buffer)
    return [payload_of(content, i, pair) for i, pair in enumerate(spans_of(spans))]
