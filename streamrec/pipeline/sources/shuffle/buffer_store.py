"""The memory of a shuffle buffer: blocks of elements, from which elements are picked.

Records are never objects here.

Rules:
- A row's TAG is `block << BUFFER_BITS | size`: the block of its element, and a number of the
  caller's (the size of the record in its shard). In a block of records, START and END are the span;
  in others START is the element's index.
- Scattered records share the buffers that they came in: each such buffer is a block, which weighs
  only the records that came so far, since the rest is still in a queue. Later records of the same
  buffer belong to the same block.
- The blocks hold at most about WASTE times the live bytes, or a given number of bytes. Beyond that,
  live elements of the emptiest blocks are copied together, until a part (FREED) of the dead bytes
  is free. Elements leave at random, so these blocks are nearly empty: about one of five records is
  copied once more. Long records may have WASTE times the given number, which is all of the buffer's
  share: images take a tenth less processor time. Short records keep less, so that the blocks fit
  the processor's caches.
- Elements are copied PIECE_BYTES at a time, as much as an arriving chunk, so copying needs and
  reuses little memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.pipeline.elements.chunk import OBJECT_BYTES, SPAN_BYTES, Batches, weigh_one
from streamrec.pipeline.elements.columns import (
    Columns,
    Mixed,
    join_windows,
    leaves,
    map_nest,
    select,
)
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows
from streamrec.tfrecord import BUFFER_BITS, FOOTER_BYTES, HEADER_BYTES, Frames, Scattered, as_spans

START, END, TAG, REFERENCE = range(4)
"""Columns of a row, which describes an element."""

WASTE = 2
LONG_BYTES = 8 << 10
"""Records of at least this mean size are given without a copy.

Records of 1 kB gain nothing by it, and a batch of them would keep more blocks alive.
"""

FREED = 4
"""A quarter of the dead bytes is freed at a time.

