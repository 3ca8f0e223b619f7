"""The order of a global shuffle: each record once, by seed, epoch and index alone, as random as it should be."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.global_shuffle.order import (
    BlockOrder,
    ExactOrder,
    Numbers,
    cut_blocks,
    groups_for,
    keys_of,
    permute,
)
from tests.effort import draws

SHARDS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 50)), max_size=8)
"""How many records, and the mean of their bytes."""


@st.composite
def block_orders(draw: st.DrawFn) -> BlockOrder:
    groups = draw(st.integers(1, 6))
    shards = draw(SHARDS)
    return block_order(
        [count for count, _ in shards],
        [count * mean for count, mean in shards],
        block_bytes=draw(st.integers(1, 900)),
        seed=draw(st.integers(0, 9)),
        epoch=draw(st.integers(0, 9)),
        unit=groups * draw(st.integers(1, 5)),
        groups=groups,
        window=draw(st.integers(1, 9)),
    )


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
    return BlockOrder(bounds, seed, epoch, unit, groups, window)


def total_of(order: BlockOrder) -> int:
    return int(order.bounds[-1])


@draws(150)
@given(shards=SHARDS, block_bytes=st.integers(1, 900))
def test_blocks_are_cut_at_records_and_shards(shards: list[tuple[int, int]], block_bytes: int) -> None:
    """Each shard is cut into parts of about as many records, and no more of them than its bytes ask for."""
    records = np.array([count for count, _ in shards], np.int64)
    sizes = np.array([count * mean for count, mean in shards], np.int64)
    bounds = cut_blocks(records, sizes, block_bytes)
    assert bounds[-1] == records.sum()
    assert (np.diff(bounds) > 0).all()
    for begin, count, size in zip(np.cumsum(records) - records, records.tolist(), sizes.tolist(), strict=True):
        inside = bounds[(bounds >= begin) & (bounds < begin + count)]
        assert len(inside) == min(-(-size // block_bytes), count)
        assert not count or inside[0] == begin
        parts = np.diff(np.append(inside, begin + count))
        assert not count or parts.max() - parts.min() <= 1


@draws(150)
@given(order=block_orders())
def test_blocks_give_each_record_once(order: BlockOrder) -> None:
    """Over all positions; and a position has the same record whether it is asked for alone or not."""
    total = total_of(order)
    records = order.records(np.arange(total))
    assert sorted(records.tolist()) == list(range(total))
    some = np.arange(total)[:: max(1, total // 5)]
    assert (order.records(some[::-1].copy()) == records[some[::-1]]).all()


@draws(150)
@given(order=block_orders())
def test_a_group_knows_what_each_round_needs(order: BlockOrder) -> None:
    """Of each part it says in which rounds it is needed; rounds follow each other without a gap."""
    positions = []
    for number in range(order.groups):
        group, index = order.group(number), 0
        for each in range(group.rounds):
            part = group.round(each)
            assert part.first == group.begin(each) == index
            assert all(group.first_round(one) <= each <= group.last_round(one) for one in part.parts.tolist())
            assert not len(part.parts) or part.parts.max() < group.parts_until(each)
            assert len({*part.parts.tolist()}) <= order.window
            positions += [order.position(number, index) for index in range(part.first, part.last)]
            assert all(group.round_of(one) == each for one in (part.first, part.last - 1) if part.first < part.last)
            index = part.last
        assert index == group.total
    assert sorted(positions) == list(range(total_of(order)))


def test_another_seed_and_epoch_give_another_order() -> None:
    """Both qualities; and the same ones the same."""
    for one in (lambda s, e: ExactOrder(500, s, e), lambda s, e: block_order([500], [5000], seed=s, epoch=e)):
        orders = {(s, e): tuple(one(s, e).records(np.arange(500)).tolist()) for s in (1, 2) for e in (0, 1)}
        assert len(set(orders.values())) == 4
        assert orders[1, 0] == tuple(one(1, 0).records(np.arange(500)).tolist())


def test_orders_stay() -> None:
    """A job that is resumed with a later release goes on in the same order."""
    assert ExactOrder(10, 7, 3).records(np.arange(10)).tolist() == EXACT
    assert block_order([7, 5], [700, 500], 200, 7, 3, 2, 2, 2).records(np.arange(12)).tolist() == BLOCKS


EXACT = [2, 9, 7, 4, 0, 1, 5, 6, 8, 3]
BLOCKS = [8, 2, 9, 5, 10, 6, 11, 7, 1, 3, 0, 4]


def spread(records: Numbers, cells: int = 10) -> float:
    """Chi-squared of (position, record) over a grid, in standard deviations above what a true permutation gives."""
    size = len(records)
    grid, _, _ = np.histogram2d(np.arange(size), records, bins=cells)
    expected = size / cells**2
    free = (cells - 1) ** 2
    return float((((grid - expected) ** 2 / expected).sum() - free) / np.sqrt(2 * free))


def test_positions_of_records_are_uniform() -> None:
    """Over the whole epoch: of an exact order as of NumPy's permutation; of blocks where they are many."""
    size = 40_000
    true = spread(np.random.default_rng(1).permutation(size))
    exact = [spread(ExactOrder(size, seed, 0).records(np.arange(size))) for seed in range(5)]
    assert abs(true) < 5
    assert max(map(abs, exact)) < 5
    orders = 12
    blocks = np.concatenate(
        [window_records(block_order([4000] * 10, [400_000] * 10, 1000, seed, window=64)) for seed in range(orders)]
    ).reshape(orders, size)
    mean = blocks.mean(0)  # of all orders: each position's mean record is the middle, give or take
    assert abs(mean - size / 2).mean() < 1.2 * size / np.sqrt(12 * orders)


def window_records(order: BlockOrder) -> Numbers:
    """All records of an order of one group, quickly."""
    group = order.group(0)
    rounds = [group.round(number) for number in range(group.rounds)]
    return np.concatenate([group.parts.starts[each.parts] + each.offsets for each in rounds])


def test_neighbours_are_far_apart() -> None:
    """Records of one block share a batch no more often than a window of true random choice has it."""
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
    perms = [permute(np.arange(size), size, keys_of("test", size), variant) for variant in range(count)]
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
