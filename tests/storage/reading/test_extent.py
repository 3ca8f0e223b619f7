"""How far a stream is in its object, and how far it goes; without I/O."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.storage.backend import ObjectInfo
from streamrec.storage.stream import Extent

OBJECT_OF_UNKNOWN_SIZE = ObjectInfo("s3://b/x", None, "1")


def object_of_size(size: int) -> ObjectInfo:
    return ObjectInfo("s3://b/x", size, "1")


def wanted_bytes(extent: Extent, nbytes: int) -> int:
    return len(extent.fit(memoryview(bytearray(nbytes))))


def test_a_body_ends_early_only_if_it_is_known_where_it_ends() -> None:
    extent = Extent(OBJECT_OF_UNKNOWN_SIZE, 4, None)
    assert not extent.is_early_end
    assert wanted_bytes(extent, 100) == 100
    extent.learn(object_of_size(10))
    assert extent.is_early_end
    extent.advance(6)
    assert not extent.is_early_end
    assert wanted_bytes(extent, 100) == 0


@pytest.mark.parametrize(("end", "size", "stop"), [(None, 10, 10), (5, 10, 5), (20, 10, 10)])
def test_it_stops_at_its_end_or_that_of_the_object(end: int | None, size: int, stop: int) -> None:
    extent = Extent(OBJECT_OF_UNKNOWN_SIZE, 0, end)
    assert extent.stop is None
    extent.learn(object_of_size(size))
    assert extent.stop == stop


def test_bytes_after_an_end_that_was_cut_on_their_way_are_not_wanted() -> None:
    extent = Extent(object_of_size(100), 0, 50)
    assert wanted_bytes(extent, 30) == 30
    extent.move_end(20)
    assert extent.advance(30) == 20
    assert (extent.position, extent.stop, wanted_bytes(extent, 30)) == (20, 20, 0)


@given(
    size=st.integers(0, 50),
    start=st.integers(0, 50),
    end=st.none() | st.integers(0, 60),
    steps=st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 20))),
)
def test_it_never_passes_its_end(
    size: int, start: int, end: int | None, steps: list[tuple[int, int | None]]
) -> None:
    start = min(start, size)
    extent = Extent(object_of_size(size), start, None if end is None else max(start, end))
    before = start
    for nbytes, ahead in steps:
        given_bytes = min(wanted_bytes(extent, nbytes), size - extent.position)
        if ahead is not None:
            extent.move_end(extent.position + ahead)
        before += extent.advance(given_bytes)
        assert extent.position == before
        assert extent.end is None or extent.position <= extent.end
        stop = size if extent.end is None else min(size, extent.end)
        assert extent.is_early_end == (extent.position < stop)
