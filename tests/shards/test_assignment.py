"""Assignment: which records each of several readers gets, computed from sizes and counts alone."""

from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.shards.assignment import (
    Even,
    ShardSize,
    assign_bytes,
    assign_records,
    check_even,
    even_count,
)
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.options import Expected, Portion, ShardPlace, ShardRange

counts = st.lists(st.integers(0, 9), max_size=6)
GivenRecords = list[tuple[str, int]]


def shards_of(records: list[int], marks: tuple[tuple[int, int], ...] = ()) -> list[ShardInfo]:
    """Shards "0", "1", ... with these numbers of records, of 100 bytes each."""
    return [
        ShardInfo(str(number), count, 100 * count, None, marks, f"v{number}")
        for number, count in enumerate(records)
    ]


def given_by(portions: list[Portion], records: list[int]) -> GivenRecords:
    """The records that portions give, each as its shard and its number in it."""
    return [
        (portion.path, number)
        for portion in portions
        for number in range(
            portion.first, records[int(portion.path)] if portion.last is None else portion.last
        )
    ]


def every_record(records: list[int]) -> GivenRecords:
    return [(str(shard), number) for shard, count in enumerate(records) for number in range(count)]


@given(records=counts, readers=st.integers(1, 7))
def test_each_record_goes_to_one_reader_and_numbers_differ_by_one(
    records: list[int], readers: int
) -> None:
    shards = shards_of(records)
    plan = [given_by(assign_records(shards, readers, n), records) for n in range(readers)]
    assert [record for own in plan for record in own] == every_record(records)
    lengths = list(map(len, plan))
    assert max(lengths) - min(lengths) <= 1


@given(records=counts, readers=st.integers(1, 7))
def test_drop_gives_each_reader_as_many_and_leaves_out_the_last_records(
    records: list[int], readers: int
) -> None:
    shards, whole = shards_of(records), every_record(records)
    plan = [given_by(assign_records(shards, readers, n, "drop"), records) for n in range(readers)]
    each = len(whole) // readers
    assert [len(own) for own in plan] == [each] * readers
    assert [record for own in plan for record in own] == whole[: each * readers]


@given(records=counts.filter(any), readers=st.integers(1, 7))
def test_pad_gives_each_reader_as_many_and_continues_with_the_first_records(
    records: list[int], readers: int
) -> None:
    shards, whole = shards_of(records), every_record(records)
    plan = [given_by(assign_records(shards, readers, n, "pad"), records) for n in range(readers)]
    each = even_count(len(whole), readers, "pad")
    together = [record for own in plan for record in own]
    assert [len(own) for own in plan] == [each] * readers
    assert together == (whole * -(-len(together) // len(whole)))[: len(together)]
    assert set(together) == set(whole)


@given(records=counts.filter(any), readers=st.integers(1, 7))
def test_cycle_gives_each_record_once_and_no_reader_nothing(
    records: list[int], readers: int
) -> None:
    shards, whole = shards_of(records), every_record(records)
    plan = [given_by(assign_records(shards, readers, n, "cycle"), records) for n in range(readers)]
    assert all(plan)
    times = Counter(record for own in plan for record in own)
    assert set(times) == set(whole)
    if len(whole) >= readers:
        assert set(times.values()) == {1}
    else:  # as with "pad"
        assert plan == [[whole[reader % len(whole)]] for reader in range(readers)]


@pytest.mark.parametrize("even", [None, "drop", "pad", "cycle"])
def test_no_records_give_no_portion(even: Even | None) -> None:
    assert assign_records([], 2, 1, even) == []
    assert assign_records([ShardInfo("a", 0, 0, None)], 2, 0, even) == []


def test_an_empty_compressed_shard_is_read_to_check_that_it_is_empty() -> None:
    """By the readers whose records are before or after it; it holds bytes, but no record."""
    shards = [ShardInfo("a", 2, 200, 0), ShardInfo("b", 0, 20, 0), ShardInfo("c", 2, 200, 0)]
    plan = [[part.path for part in assign_records(shards, 4, reader)] for reader in range(4)]
    assert plan == [["a"], ["a", "b"], ["b", "c"], ["c"]]


def test_a_reader_begins_at_the_last_mark_before_its_first_record() -> None:
    shards = shards_of([10], ((3, 330), (6, 660)))
    found = [assign_records(shards, 5, reader)[0] for reader in range(5)]
    assert [(part.first, part.last) for part in found] == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 8),
        (8, None),
    ]
    assert [part.place for part in found] == [
        ShardPlace(0, 0),
        ShardPlace(0, 0),
        ShardPlace(330, 3),
        ShardPlace(660, 6),
        ShardPlace(660, 6),
    ]


def test_opened_shards_are_compared_with_the_manifest() -> None:
    [part] = assign_records(shards_of([3]), 1, 0, manifest="s3://b/m.json")
    assert part.expected == Expected(size=300, version="v0", records=3, manifest="s3://b/m.json")
    [part] = assign_records(shards_of([3]), 1, 0)
    assert part.expected is None


