"""Lanes: each position has a record of its own, for any number of readers, which read it once."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.global_shuffle.lane_reading import OwnCells, own_cells
from streamrec.pipeline.sources.global_shuffle.lanes import (
    CLASSES,
    CLASSES_OF_RECORDS,
    LANES,
    LEAST_LANES,
    LaneOrder,
    Lanes,
    class_places,
    lane_block_bytes,
    reading_workers,
    slot_parts,
    times_read,
)
from streamrec.pipeline.sources.global_shuffle.order import cut_blocks
from streamrec.pipeline.sources.global_shuffle.steps import Steps

RECORDS = st.lists(st.integers(0, 700), min_size=1, max_size=5)
BLOCK = st.integers(1, 60) | st.integers(500, 900)
"""With large blocks the order of the cells is not permuted."""


def lane_order(
    records: list[int], block: int, slots: int, classes: int = CLASSES, epoch: int = 0
) -> LaneOrder:
    """An order of shards of these numbers of records, in blocks of about `block` records."""
    counts = np.array(records, np.int64)
    bounds = cut_blocks(counts, counts, block)
    return LaneOrder(bounds=bounds, seed=7, epoch=epoch, lanes=Lanes(slots, classes))


def reader_steps(order: LaneOrder, ranks: int, workers: int, **more: int) -> list[Steps]:
    """The steps of all readers; records that are elements are taken by one rank each."""
    single = order.lanes.classes == CLASSES_OF_RECORDS
    batch = ranks if single else order.lanes.slots
    total = int(order.bounds[-1])
    return [
        Steps(
            total=total,
            batch=batch,
            rank=rank,
            world_size=ranks,
            worker=worker,
            workers=workers,
            **more,
        )
        for rank in range(ranks)
        for worker in range(workers)
    ]


def records_read(own: dict[int, OwnCells]) -> list[int]:
    """The records in all ranges that a reader reads."""
    found = []
    for cells in own.values():
        for part, start in enumerate(cells.lane.parts.starts.tolist()):
            for first, last in cells.ranges(part).tolist():
                assert first < last
                found += range(start + first, start + last)
    return found


def own_positions(steps: Steps) -> list[int]:
    return [
        position
        for step in range(steps.next_own(0), steps.count, steps.workers)
        for position in steps.positions(step).tolist()
    ]


@pytest.mark.parametrize("classes", [24, 2880])
def test_every_nth_step_has_few_ranges(classes: int) -> None:
    """Of 2, 4 and 8 workers each reads one range of a block, of 3 or 6 a few."""
    places = class_places(classes)
    assert sorted(places.tolist()) == list(range(classes))
    ranges = {}
    for readers in (1, 2, 3, 4, 6, 8, 12, 24):
        own = np.sort(places[1 % readers :: readers])
        ranges[readers] = 1 + int((np.diff(own) > 1).sum())
    assert all(ranges[readers] == 1 for readers in (1, 2, 4, 8))
    assert all(ranges[readers] * readers <= classes for readers in ranges)


def test_workers_that_read() -> None:
    """As many as read nothing twice; a job of any size has at least one."""
    for workers in range(1, 100):
        reading = reading_workers(CLASSES, 1, workers)
        assert times_read(CLASSES, reading) == 1
        assert reading <= workers
    assert [reading_workers(CLASSES, 1, workers) for workers in (2, 3, 8, 12)] == [2, 3, 8, 12]
    # With single records as elements, ranks take steps in turn, too.
    assert reading_workers(CLASSES_OF_RECORDS, 64, 8) == 5
    assert times_read(CLASSES_OF_RECORDS, 64) == 1
    assert times_read(CLASSES_OF_RECORDS, 1024) == 16
    assert reading_workers(CLASSES_OF_RECORDS, 1024, 4) == 3


@given(slots=st.integers(1, 20_000))
def test_a_step_is_divided_among_lanes(slots: int) -> None:
    lanes = Lanes(slots, CLASSES)
    shares = np.diff(lanes.edges)
    assert shares.sum() == slots
    assert 1 <= shares.min() <= shares.max() <= shares.min() + 1
    assert LEAST_LANES <= lanes.count <= LANES
    assert CLASSES % lanes.residues == 0
    assert all(1 <= slot_parts(share) <= share for share in shares.tolist())


@given(slots=st.integers(1, 70), total=st.integers(0, 4000))
def test_a_position_has_a_lane_and_an_index_in_it(slots: int, total: int) -> None:
    lanes = Lanes(slots, CLASSES)
    positions = np.arange(total)
    numbers, indices = lanes.locate(positions)
    counts = lanes.totals(total)
    assert np.bincount(numbers, minlength=lanes.count).tolist() == counts.tolist()
    for lane in range(lanes.count):
        assert indices[numbers == lane].tolist() == list(range(counts[lane]))
    for position in positions[:: max(1, total // 20)].tolist():
        assert lanes.position(int(numbers[position]), int(indices[position])) == position


@given(records=RECORDS, block=BLOCK, slots=st.integers(1, 80), epoch=st.integers(0, 2))
def test_each_position_has_another_record(
    records: list[int], block: int, slots: int, epoch: int
) -> None:
    order = lane_order(records, block, slots, epoch=epoch)
    placed = sum(records)
    found = order.records(np.arange(placed)).tolist()
    assert sorted(found) == list(range(placed))
    assert order.records(np.arange(placed)[::-3]).tolist() == found[::-3]


@given(
    records=RECORDS,
    block=BLOCK,
    ranks=st.integers(1, 40),
    share=st.integers(1, 9),
    workers=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]),
)
def test_any_number_of_readers_reads_each_record_once(
    records: list[int], block: int, ranks: int, share: int, workers: int
) -> None:
    """A reader reads the records at its positions, and no others."""
    order = lane_order(records, block, ranks * share)
    found = []
    for steps in reader_steps(order, ranks, workers):
        read = records_read(own_cells(order, steps, steps.next_own(0)))
        wanted = order.records(np.array(own_positions(steps), np.int64)).tolist()
        assert sorted(read) == sorted(wanted)
        found += read
    assert sorted(found) == list(range(sum(records)))


@given(
    records=RECORDS,
    ranks=st.sampled_from([1, 2, 5, 7, 18, 32, 40]),
    workers=st.sampled_from([1, 2, 3]),
)
def test_single_records_are_read_as_often_as_is_said(
    records: list[int], ranks: int, workers: int
) -> None:
    """Once if 2,880 is a multiple of the readers, otherwise more often."""
    order = lane_order(records, 90, 1, CLASSES_OF_RECORDS)
    found = [
        record
        for steps in reader_steps(order, ranks, workers)
        for record in records_read(own_cells(order, steps, steps.next_own(0)))
    ]
    times = times_read(CLASSES_OF_RECORDS, ranks * workers)
    assert len(found) <= times * sum(records)
    assert set(found) == set(range(sum(records)))
    if times == 1:
        assert len(found) == sum(records)


def test_a_resumed_reader_reads_from_its_first_block_on() -> None:
    """Of each lane it reads the block that its next position is in, and those after it."""
    order = lane_order([4000], 50, 64)
    for base in (0, 64 * 20, 64 * 60):
        for steps in reader_steps(order, 4, 2, base=base):
            for number, cells in own_cells(order, steps, steps.next_own(0)).items():
                lanes, indices = order.lanes.locate(np.array(own_positions(steps)))
                assert cells.first == indices[lanes == number].min()


def test_large_jobs_read_large_ranges() -> None:
    """Up to 256 ranks with 32 slots each read one range of a block, or its two ends."""
    order = lane_order([40_000] * 4, 4000, 8192)
    for ranks in (1, 4, 32, 64, 256):
        steps = reader_steps(order, ranks, 1)[ranks // 2]
        for cells in own_cells(order, steps, 0).values():
            for part in range(len(cells.lane.parts)):
                assert len(cells.ranges(part)) <= 2


def test_lanes_change_blocks_at_different_times() -> None:
    """So that blocks are needed one after the other, and not all at once."""
    order = lane_order([40_000], 400, 320)
    ends = sorted(
        order.lanes.position(number, int(order.lane(number).before[1]))
        for number in range(order.lanes.count)
    )
    gaps = [later - earlier for earlier, later in pairwise(ends)]
    lifetime = 400 * order.lanes.count  # of a block, in positions
    assert max(gaps) < lifetime / 5


def test_small_data_sets_are_shuffled_too() -> None:
    """Their blocks are smaller, down to single records."""
    nbytes = 100 * 20
    lanes = Lanes(24, CLASSES)
    block_bytes = lane_block_bytes(4 << 20, nbytes, lanes.count)
    bounds = cut_blocks(np.array([20]), np.array([nbytes]), block_bytes)
    found = LaneOrder(bounds=bounds, seed=7, epoch=0, lanes=lanes).records(np.arange(20))
    assert int(np.abs(np.diff(found)).min()) >= 1
    assert int((np.diff(found) == 1).sum()) <= 3


def test_an_order_depends_on_seed_and_epoch_and_stays() -> None:
    """A job that is resumed with a later version goes on in the same order."""
    for records, block, found in ORDERS:
        order = lane_order(records, block, 2, epoch=3)
        assert order.records(np.arange(12)).tolist() == found
    others = [lane_order([700], 40, 64, epoch=epoch).records(np.arange(700)) for epoch in range(3)]
    assert all(a.tolist() != b.tolist() for a, b in pairwise(others))


ORDERS = [
    ([70, 50], 4, [75, 60, 69, 14, 6, 49, 103, 56, 18, 92, 83, 65]),
    (
        [7000, 500],
        2000,
        [7309, 7449, 3889, 4007, 4327, 4713, 4987, 5221, 5708, 6086, 6281, 6716],
    ),
]
