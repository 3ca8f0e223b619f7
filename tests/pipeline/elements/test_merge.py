"""Records of several chunks in one: copied together, or left where they lie."""

import numpy as np
import pytest

from streamrec import Frames
from streamrec.pipeline.elements.merge import in_turn, merged
from streamrec.tfrecord import SCATTERED_BYTES, Scattered


def lanes_of(size: int) -> list[list[bytes]]:
    """Three lanes of 4, 4 and 2 records of about this size."""
    return [[b"%d/%d" % (lane, index) + bytes(size) for index in range(count)] for lane, count in enumerate((4, 4, 2))]


def scattered(records: list[bytes]) -> Scattered:
    return Scattered.joining([Frames.of([record]) for record in records])


@pytest.mark.parametrize("size", [0, SCATTERED_BYTES])
def test_in_an_order(size: int) -> None:
    first, second, third = lanes_of(size)
    order = np.array([8, 0, 4, 9, 1, 2, 5, 3, 7, 6])
    frames = merged([Frames.of(first), scattered(second), Frames.of(third)], order)
    everything = first + second + third
    assert list(frames) == [everything[index] for index in order]
    assert isinstance(frames, Scattered) == bool(size)


@pytest.mark.parametrize("size", [0, SCATTERED_BYTES])
def test_in_turn(size: int) -> None:
    first, second, third = lanes_of(size)
    windows = [[Frames.of(first[:3]), Frames.of(first[3:])], [scattered(second)], [Frames.of(third)]]
    frames = in_turn(windows, 2)
    assert list(frames) == [*first[:2], *second[:2], *third, *first[2:], *second[2:]]
    assert isinstance(frames, Scattered) == bool(size)


def test_one_of_many_long_records_in_a_buffer_does_not_keep_it_alive() -> None:
    (records, *_) = lanes_of(SCATTERED_BYTES)
    frames = in_turn([[Frames.of(records).window(0, 1)], [Frames.of(records[1:2])]], 1)
    assert frames.pinned == len(records[0]) + len(records[1])
