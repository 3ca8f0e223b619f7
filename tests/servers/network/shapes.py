"""Shapes: how a fault changes the body of an answer. Pure arithmetic on offsets, for the store.

Offsets count from the first byte that an honest answer would hold. A shape says which pieces of it are sent,
how many bytes the head promises, and how the answer ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Ending", "Piece", "Shape", "shape"]

Ending = Literal["whole", "reset", "cut", "stall"]


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `stop` (excluded), each XORed with `mask`."""

    start: int
    stop: int
    mask: int = 0


@dataclass(frozen=True)
class Shape:
    """A body as it is sent.

    Args:
        fault: The fault that was done; "" where the one that was drawn has no meaning for this body.
        promised: Content-Length of the head.
        skipped: Bytes left out at the front, which Content-Range must own up to.
        pieces: What is sent, in order.
        ending: How the answer ends after the last piece.
    """

    fault: str
    promised: int
    skipped: int
    pieces: tuple[Piece, ...]
    ending: Ending = "whole"

    @property
    def bytes_sent(self) -> int:
        """Bytes of all pieces together."""
        return sum(piece.stop - piece.start for piece in self.pieces)


def shape(fault: str, at: float, length: int, *, partial: bool) -> Shape:
    """The body of `length` bytes after `fault` at the share `at` of it.

    `partial` says whether the answer is a 206. Faults that are not of the body ("", "ignore_range", ...)
    leave it whole and keep their name.

    >>> shape("reset", 0.5, 10, partial=False)
    Shape(fault='reset', promised=10, skipped=0, pieces=(Piece(start=0, stop=5, mask=0),), ending='reset')
    >>> shape("corrupt", 0.5, 0, partial=False).fault
    ''
    """
    place = int(at * length)
    if fault in ("reset", "cut", "stall", "truncate", "corrupt") and length == 0:
        return Shape("", 0, 0, ())
    if fault == "truncate":
        return Shape(fault, place, 0, (Piece(0, place),))
    if fault == "corrupt":
        return Shape(fault, length, 0, (Piece(0, place), Piece(place, place + 1, 0xFF), Piece(place + 1, length)))
    if fault == "wrong_content_range":
        if not partial or length < 2:
            return Shape("", length, 0, (Piece(0, length),))
        skipped = 1 + int(at * (length - 1))
        return Shape(fault, length - skipped, skipped, (Piece(skipped, length),))
    endings: dict[str, Ending] = {"reset": "reset", "cut": "cut", "stall": "stall"}
    if fault in endings:
        return Shape(fault, length, 0, (Piece(0, place),), endings[fault])
    return Shape(fault, length, 0, (Piece(0, length),))
