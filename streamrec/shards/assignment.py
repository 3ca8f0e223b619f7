"""Assignment: the records of each of several readers, so that together they read each record once.

Pure.

Readers are numbered, and each computes the whole plan from the same input, so that they need not
communicate. There are two plans:

`assign_bytes` needs the shards' sizes only.
- It assigns whole shards if that is fair: the largest and the smallest load differ by at most FAIR
  of the mean. It tries them in turn first, as `shards[reader::readers]`; then the largest to the
  reader with the smallest load so far.
- Otherwise it puts uncompressed shards end to end and cuts them where each reader's part ends.
  Compressed shards cannot be cut: they are assigned first, and the cuts even out the loads. A cut
  moves to the end of a shard that is near (SNAP of the mean), so loads are within 2 * SNAP of the
  mean, if no compressed shard is larger than the mean. (A load may also differ by a record, because
  a record begins on one side of a cut.)

`assign_records` needs each shard's number of records, and assigns them exactly: the readers'
numbers of records are equal (`even`), or differ by one. A reader that begins in the middle of a
shard reads from the last mark before its first record, or from the start of a shard without marks,
and drops the records before. So this works for compressed shards too, where each reader reads half
a shard more on average.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import Literal, get_args

from streamrec.arguments import check_choice
from streamrec.display import display_repr
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.options import Expected, Portion, ShardPlace, ShardRange

Even = Literal["pad", "drop", "cycle"]

FAIR = 1 / 20
SNAP = 1 / 50


@display_repr
@dataclass(frozen=True, slots=True)
class ShardSize:
    """A shard before it is opened.

    Only an uncompressed one is splittable; the size is in bytes as stored.

    The opened shard is compared with `expected`.
    """

    path: str
    size: int
    splittable: bool = True
    expected: Expected = field(default=Expected(size=None), compare=False)


def assign_bytes(shards: Sequence[ShardSize], readers: int) -> list[list[Portion]]:
    """Assigns shards, or byte ranges of them, to readers by size; see the top of this file.

    Each reader gets its portions in the shards' order, possibly none.

    Examples:
        >>> plan = assign_bytes([ShardSize("a", 100), ShardSize("b", 200)], 2)
        >>> [(part.path, part.byte_range) for part in plan[1]]
        [('b', ShardRange(start=50, end=None))]
    """
    plan = _assign_whole([shard.size for shard in shards], readers)
    if plan is not None:
        return [[_whole(shards[number]) for number in numbers] for numbers in plan]
    return _cut(shards, readers)


def assign_records(
    shards: Sequence[ShardInfo],
    readers: int,
    reader: int,
    even: Even | None = None,
    manifest: str | None = None,
) -> list[Portion]:
    """One reader's records: a range of the records of all shards, in order.

    Args:
        shards: The shards of a manifest, in order.
        readers, reader: The number of readers, and that of this one.
        even: None: each record once. "drop": `even_count` for each reader; the last records, fewer
            than there are readers, are dropped. "pad": the last readers continue with the first
            records of all, as torch's `DistributedSampler` does. "cycle": each record once; a
            reader with fewer than `even_count` records must repeat its own. A reader without any
            gets the records that "pad" would give it.
        manifest: The manifest's URL: opened shards are compared with it.

    Examples:
        >>> shards = [ShardInfo("a", 3, 100, 0), ShardInfo("b", 4, 120, 0)]
        >>> plan = [assign_records(shards, 2, reader, "pad") for reader in range(2)]
        >>> [[(part.path, part.first, part.last) for part in portions] for portions in plan]
        [[('a', 0, None), ('b', 0, 1)], [('b', 1, None), ('a', 0, 1)]]
    """
    starts = list(accumulate((shard.records for shard in shards), initial=0))
    total = starts[-1]
    first, last = _bounds_of(reader, readers, total, even)
    return [
        portion
        for begin, end in (_wrap(first, last, total) if total else [(0, 0)])
        for portion in _portions_between(shards, starts, begin, end, manifest)
    ]


def divide_portions(
    portions: Sequence[Portion], readers: int, reader: int, even: Even | None = None
) -> list[Portion]:
    """One reader's part of portions whose numbers of records are known.

    Without `even`, readers get whole portions if that divides the records fairly. Otherwise their
    records are equal in number (`even`, as for `assign_records`), or differ by one.

    Examples:
        >>> shards = [Portion(path=name, last=4) for name in "ab"]
        >>> [(part.path, part.first, part.last) for part in divide_portions(shards, 4, 1, "drop")]
        [('a', 2, 4)]
    """
    counts = [count_records([portion]) for portion in portions]
    if even is None and (plan := _assign_whole(counts, readers)) is not None:
        return [portions[number] for number in plan[reader]]
    total = sum(counts)
    first, last = _bounds_of(reader, readers, total, even)
    starts = list(accumulate(counts, initial=0))
    parts: list[Portion] = []
    for begin, end in _wrap(first, last, total) if total else ():
        for portion, start, count in zip(portions, starts, counts, strict=False):
            parts.extend(_part_between(portion, count, begin - start, end - start))
    return parts


def _part_between(portion: Portion, count: int, begin: int, end: int) -> Iterator[Portion]:
    """The records of a portion of `count` from one number on to another; none gives no portion."""
    begin = max(begin, 0)
    end = min(end, count)
    if begin == 0 and end == count and count:
        yield portion
    elif begin < end:
        yield replace(portion, first=portion.first + begin, last=portion.first + end)


def count_records(portions: Iterable[Portion]) -> int:
    """The number of records of portions, each of which has an end, or an expected number."""
    count = 0
    for portion in portions:
        last = portion.last
        if last is None:
            assert portion.expected is not None
            assert portion.expected.records is not None
            last = portion.expected.records
        count += last - portion.first
    return count


def _assign_whole(sizes: Sequence[int], readers: int) -> list[list[int]] | None:
    """The numbers of whole shards for each reader, if that is fair; None if it is not."""
    shards = [ShardSize(str(number), size) for number, size in enumerate(sizes)]
    in_turn = [list(range(reader, len(shards), readers)) for reader in range(readers)]
    for plan in (in_turn, _assign_by_size(shards, range(len(shards)), readers)):
        loads = [sum(sizes[number] for number in numbers) for numbers in plan]
        if (max(loads) - min(loads)) * len(loads) <= FAIR * sum(loads):
            return plan
    return None


def even_count(total: int, readers: int, even: Even) -> int:
    """The number of records that each reader gives, if all give the same number."""
    return total // readers if even == "drop" else -(-total // readers)


def check_even(even: str | None) -> None:
    """Checks the argument `even` of `assign_records`; a ValueError names what is allowed."""
    check_choice("even", even, (*get_args(Even), None))


def _bounds_of(reader: int, readers: int, total: int, even: Even | None) -> tuple[int, int]:
    """The first of one reader's records, and one past the last; it may be beyond the total."""
    if even is None or (even == "cycle" and total >= readers):
        return reader * total // readers, (reader + 1) * total // readers
    each = even_count(total, readers, even)
    return reader * each, (reader + 1) * each


