"""The order of all records: each record once, blocks that are mixed round by round, and orders that
stay the same in later releases.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.shuffle_quality import accuracy, neighbours, sorted_by_label
from benchmarks.shuffles import SHUFFLES
from streamrec.pipeline.sources.global_shuffle.order import (
    BlockOrder,
    ExactOrder,
    GroupOrder,
    GroupParts,
    Numbers,
    cut_blocks,
    groups_for,
    keys_of,
    permute,
)

SHARDS_OF_RECORDS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=5)
"""The numbers of records of shards, and the bytes of each of their records."""

REAL_SHARDS = st.lists(st.tuples(st.integers(0, 40), st.integers(16, 50)), max_size=5)
"""The same, for what needs shards as they are: a record has 16 bytes at least."""


def specified_blocks(shards: list[tuple[int, int]], block_bytes: int) -> list[int]:
    """The first record of each block, shard by shard."""
    found, first = [], 0
    for records, size in shards:
        blocks = min(-(-records * size // block_bytes), records)
        found += [first + records * number // blocks for number in range(blocks)]
        first += records
    return [*found, first]


@given(shards=SHARDS_OF_RECORDS, block_bytes=st.integers(1, 300))
def test_blocks_are_cut_from_the_table_of_shards(
    shards: list[tuple[int, int]], block_bytes: int
) -> None:
    records = np.array([count for count, _ in shards], np.int64)
    sizes = np.array([count * size for count, size in shards], np.int64)
    found = cut_blocks(records, sizes, block_bytes).tolist()
    assert found == specified_blocks(shards, block_bytes)


def records_in(parts: GroupParts) -> list[int]:
    return [
        record
        for start, count in zip(parts.starts.tolist(), parts.counts.tolist(), strict=True)
        for record in range(start, start + count)
    ]


def parts_of_drawing(text: str) -> GroupParts:
    """The parts of a drawing such as "a a|b b b": each letter is a record of its block."""
    parts = [part.split() for part in text.split("|")]
    starts = []
    seen: dict[str, int] = {}
    for part in parts:
        starts.append(1000 * ord(part[0]) + seen.get(part[0], 0))
        seen[part[0]] = seen.get(part[0], 0) + len(part)
    return GroupParts(np.array(starts), np.array([len(part) for part in parts]))


def drawing_of(parts: GroupParts) -> str:
    """The drawing of parts, by the letters of their blocks."""
    return "|".join(
        " ".join(chr(start // 1000) * count)
        for start, count in zip(parts.starts.tolist(), parts.counts.tolist(), strict=True)
    )


def test_the_drawings_of_the_cuts_are_true() -> None:
    assert cut_blocks(np.array([10, 3]), np.array([1000, 300]), 300).tolist() == [
        *(0, 2, 5, 7),
        *(10, 13),
    ]
    permuted = parts_of_drawing("a a a a a|b b b b|c c c c c c")
    before = np.concatenate([[0], np.cumsum(permuted.counts)])
    assert drawing_of(GroupParts.cut(permuted.starts, before, 3, 12)) == "a a|b b b b|c c c"
    assert (
        drawing_of(parts_of_drawing("a a a a|b b b b|c c c c").rotate(0.25))
        == "a a a|b b b b|c c c c|a"
    )
    tapered = parts_of_drawing("a a a a|b b b b|c c c c|d d d d|e e e e").taper(4)
    assert drawing_of(tapered) == "a|b b|b b|a a a|c c c c|e e e|d d|d d|e"


PARTS = st.lists(st.integers(1, 12), max_size=12)


def parts_of(counts: list[int]) -> GroupParts:
    """Parts of a permutation of blocks: each later one begins before the earlier ones."""
    ends = 1000 - np.cumsum([0, *counts])
    return GroupParts(ends[1:].astype(np.int64), np.array(counts, np.int64))


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=9), data=st.data())
def test_a_group_has_its_range_of_the_records_of_the_permuted_blocks(
    counts: list[int], data: st.DataObject
) -> None:
    blocks = parts_of(counts)
    total = sum(counts)
    first = data.draw(st.integers(0, total))
    last = data.draw(st.integers(first, total))
    before = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    found = GroupParts.cut(blocks.starts, before, first, last)
    assert records_in(found) == records_in(blocks)[first:last]
    assert (found.counts > 0).all()


@given(counts=PARTS, phase=st.floats(0, 1))
def test_rotating_moves_a_share_of_the_first_part_to_the_end(
    counts: list[int], phase: float
) -> None:
    parts = parts_of(counts)
    records = records_in(parts)
    head = int(counts[0] * phase) if counts else 0
    assert records_in(parts.rotate(phase)) == records[head:] + records[:head]
    assert (parts.rotate(phase).counts > 0).all()


@given(counts=PARTS, window=st.integers(1, 9))
def test_tapering_cuts_both_ends_and_loses_no_record(counts: list[int], window: int) -> None:
    parts = parts_of(counts)
    found = parts.taper(window)
    assert sorted(records_in(found)) == sorted(records_in(parts))
    assert (found.counts > 0).all()
    if len(counts) < max(window, 2):
        assert found.counts.tolist() == counts


def test_tapered_parts_grow_and_shrink_by_a_share() -> None:
    """A window of 4: quarters and halves of the blocks at both ends, smaller ones outside."""
    found = parts_of([8] * 6).taper(4)
    assert found.counts.tolist() == [2, 4, 4, 6, 8, 8, 6, 4, 4, 2]
    assert found.starts.tolist() == [992, 984, 988, 994, 976, 968, 954, 964, 960, 952]


@given(counts=PARTS, size=st.integers(1, 6))
def test_each_round_mixes_a_window_of_parts_and_each_record_comes_once(
    counts: list[int], size: int
) -> None:
    order = GroupOrder(parts_of(counts), size, (1, 2, 3))
    rounds = [order.round(number) for number in range(order.rounds)]
    found, before = [], 0
    for number, each in enumerate(rounds):
        assert (each.number, each.first, order.begin(number)) == (number, before, before)
        assert set(each.parts.tolist()) <= set(range(number, order.parts_until(number)))
        assert len(each.parts) == len(each.offsets) == each.last - each.first
        assert all(order.first_round(part) <= number for part in each.parts.tolist())
        assert [order.round_of(index) for index in range(each.first, each.last)] == [number] * len(
            each.parts
        )
        found += (order.parts.starts[each.parts] + each.offsets).tolist()
        before = each.last
    assert order.begin(order.rounds) == order.total == before
    assert sorted(found) == sorted(records_in(order.parts))


def test_a_part_stays_for_as_many_rounds_as_the_window_has_parts() -> None:
    """Each round draws an equal share of its records; fewer rounds share them at both ends."""
    order = GroupOrder(parts_of([12] * 6), 3, ("key",))
    assert order.rounds == 4
    drawn = np.array([np.bincount(order.round(t).parts, minlength=6) for t in range(4)])
    assert drawn.T.tolist() == [
        [12, 0, 0, 0],
        [6, 6, 0, 0],
        [4, 4, 4, 0],
        [0, 4, 4, 4],
        [0, 0, 6, 6],
        [0, 0, 0, 12],
    ]
    assert [order.first_round(part) for part in range(6)] == [0, 0, 0, 1, 2, 3]
    assert [order.parts_until(number) for number in range(5)] == [3, 4, 5, 6, 6]


def test_records_of_a_round_are_permuted() -> None:
    order = GroupOrder(parts_of([100] * 4), 4, (1,))
    only = order.round(0)
    assert only.parts.tolist() != sorted(only.parts.tolist())
    for part in range(4):
        own = only.offsets[only.parts == part].tolist()
        assert own != sorted(own)
        assert sorted(own) == list(range(100))


@given(
    shards=REAL_SHARDS,
    block_bytes=st.integers(1, 200),
    groups=st.integers(1, 4),
    share=st.integers(1, 4),
    window=st.integers(1, 8),
    epoch=st.integers(0, 3),
)
def test_each_position_has_another_record(
    shards: list[tuple[int, int]],
    block_bytes: int,
    groups: int,
    share: int,
    window: int,
    epoch: int,
) -> None:
    records, sizes = [one for one, _ in shards], [one * size for one, size in shards]
    order = block_order(
        records, sizes, block_bytes, epoch=epoch, unit=groups * share, groups=groups, window=window
    )
    placed = int(order.bounds[-1]) if len(order.bounds) > 1 else 0
    found = order.records(np.arange(placed)).tolist()
    assert sorted(found) == list(range(placed))
    picked = np.arange(placed)[::3]
    assert order.records(picked).tolist() == found[::3]


@given(groups=st.integers(1, 5), share=st.integers(1, 5), position=st.integers(0, 1000))
def test_groups_have_slots_of_their_own(groups: int, share: int, position: int) -> None:
    order = block_order([10], [100], unit=groups * share, groups=groups)
    [group], [index] = order.locate(np.array([position]))
    assert group == position % (groups * share) // share
    assert order.position(int(group), int(index)) == position
    own = [p for p in range(position) if p % (groups * share) // share == group]
    assert index == len(own)


def test_orders_depend_on_seed_and_epoch() -> None:
    positions = np.arange(40)
    for make in (
        lambda seed, epoch: ExactOrder(40, seed, epoch),
        lambda seed, epoch: block_order([40], [4000], seed=seed, epoch=epoch),
    ):
        orders = [tuple(make(s, e).records(positions).tolist()) for s in (1, 2) for e in (0, 1)]
        assert len(set(orders)) == 4
        assert all(sorted(order) == positions.tolist() for order in orders)


def block_order(
    records: Sequence[int],
    sizes: Sequence[int],
    block_bytes: int = 100,
    seed: int = 1,
    epoch: int = 0,
    unit: int = 1,
    groups: int = 1,
    window: int = 8,
) -> BlockOrder:
    bounds = cut_blocks(np.array(records, np.int64), np.array(sizes, np.int64), block_bytes)
    return BlockOrder(
        bounds=bounds, seed=seed, epoch=epoch, unit=unit, groups=groups, window=window
    )


def test_orders_stay() -> None:
    """A job that is resumed with a later release goes on in the same order."""
    assert ExactOrder(10, 7, 3).records(np.arange(10)).tolist() == EXACT
    assert (
        block_order([7, 5], [700, 500], 200, 7, 3, 2, 2, 2).records(np.arange(12)).tolist()
        == BLOCKS
    )


EXACT = [2, 9, 7, 4, 0, 1, 5, 6, 8, 3]
BLOCKS = [8, 2, 9, 5, 10, 6, 11, 7, 1, 3, 0, 4]


def window_records(order: BlockOrder) -> Numbers:
    """All records of an order of one group, quickly."""
    group = order.group(0)
    rounds = [group.round(number) for number in range(group.rounds)]
    return np.concatenate([group.parts.starts[each.parts] + each.offsets for each in rounds])


def test_neighbours_are_far_apart() -> None:
    """Records of one block share a batch no more often than a window of true random choice has
    it.
    """
    order = block_order([100_000], [10_000_000], 10_000, window=64)
    blocks = window_records(order) // 100
    batches = blocks[: len(blocks) // 256 * 256].reshape(-1, 256)
    pairs = [int((np.bincount(batch) * (np.bincount(batch) - 1)).sum()) for batch in batches]
    assert np.mean(pairs) < 256 * 255 / 64 * 1.2
    inner = pairs[20:-20]  # both ends mix parts of fewer blocks
    assert np.mean(inner) < 256 * 255 / 64
    assert max(pairs) < 256 * 255 / 64 * 4


@pytest.mark.parametrize("size", [64, 1000, 4096, 5000])
def test_an_exact_order_is_as_random_as_a_permutation(size: int) -> None:
    """Fixed points, ascents and the number of cycles, over many permutations: as of true ones."""
    count = 400
    perms = [
        permute(np.arange(size), size, keys_of("test", size), variant) for variant in range(count)
    ]
    fixed = np.mean([(perm == np.arange(size)).sum() for perm in perms])
    ascents = np.mean([(np.diff(perm) > 0).sum() for perm in perms])
    cycles = np.mean([cycles_of(perm) for perm in perms])
    harmonic = (1 / np.arange(1, size + 1)).sum()
    variance = harmonic - (1 / np.arange(1, size + 1) ** 2).sum()
    assert abs(fixed - 1) < 6 / np.sqrt(count)
    assert abs(ascents - (size - 1) / 2) < 6 * np.sqrt((size + 1) / 12 / count)
    assert abs(cycles - harmonic) < 6 * np.sqrt(variance / count)


def cycles_of(permutation: Numbers) -> int:
    left, cycles = permutation.tolist(), 0
    for start in range(len(left)):
        if left[start] < 0:
            continue
        cycles += 1
        while left[start] >= 0:
            left[start], start = -1, left[start]
    return cycles


def test_groups_are_what_most_numbers_of_ranks_divide() -> None:
    """So that ranks of many numbers read blocks of their own."""
    assert [groups_for(unit) for unit in (1, 6, 48, 768, 1024, 31, 96)] == [1, 6, 24, 24, 16, 1, 24]


RECORDS = 65536
SHARDS = 64
MEMORY = 4096


def test_blocks_train_as_well_as_a_permutation() -> None:
    """Within half a point, where a shuffle buffer of the same memory is far below."""
    data = sorted_by_label(RECORDS, 1)
    found = {
        name: 100 * accuracy(SHUFFLES[name](RECORDS, SHARDS, MEMORY, 1), data, 1)
        for name in ("permutation", "exact", "blocks", "tf.data")
    }
    assert found["exact"] > found["permutation"] - 0.5
    assert found["blocks"] > found["permutation"] - 0.5
    assert found["tf.data"] < found["permutation"] - 5


def test_blocks_are_spread_over_the_epoch() -> None:
    """Where a record lies says next to nothing of when it comes; a buffer moves it by what it
    holds.
    """
    places = np.arange(RECORDS)
    correlated = {
        name: abs(np.corrcoef(SHUFFLES[name](RECORDS, SHARDS, MEMORY, 3), places)[0, 1])
        for name in ("exact", "blocks", "tf.data")
    }
    assert correlated["exact"] < 0.02
    assert correlated["blocks"] < 0.15
    assert correlated["tf.data"] > 0.9
    assert neighbours(np.arange(RECORDS)) == 256