def test_how_many_records_each_reader_gives() -> None:
    assert [even_count(10, 4, even) for even in ("drop", "pad", "cycle")] == [2, 3, 3]
    assert [even_count(8, 4, even) for even in ("drop", "pad", "cycle")] == [2, 2, 2]


def test_an_unknown_way_to_even_out_is_refused() -> None:
    check_even(None)
    check_even("cycle")
    with pytest.raises(ValueError, match="even is 'fair'"):
        check_even("fair")


def bytes_of(portions: list[Portion], sizes: dict[str, int]) -> GivenRecords:
    """The bytes that portions read, each as its shard and its offset."""
    ranges = [
        (part.path, part.byte_range.start if part.byte_range else 0, part.byte_range)
        for part in portions
    ]
    return [
        (path, offset)
        for path, start, piece in ranges
        for offset in range(start, sizes[path] if piece is None or piece.end is None else piece.end)
    ]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=7),
    readers=st.integers(1, 5),
)
def test_each_byte_goes_to_one_reader(sizes: list[tuple[int, bool]], readers: int) -> None:
    shards = [ShardSize(str(number), size, cut) for number, (size, cut) in enumerate(sizes)]
    lengths = {shard.path: shard.size for shard in shards}
    plan = assign_bytes(shards, readers)
    found = [place for portions in plan for place in bytes_of(portions, lengths)]
    assert len(plan) == readers
    assert sorted(found) == sorted(
        (shard.path, offset) for shard in shards for offset in range(shard.size)
    )
    whole = {shard.path for shard in shards if not shard.splittable}
    assert all(part.byte_range is None for own in plan for part in own if part.path in whole)
    assert all(own == sorted(own, key=lambda part: part.path) for own in plan)


def loads_of(shards: list[ShardSize], readers: int) -> list[int]:
    sizes = {shard.path: shard.size for shard in shards}
    return [len(bytes_of(portions, sizes)) for portions in assign_bytes(shards, readers)]


def test_whole_shards_are_assigned_in_turn_if_that_is_fair() -> None:
    shards = [ShardSize(name, 100) for name in "abcdef"]
    assert [[part.path for part in own] for own in assign_bytes(shards, 3)] == [
        ["a", "d"],
        ["b", "e"],
        ["c", "f"],
    ]


def test_loads_that_differ_by_a_twentieth_of_the_mean_are_not_cut() -> None:
    """At the limit whole shards are assigned; a byte beyond it they are cut."""
    mean, most = 1000, 25
    for beyond in (0, 1):
        shards = [ShardSize("a", mean + most + beyond), ShardSize("b", mean - most - beyond)]
        cut = any(part.byte_range for own in assign_bytes(shards, 2) for part in own)
        assert cut == bool(beyond)


def test_the_largest_shard_goes_to_the_smallest_load() -> None:
    """In turn would be unfair here, and by size it is fair."""
    shards = [ShardSize(name, size) for name, size in zip("abcd", [90, 50, 10, 50], strict=True)]
    assert [[part.path for part in own] for own in assign_bytes(shards, 2)] == [
        ["a", "c"],
        ["b", "d"],
    ]


def test_cuts_even_out_what_compressed_shards_leave_uneven() -> None:
    shards = [ShardSize("z", 300, splittable=False), ShardSize("a", 500), ShardSize("b", 400)]
    assert loads_of(shards, 3) == [400, 400, 400]
    assert loads_of(shards, 4) == [300, 300, 300, 300]


def test_a_compressed_shard_above_the_mean_leaves_the_rest_to_the_others() -> None:
    shards = [ShardSize("z", 1000, splittable=False), ShardSize("a", 300), ShardSize("b", 300)]
    assert loads_of(shards, 4) == [1000, 200, 200, 200]


def test_a_cut_moves_to_the_end_of_a_shard_that_is_near() -> None:
    """Of a mean of 1,000 bytes, the end of a shard 20 bytes away is near, and 21 bytes are not."""
    for distance, expected in ((20, None), (21, ShardRange(0, 1000))):
        first = 1000 + distance
        shards = [ShardSize("a", first), ShardSize("b", 1300), ShardSize("c", 3000 - 1300 - first)]
        assert assign_bytes(shards, 3)[0][0].byte_range == expected


def test_a_piece_is_not_compared_with_the_number_of_all_records() -> None:
    expected = Expected(size=1000, version="v", records=10, manifest="m")
    plan = assign_bytes([ShardSize("a", 1000, expected=expected)], 2)
    assert [part.expected for own in plan for part in own] == [
        Expected(size=1000, version="v", records=None, manifest="m")
    ] * 2
    [[whole]] = assign_bytes([ShardSize("a", 1000, expected=expected)], 1)
    assert whole.expected == expected


def test_portions_follow_each_other_in_the_order_of_shards() -> None:
    shards = [ShardSize("a", 100), ShardSize("z", 50, splittable=False), ShardSize("b", 250)]
    plan = assign_bytes(shards, 2)
    assert [[part.path for part in own] for own in plan] == [["a", "z", "b"], ["b"]]
    ends = list(accumulate(loads_of(shards, 2), initial=0))
    assert ends == [0, 200, 400]