def _assign_by_size(
    shards: Sequence[ShardSize], numbers: Sequence[int], readers: int
) -> list[list[int]]:
    """Assigns whole shards, the largest first, each to the reader with the smallest load so far."""
    assigned: list[list[int]] = [[] for _ in range(readers)]
    loads = [(0, reader) for reader in range(readers)]
    for number in sorted(numbers, key=lambda number: -shards[number].size):
        load, reader = heapq.heappop(loads)
        assigned[reader].append(number)
        heapq.heappush(loads, (load + shards[number].size, reader))
    return [sorted(numbers) for numbers in assigned]


def _cut(shards: Sequence[ShardSize], readers: int) -> list[list[Portion]]:
    """Assigns shards that cannot be cut by size, and cuts the others.

    Those are put end to end, and cut where each reader's part ends.
    """
    whole = _assign_by_size(
        shards, [n for n, shard in enumerate(shards) if not shard.splittable], readers
    )
    line = [number for number, shard in enumerate(shards) if shard.splittable]
    ends = list(accumulate((shards[number].size for number in line), initial=0))
    additions = _level(
        [sum(shards[number].size for number in numbers) for numbers in whole], ends[-1]
    )
    near = SNAP * sum(shard.size for shard in shards) / readers
    cuts = [_snap(round(cut), ends, near) for cut in accumulate(additions, initial=0.0)]
    cuts[-1] = ends[-1]
    plan = []
    for numbers, begin, end in zip(whole, cuts, cuts[1:], strict=False):
        numbered = [(number, _whole(shards[number])) for number in numbers]
        numbered += _ranges(shards, line, ends, begin, end)
        plan.append([portion for _, portion in sorted(numbered, key=itemgetter(0))])
    return plan


