"""The count of bytes that all processes of a cache share, and the line that names a process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamrec.storage.cache.runs import parse_head
from streamrec.storage.cache.usage import SPARE_BYTES, Usage, bytes_ahead


@pytest.fixture
def usage(tmp_path: Path) -> Iterator[Usage]:
    root = os.open(tmp_path, os.O_RDONLY)
    found = Usage(root)
    found.measure(lambda: 0)
    yield found
    found.close()
    os.close(root)


def test_a_block_that_does_not_fit_says_how_many_bytes_exceed_the_limit(usage: Usage) -> None:
    assert usage.reserve(100, 1_000) == 0
    assert usage.used() == 100
    assert usage.reserve(950, 1_000) == 50
    assert usage.used() == 100


def test_bytes_reserved_ahead_serve_the_next_block(usage: Usage) -> None:
    limit = 2 * SPARE_BYTES
    assert usage.reserve(1_000, limit) == 0
    assert usage.used() == 1_000 + SPARE_BYTES
    assert usage.reserve(1_000, limit) == 0
    assert usage.used() == 1_000 + SPARE_BYTES  # it was there already
    # All but what is reserved ahead is lacking.
    assert usage.reserve(limit, limit) == 2_000
    usage.settle()
    assert usage.used() == 2_000


def test_returned_bytes_are_kept_up_to_a_limit_and_then_given_back(usage: Usage) -> None:
    assert usage.reserve(5 * SPARE_BYTES, 5 * SPARE_BYTES) == 0
    usage.release(SPARE_BYTES)
    assert usage.used() == 5 * SPARE_BYTES
    usage.release(3 * SPARE_BYTES)
    assert usage.used() == 2 * SPARE_BYTES
    usage.settle()
    assert usage.used() == SPARE_BYTES


def test_removing_what_exceeds_a_limit_makes_no_room_for_the_next_block(usage: Usage) -> None:
    assert usage.reserve(10 * SPARE_BYTES, 11 * SPARE_BYTES) == 0
    usage.settle()
    smaller = 9 * SPARE_BYTES
    usage.free(SPARE_BYTES)
    assert usage.used() == smaller
    assert usage.reserve(1, smaller) == 1


@pytest.mark.parametrize(
    ("head", "found"),
    [('{"pid": 3}', {"pid": 3}), ("[1]", {}), ("7", {}), ("not JSON", {}), ("", {})],
)
def test_a_line_that_names_no_process_is_an_empty_description(
    head: str, found: dict[str, object]
) -> None:
    assert parse_head(head) == found


def test_two_hundred_processes_hold_back_little_of_a_small_limit(tmp_path: Path) -> None:
    limit = 16 << 20
    root = os.open(tmp_path, os.O_RDONLY)
    found = [Usage(root, bytes_ahead(limit)) for _ in range(200)]
    found[0].measure(lambda: 0)
    for usage in found:
        assert usage.reserve(40_000, limit) == 0
        usage.release(20_000)  # the block was shorter
    assert found[0].used() <= 200 * 20_000 + limit * 0.02
    for usage in found:
        usage.close()
    os.close(root)
