"""Shards with damage at random places, and which records it touched: what the tests of recovery
compare with.

**Touched**: a record of whose bytes, from the first of its header to the last of its footer, at
least one was changed or taken out, or between whose bytes others were put. Bytes put between two
records touch neither of them. Where the same bytes could also have been taken out or put in a
little before or behind (taking one of two equal neighbours), which ones were touched is not
defined; such edits are left out here.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from streamrec import Framer, encode_record

LENGTHS = (0, 1, 3, 11, 12, 40, 200, 900)


@dataclass(frozen=True)
class Edit:
    """From `start` on, `size` bytes are changed, taken out, or put in before it."""

    way: str
    start: int
    size: int


@dataclass(frozen=True)
class Case:
    """A damaged shard, and the records that the damage did not touch, in order."""

    data: bytes
    survivors: list[bytes]
    lost: int


def records_of(rng: np.random.Generator, count: int) -> list[bytes]:
    """Records that are all different, and random: none holds a header but by a chance of 2^-66."""
    return [b"%d." % index + rng.bytes(int(rng.choice(LENGTHS))) for index in range(count)]


def starts_of(records: list[bytes]) -> list[int]:
    return list(itertools.accumulate((len(record) + 16 for record in records), initial=0))


def damaged(records: list[bytes], edits: list[Edit], rng: np.random.Generator) -> Case:
    """The shard of these records after these edits, which may overlap."""
    shard = b"".join(map(encode_record, records))
    starts = starts_of(records)
    touched: set[int] = set()
    changed = bytearray(shard)
    edits = [edit for edit in edits if edit.way != "delete" or _is_definite(shard, edit)]
    for edit in edits:
        if edit.way == "change":
            for place in range(edit.start, min(edit.start + edit.size, len(shard))):
                changed[place] = shard[place] ^ int(rng.integers(1, 256))
        touched.update(i for i in range(len(records)) if _touches(edit, starts[i], starts[i + 1]))
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        if edit.way == "delete":
            del changed[edit.start : edit.start + edit.size]
        elif edit.way == "insert":
            changed[edit.start : edit.start] = _strange(shard, edit, rng)
    survivors = [record for i, record in enumerate(records) if i not in touched]
    return Case(bytes(changed), survivors, len(touched))


def feed(framer: Framer, data: bytes, feeding: str, seed: int = 0) -> Iterator[bytes]:
    """The records of the data, which comes whole, in single bytes, cut anywhere, or cut and through
    `reserve`.
    """
    cuts: Sequence[int] = range(1, len(data)) if feeding == "bytes" else ()
    if feeding in ("cut", "landed"):
        cuts = sorted(np.random.default_rng(seed).integers(0, len(data) + 1, 6).tolist())
    for first, last in zip([0, *cuts], [*cuts, len(data)], strict=True):
        piece = data[first:last]
        if feeding == "landed":
            framer.reserve(len(piece) + 5)[: len(piece)] = piece
            yield from framer.commit(len(piece))
        else:
            yield from framer.feed(piece)


def _is_definite(shard: bytes, edit: Edit) -> bool:
    """Whether taking out other bytes than these leaves another shard."""
    first, last = edit.start, min(edit.start + edit.size, len(shard)) - 1
    return shard[first : first + 1] != shard[last + 1 : last + 2] and (
        first == 0 or shard[first - 1] != shard[last]
    )


def _strange(shard: bytes, edit: Edit, rng: np.random.Generator) -> bytes:
    """Random bytes whose first and last differ from their neighbours to be."""
    data = bytearray(rng.bytes(edit.size))
    before, behind = shard[edit.start - 1], shard[edit.start]
    for place in (0, -1):
        while data[place] in (before, behind):
            data[place] = int(rng.integers(256))
    return bytes(data)


def _touches(edit: Edit, start: int, end: int) -> bool:
    if edit.way == "insert":
        return start < edit.start < end
    return edit.start < end and edit.start + edit.size > start


def random_case(seed: int, payloads_only: bool = False) -> Case:
    """Up to twelve records and three edits; with `payloads_only`, changes that lie behind one
    record's header.
    """
    rng = np.random.default_rng(seed)
    records = records_of(rng, int(rng.integers(1, 13)))
    starts = starts_of(records)
    edits: list[Edit] = []
    for _ in range(int(rng.integers(1, 4))):
        size = int(rng.choice([1, 2, 5, 30, 300]))
        start = int(rng.integers(0, starts[-1]))
        way = str(rng.choice(["change", "delete", "insert"]))
        if payloads_only:
            i = int(rng.integers(0, len(records)))
            start = int(rng.integers(starts[i] + 12, starts[i + 1]))
            way, size = "change", min(size, starts[i + 1] - start)
        if not any(edit.start < start + size and start < edit.start + edit.size for edit in edits):
            edits.append(Edit(way, start, size))
    return damaged(records, edits, rng)