def _level(loads: Sequence[int], more: int) -> list[float]:
    """The part of `more` for each load, so that all loads that get a part become equal."""
    rising = sorted(loads)
    below = 0
    for count, load in enumerate(rising, 1):
        below += load
        level = (below + more) / count
        if count == len(rising) or level <= rising[count]:
            break
    return [max(0.0, level - load) for load in loads]


def _snap(cut: int, ends: Sequence[int], near: float) -> int:
    """The end of a shard near a cut; without one, the cut."""
    after = bisect_left(ends, cut)
    nearest = min(ends[max(after - 1, 0) : after + 1], key=lambda end: abs(end - cut), default=cut)
    return nearest if abs(nearest - cut) <= near else cut


def _ranges(
    shards: Sequence[ShardSize], line: Sequence[int], ends: Sequence[int], begin: int, end: int
) -> Iterator[tuple[int, Portion]]:
    """The shards, or byte ranges of them, between two bytes of the line."""
    for index in range(bisect_right(ends, begin) - 1, bisect_left(ends, end)):
        number = line[index]
        start = ends[index]
        stop = ends[index + 1]
        first = max(begin, start) - start
        last = min(end, stop) - start
        if first < last:
            rest = None if last == stop - start else last
            if first == 0 and rest is None:
                yield number, _whole(shards[number])
            else:
                expected = replace(shards[number].expected, records=None)
                part = ShardRange(first, rest)
                yield number, Portion(path=shards[number].path, byte_range=part, expected=expected)


def _whole(shard: ShardSize) -> Portion:
    return Portion(path=shard.path, expected=shard.expected)


def _wrap(first: int, last: int, total: int) -> Iterator[tuple[int, int]]:
    """Splits a range of records that continues at the beginning when it reaches the end."""
    while first < last:
        begin = first % total
        end = min(total, begin + last - first)
        yield begin, end
        first += end - begin


def _portions_between(
    shards: Sequence[ShardInfo], starts: Sequence[int], begin: int, end: int, manifest: str | None
) -> Iterator[Portion]:
    """The records `begin` to `end`, shard by shard.

    `starts` are the numbers of the shards' first ones.
    """
    # Shards without records begin where the next one begins: those at both ends are included.
    first_shard = bisect_left(starts, begin, 1) - 1
    for number in range(first_shard, min(bisect_right(starts, end), len(shards))):
        shard = shards[number]
        start = starts[number]
        first = max(begin - start, 0)
        last = min(end - start, shard.records)
        expected = None
        if manifest is not None:
            expected = Expected(
                size=shard.bytes, version=shard.version, records=shard.records, manifest=manifest
            )
        if first < last:
            marks = ((0, 0), *shard.marks)
            record, byte = marks[bisect_right(marks, first, key=itemgetter(0)) - 1]
            rest = None if last == shard.records else last
            place = ShardPlace(byte, record)
            yield Portion(path=shard.path, first=first, last=rest, place=place, expected=expected)
        elif not shard.records and shard.bytes and begin <= start <= end:
            # A compressed shard without records: reading checks that it is empty.
            yield Portion(path=shard.path, expected=expected)
