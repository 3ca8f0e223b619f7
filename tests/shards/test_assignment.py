"""Assignment: for any shards and readers, each byte or record once, and loads that differ by little."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.shards.assignment import Portion, ShardSize, assign_bytes, assign_records
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.options import Piece, ShardPlace

SIZES = st.lists(st.one_of(st.just(0), st.integers(1, 2000), st.integers(900_000, 1_000_000)), max_size=40)
READERS = st.integers(1, 40)
COUNTS = st.lists(st.integers(0, 30), max_size=12)


def bytes_of(portions: Iterable[Portion], sizes: dict[str, int]) -> list[tuple[str, int, int]]:
    stretches = []
    for portion in portions:
        start = portion.piece.start if portion.piece else 0
        end = sizes[portion.path] if portion.piece is None or portion.piece.end is None else portion.piece.end
        stretches.append((portion.path, start, end))
    return stretches


@settings(deadline=None)
@given(SIZES, READERS, st.data())
def test_each_byte_goes_to_one_reader_and_loads_are_even(sizes: list[int], readers: int, data: st.DataObject) -> None:
    splittable = data.draw(st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes)))
    shards = [ShardSize(str(n), *pair) for n, pair in enumerate(zip(sizes, splittable, strict=True))]
    known = {shard.path: shard.size for shard in shards}
    plan = [bytes_of(own, known) for own in assign_bytes(shards, readers)]
    assert len(plan) == readers

    stretches = sorted(stretch for own in plan for stretch in own if stretch[1] < stretch[2])
    for shard in shards:
        own = [(start, end) for path, start, end in stretches if path == shard.path]
        assert [start for start, _ in own] == [0, *(end for _, end in own)][: len(own)]
        assert [end for _, end in own][-1:] == ([shard.size] if shard.size else [])
        assert shard.splittable or len(own) <= 1

    mean = sum(sizes) / readers
    loads = [sum(end - start for _, start, end in own) for own in plan]
    indivisible = max((shard.size for shard in shards if not shard.splittable), default=0)
    assert max(loads) <= mean * 1.05 + indivisible + 1
    if not indivisible:
        assert min(loads) >= mean * 0.95 - 1


def test_equal_shards_are_dealt_whole_and_in_turn() -> None:
    plan = assign_bytes([ShardSize(str(n), 100 + n % 3) for n in range(12)], 4)
    assert [[portion.path for portion in own] for own in plan] == [[str(n) for n in range(r, 12, 4)] for r in range(4)]
    assert not any(portion.piece for own in plan for portion in own)


def test_a_cut_near_the_end_of_a_shard_moves_there() -> None:
    plan = assign_bytes([ShardSize("a", 4010), ShardSize("b", 1990)], 3)
    assert [[(portion.path, portion.piece) for portion in own] for own in plan] == [
        [("a", Piece(0, 2000))],
        [("a", Piece(2000, None))],
        [("b", None)],
    ]


def test_sizes_decide_where_turns_would_not_be_fair() -> None:
    plan = assign_bytes([ShardSize("a", 1000), ShardSize("b", 1490), ShardSize("c", 2400)], 2)
    assert [[portion.path for portion in own] for own in plan] == [["c"], ["a", "b"]]


def infos(counts: list[int], apart: int = 0) -> list[ShardInfo]:
    """Shards of records of 10 bytes, with a mark every so many."""
    return [
        ShardInfo(str(n), count, 10 * count, 0, tuple((m, 10 * m) for m in range(apart, count, apart)) if apart else ())
        for n, count in enumerate(counts)
    ]


@settings(deadline=None)
@given(COUNTS, READERS, st.integers(1, 9))
def test_reading_begins_at_the_last_mark(counts: list[int], readers: int, apart: int) -> None:
    for reader in range(readers):
        for portion in assign_records(infos(counts, apart), readers, reader, "pad"):
            assert portion.place == ShardPlace(portion.first // apart * apart * 10, portion.first // apart * apart)
