"""The order of a global shuffle: the same in each release, as random as it should be, and what it does to a model."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.shuffle_quality import accuracy, neighbours, sorted_by_label
from benchmarks.shuffles import SHUFFLES
from streamrec.pipeline.sources.global_shuffle.order import (
    BlockOrder,
    ExactOrder,
    Numbers,
    cut_blocks,
    groups_for,
    keys_of,
    permute,
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


RECORDS, SHARDS, MEMORY = 65536, 64, 4096


@pytest.mark.parametrize("name", SHUFFLES)
def test_each_gives_each_record_once(name: str) -> None:
    """Ours and those of others, as they are simulated."""
    order = SHUFFLES[name](4096, SHARDS, 256, 1)
    assert sorted(order.tolist()) == list(range(4096))


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
    """Where a record lies says next to nothing of when it comes; a buffer moves it by what it holds."""
    places = np.arange(RECORDS)
    correlated = {
        name: abs(np.corrcoef(SHUFFLES[name](RECORDS, SHARDS, MEMORY, 3), places)[0, 1])
        for name in ("exact", "blocks", "tf.data")
    }
    assert correlated["exact"] < 0.02
    assert correlated["blocks"] < 0.15
    assert correlated["tf.data"] > 0.9
    assert neighbours(np.arange(RECORDS)) == 256
