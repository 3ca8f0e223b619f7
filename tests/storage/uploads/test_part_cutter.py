"""How written bytes are cut into parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.kernels import crc32c
from streamrec.storage import part_cutter
from streamrec.storage.backend import ContentDigest
from streamrec.storage.part_cutter import SHORT_BYTES, PartCutter, UploadPart


def parts_of(pieces: list[bytes], part_size: int, grows: bool = False) -> list[UploadPart]:
    """Cuts pieces as an upload does."""
    cutter = PartCutter(part_size, grows=grows)
    parts = []
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            if cutter.is_full:
                parts.append(cutter.cut())
            rest = cutter.add(rest)
    return [*parts, cutter.cut(last=True)]


def content(part: UploadPart) -> bytes:
    return b"".join(part.pieces)


@given(pieces=st.lists(st.binary(max_size=40)), part_size=st.integers(1, 30))
def test_parts_hold_all_bytes_in_order(pieces: list[bytes], part_size: int) -> None:
    data = b"".join(pieces)
    parts = parts_of(pieces, part_size)
    assert b"".join(map(content, parts)) == data
    assert [part.index for part in parts] == list(range(len(parts)))
    assert [content(part) for part in parts] == [data[part.start : part.end] for part in parts]
    assert all(part.size == part_size for part in parts[:-1])
    assert [part.whole for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].whole == ContentDigest(len(data), crc32c(data))


@given(size=st.integers(0, 100), part_size=st.integers(1, 30))
def test_no_part_is_empty_except_that_of_an_empty_object(size: int, part_size: int) -> None:
    sizes = [part.size for part in parts_of([bytes(size)], part_size)]
    assert all(sizes) or sizes == [0]


def test_long_pieces_are_not_copied_and_short_ones_are_joined() -> None:
    long = bytes(SHORT_BYTES)
    [part] = parts_of([b"a", b"b", long, b"c", b"d"], 4 * SHORT_BYTES)
    assert [len(piece) for piece in part.pieces] == [2, SHORT_BYTES, 2]
    assert part.pieces[1].obj is long


def test_later_parts_grow_if_the_store_limits_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_cutter, "GROWTH_AFTER", 2)
    monkeypatch.setattr(part_cutter, "GROWTH_EVERY", 1)
    assert [part.size for part in parts_of([bytes(100)], 10, grows=True)] == [
        10,
        10,
        10,
        20,
        30,
        20,
    ]
    assert [part.size for part in parts_of([bytes(100)], 10)] == [10] * 10


def test_discarded_bytes_are_not_in_the_next_part() -> None:
    cutter = PartCutter(10)
    cutter.add(memoryview(b"abc"))
    cutter.discard()
    assert cutter.cut().size == 0