Looking at all rows for each chunk costs too much.
"""

PIECE_BYTES = 6 << 20
"""About how large a block of copies is."""

SMALL_BYTES = PIECE_BYTES // 12
Numbers = npt.NDArray[np.int64]


@dataclass(slots=True)
class HeldBlock:
    """A block: a buffer of records, or other elements."""

    content: Any
    is_records: bool
    nbytes: int


class BufferStore:
    """The blocks.

    They may hold `free_bytes` regardless of how many are live; WASTE times that for long records.
    """

    def __init__(self, free_bytes: int = 0) -> None:
        self._free_bytes = free_bytes
        self._blocks: list[HeldBlock | None] = []
        self._free: list[int] = []
        self._others = 0
        self._numbers: dict[int, int] = {}
        self.held_bytes = 0

    def add(self, elements: Any, spans: Numbers) -> int | Numbers:
        """Adds elements with the spans of `spans_of`.

        Returns the TAG of all, or of each, without a size.
        """
        if isinstance(elements, Scattered):
            return self._add_scattered(elements)
        if isinstance(elements, Frames):
            block = HeldBlock(elements.buffer, True, memoryview(elements.buffer).nbytes)
            return self._add(block) << BUFFER_BITS
        content = elements
        if isinstance(elements, Batches):
            content = [batch.trim() for batch in elements]
        block = HeldBlock(content, False, int((spans[:, 1] - spans[:, 0]).sum()))
        return self._add(block) << BUFFER_BITS

    def _add_scattered(self, elements: Scattered) -> Numbers:
        buffers = elements.buffers
        there = elements.places[:, TAG] >> BUFFER_BITS
        framed = elements.lengths + (HEADER_BYTES + FOOTER_BYTES)
        weights = np.bincount(there, framed, len(buffers)).astype(np.int64)
        tags: Numbers = np.zeros(len(buffers), np.int64)
        for index in np.flatnonzero(weights).tolist():
            tags[index] = self._add_part(buffers[index], int(weights[index])) << BUFFER_BITS
        return tags[there]  # type: ignore[no-any-return]

    def _add_part(self, buffer: Any, weight: int) -> int:
        """Adds bytes of a buffer; returns the number of its block."""
        number = self._numbers.get(id(buffer))
        if number is None:
            number = self._numbers[id(buffer)] = self._add(HeldBlock(buffer, True, 0))
        block = self._blocks[number]
        assert block is not None
        block.nbytes += weight
        self.held_bytes += weight
        return number

    def pick(self, rows: Numbers) -> Any:
        """The elements of rows, in order: Frames, Columns or a list."""
        if not self._others:
            nbytes = int((rows[:, END] - rows[:, START]).sum())
            return self._scatter(rows) if are_long(nbytes, len(rows)) else self._gather(rows)
        blocks = rows[:, TAG] >> BUFFER_BITS
        order = np.lexsort((rows[:, START], blocks))
        numbers, firsts = np.unique(blocks[order], return_index=True)
        groups = np.split(order, firsts[1:])
        parts = [
            self._part(number, rows[group])
            for number, group in zip(numbers.tolist(), groups, strict=True)
        ]
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        return arrange(join_windows(parts), places)

    def tidy(self, rows: Numbers, live_bytes: int) -> None:
        """Copies live elements out of the emptiest blocks, and changes their rows.

        `rows` are all live rows.
        """
        free_bytes = self._free_bytes * (WASTE if are_long(live_bytes, len(rows)) else 1)
        limit = max(WASTE * live_bytes, free_bytes)
        count = len(self._blocks) - len(self._free) - self._others
        # Each block costs time in a gather, so many small ones are joined, too.
        crowded = count > 256 and self.held_bytes < count * SMALL_BYTES
        if self.held_bytes <= limit and not crowded:
            return
        numbers = rows[:, TAG] >> BUFFER_BITS
        weights = rows[:, END] - rows[:, START]
        live = np.bincount(numbers, weights=weights, minlength=len(self._blocks)).astype(np.int64)
        # More than the excess, so that this does not come again with the next chunk.
        excess = self.held_bytes - limit
        wanted = excess + (limit - live_bytes) // FREED if excess > 0 else 0
        victims = self._victims(live, wanted, crowded)
        records: list[int] = []
        for number in victims.tolist():
            block = self._blocks[number]
            if block is not None and block.is_records:
                records.append(number)
            elif block is not None and live[number] < block.nbytes:
                self._tidy_others(number, block, rows, numbers == number)
        if records:
            self._tidy_records(np.array(records), live[records], rows, numbers)

    def _victims(self, live: Numbers, wanted: int, crowded: bool) -> Numbers:
        """The blocks whose live elements are copied out, to free about `wanted` bytes.

        The emptiest ones, since they have the fewest bytes to copy (110 kB: 0.2 records for each
        new one). If there are many small ones, these too.
        """
        held = np.array([0 if block is None else block.nbytes for block in self._blocks])
        victims = emptiest(live, held, wanted)
        return np.union1d(victims, np.flatnonzero(held < SMALL_BYTES)) if crowded else victims

    def _tidy_records(
        self, victims: Numbers, live: Numbers, rows: Numbers, numbers: Numbers
    ) -> None:
        """Copies the live records of many blocks into few."""
        pieces = np.full(len(self._blocks), -1)
        pieces[victims] = np.cumsum(live) // PIECE_BYTES
        piece_of = pieces[numbers]
        for piece in np.unique(pieces[victims]).tolist():
            if len(chosen := np.flatnonzero(piece_of == piece)):
                kept = rows[chosen]
                frames = self._gather(kept)
                number = self._add(HeldBlock(frames.buffer, True, memoryview(frames.buffer).nbytes))
                kept[:, : END + 1] = frames.spans
                kept[:, TAG] = number << BUFFER_BITS | kept[:, TAG] & ((1 << BUFFER_BITS) - 1)
                rows[chosen] = kept
            for victim in victims[pieces[victims] == piece].tolist():
                self._drop(victim)

    def _tidy_others(
        self, number: int, block: HeldBlock, rows: Numbers, mask: npt.NDArray[np.bool_]
    ) -> None:
        """Drops the dead elements of one block."""
        chosen = np.flatnonzero(mask)
        if not len(chosen):
            self._drop(number)
            return
        kept = rows[chosen]
        weights = kept[:, END] - kept[:, START]
        elements = select(block.content, kept[:, START])
        # Batches of records may be windows of one buffer, which would stay alive for one of them.
        if type(elements) is list:
            elements = [
                element.compact() if isinstance(element, Frames) else element
                for element in elements
            ]
        self.held_bytes += int(weights.sum()) - block.nbytes
        self._blocks[number] = HeldBlock(elements, False, int(weights.sum()))
        kept[:, START] = np.arange(len(kept))
        kept[:, END] = kept[:, START] + weights
        rows[chosen] = kept

    def _part(self, number: int, rows: Numbers) -> Any:
        block = self._blocks[number]
        assert block is not None
        if block.is_records:
            return Frames(block.content, np.ascontiguousarray(rows[:, : END + 1]))
        return select(block.content, rows[:, START])

    def _gather(self, rows: Numbers) -> Frames:
        """Copies the records of rows into a new buffer."""
        buffers = [
            b"" if block is None or not block.is_records else block.content
            for block in self._blocks
        ]
        buffer, spans = kernels.pick(buffers, rows)
        return Frames(buffer, as_spans(spans))

    def _scatter(self, rows: Numbers) -> Frames:
        numbers, there = np.unique(rows[:, TAG] >> BUFFER_BITS, return_inverse=True)
        kept = rows.copy()
        kept[:, TAG] = there << BUFFER_BITS
        blocks = [self._blocks[number] for number in numbers.tolist()]
        return Scattered([block.content for block in blocks if block is not None], kept)

    def _add(self, block: HeldBlock) -> int:
        self.held_bytes += block.nbytes
        self._others += not block.is_records
        if self._free:
            number = self._free.pop()
            self._blocks[number] = block
            return number
        self._blocks.append(block)
        return len(self._blocks) - 1

    def _drop(self, number: int) -> None:
        block = self._blocks[number]
        assert block is not None
        if self._numbers.get(id(block.content)) == number:
            del self._numbers[id(block.content)]
        self.held_bytes -= block.nbytes
        self._others -= not block.is_records
        self._blocks[number] = None
        self._free.append(number)


def are_long(nbytes: int, count: int) -> bool:
    """Whether records are so long on average that they are given without a copy."""
    return nbytes >= LONG_BYTES * count


def emptiest(live: Numbers, held: Numbers, wanted: int) -> Numbers:
    """The blocks with the smallest live part whose dead bytes sum to at least `wanted`.

    >>> emptiest(np.array([9, 1, 5]), np.array([10, 10, 10]), 12)
    array([1, 2])
    """
    if wanted <= 0:
        return np.empty(0, np.int64)
    order = np.argsort(live / np.maximum(held, 1), kind="stable")
    freed = np.cumsum((held - live)[order])
    return order[: int(np.searchsorted(freed, wanted)) + 1]


def arrange(elements: Any, places: Numbers) -> Any:
    """The elements in another order; records are copied, since joining Frames expects one range."""
    if isinstance(elements, Columns):
        return Columns(map_nest(lambda column: arrange(column, places), elements.nest))
    if isinstance(elements, Frames):
        return elements.take(places).compact()
    return select(elements, places)


def spans_of(elements: Any) -> Numbers:
    """START and END of each element.

    The weights depend only on the elements, not on how they came.
    """
    if isinstance(elements, Frames):
        return elements.places[:, :2]
    weights = weights_of(elements)
    starts = np.arange(len(weights))
    return np.stack([starts, starts + weights], 1)


def weights_of(elements: Any) -> Numbers:
    """About how many bytes each element keeps alive."""
    if isinstance(elements, Columns):
        return np.stack([weights_of(column) for column in leaves(elements.nest)]).sum(0)  # type: ignore[no-any-return]
    if isinstance(elements, Mixed):
        return np.concatenate([weights_of(part) for part in elements.parts])[elements.order]
    if isinstance(elements, Frames):
        return elements.lengths
    if isinstance(elements, np.ndarray) and elements.dtype != object:
        return np.full(
            len(elements), elements.itemsize * int(np.prod(elements.shape[1:])), np.int64
        )
    if isinstance(elements, RaggedRows | SparseRows):
        return elements.row_bytes + OBJECT_BYTES
    return np.array([weight_of(element) for element in elements], np.int64)


def weight_of(element: Any) -> int:
    """About how many bytes one element keeps alive; of records only the payloads."""
    return sum(
        leaf.nbytes + SPAN_BYTES * len(leaf) if isinstance(leaf, Frames) else weigh_one(leaf)
        for leaf in leaves(element)
    )
