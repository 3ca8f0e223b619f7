"""A data set that exists as arithmetic: which records a shard has, and its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from streamrec import Frames, encode_records
from streamrec.shards import Portion, ShardInfo
from streamrec.shards.manifest import add_mark

KINDS: Final = 10
"""Kinds of shards, by their number of records; shard `n` is of kind `n % KINDS`."""

SHORTEST: Final = 872
"""Bytes of the shortest record; others have up to 255 more."""

BUCKET: Final = "s3://bucket/"
PATTERN: Final = BUCKET + "train-{shard:06d}.tfrecord"

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shape:
    """A data set that exists as arithmetic.

    Args:
        shards: How many there are: a multiple of KINDS.
        records: How many a shard holds on average; single ones have up to 5 % more or fewer.
    """

    shards: int
    records: int

    @property
    def total(self) -> int:
        return self.shards * self.records

    @cached_property
    def counts(self) -> Numbers:
        off = 2 * (np.arange(self.shards) % KINDS) - KINDS + 1
        return self.records + np.sign(off) * (abs(off) * self.records // (20 * (KINDS - 1)))

    @cached_property
    def firsts(self) -> Numbers:
        """The number of each shard's first record, and the number of records."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def lengths(self) -> Numbers:
        """Those of the records of any shard, as far as it has them."""
        return SHORTEST + 37 * np.arange(int(self.counts.max())) % 256

    @cached_property
    def offsets(self) -> Numbers:
        return np.concatenate([[0], np.cumsum(self.lengths + 16)])

    def path(self, shard: int) -> str:
        return PATTERN.format(shard=shard)

    def size(self, shard: int) -> int:
        return int(self.offsets[self.counts[shard]])

    def data(self, shard: int) -> bytes:
        """The bytes of a shard: each record begins with its number."""
        lengths = self.lengths[: self.counts[shard]]
        ends = np.cumsum(lengths)
        spans = np.stack([ends - lengths, ends], 1)
        payloads = np.zeros(int(ends[-1]), np.uint8)
        numbers = np.arange(self.firsts[shard], self.firsts[shard + 1])
        payloads[spans[:, :1] + np.arange(8)] = numbers.view(np.uint8).reshape(-1, 8)
        return encode_records(Frames(payloads.tobytes(), spans))

    def infos(self) -> Iterator[ShardInfo]:
        """What a writer knows of the shards."""
        marks: list[list[tuple[int, int]]] = [[] for _ in range(KINDS)]
        for kind, own in enumerate(marks):
            for record in range(int(self.counts[kind])):
                add_mark(own, record, int(self.offsets[record]))
        for shard, count in enumerate(self.counts.tolist()):
            size, version = self.size(shard), f'"{shard:x}"'
            yield ShardInfo(self.path(shard), count, size, 0, tuple(marks[shard % KINDS]), version)

    def ranges(self, portions: Iterable[Portion]) -> Numbers:
        """The numbers of the records in portions: int64 [n, 2], first and last (exclusive)."""
        found = []
        for portion in portions:
            shard = shard_of(portion.path)
            count = int(self.counts[shard])
            if portion.byte_range is None:
                bounds = np.array([portion.first, count if portion.last is None else portion.last])
            else:  # its records are those whose frames begin in it
                cut = portion.byte_range
                end = self.size(shard) if cut.end is None else cut.end
                bounds = np.searchsorted(self.offsets[:count], [cut.start, end])
            found.append(self.firsts[shard] + bounds)
        return np.array(found, np.int64).reshape(-1, 2)


def shard_of(name: str) -> int:
    """The shard with this path or key; -1 for other objects.

    >>> shard_of("train-000070.tfrecord"), shard_of("train.index"), shard_of("")
    (70, -1, -1)
    """
    found = re.search(r"train-(\d{6})\.tfrecord$", name)
    return int(found[1]) if found else -1


def numbers_in(batches: Iterable[Frames]) -> Numbers:
    """The numbers of records, which their payloads begin with."""
    found = [np.empty(0, np.int64)]
    for frames in batches:
        data = np.frombuffer(memoryview(frames.buffer), np.uint8)
        found.append(data[frames.spans[:, :1] + np.arange(8)].view("<i8")[:, 0])
    return np.concatenate(found)


def numbers_of(ranges: Iterable[Iterable[int]]) -> Numbers:
    """The numbers in ranges."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*bounds) for bounds in ranges)])


def check(fine: object, what: str) -> None:
    """Ends the simulation where an invariant does not hold."""
    if not fine:
        raise RuntimeError(f"the simulation found an error: {what}")


def check_each_once(ranges: Numbers, total: int, what: str) -> None:
    """Ranges of records must hold each of `total` records once."""
    ranges = ranges[ranges[:, 1] > ranges[:, 0]]
    ordered = ranges[np.argsort(ranges[:, 0])]
    ends = np.concatenate([[0], ordered[:, 1]])
    fine = (ordered[:, 0] == ends[:-1]).all() and ends[-1] == total
    check(fine, f"{what}: not each record once")
