"""find_header: at every place, cut at every place, among bytes that are nearly headers."""

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from tests.kernels.streams import NO_LIMIT, frame, header, stream
from tests.oracle import kernels as oracle

LIMIT = 1 << 30
PAYLOADS = [b"", b"a", bytes(70), b"hello", bytes(range(100)), b"\xff" * 7]
limits = pytest.mark.parametrize("limit", [LIMIT, NO_LIMIT])


def starts(payloads: list[bytes]) -> list[int]:
    """Where each record begins, and where the last one ends."""
    return [0, *itertools.accumulate(len(frame(payload)) for payload in payloads)]


@limits
@pytest.mark.parametrize("verify", [True, False])
def test_from_every_place(verify: bool, limit: int) -> None:
    """The next record, or the place that more bytes are wanted from."""
    data, places = stream(PAYLOADS), starts(PAYLOADS)
    for start in range(len(data) + 1):
        place = next((place for place in places[:-1] if place >= start), None)
        expected = (max(start, len(data) - 11), 12)
        if place is not None:
            expected = (place, 16 + len(PAYLOADS[places.index(place)]))
        assert kernels.find_header(data, start, verify, limit) == expected, start


@limits
def test_cut_at_every_place(limit: int) -> None:
    """A header whose payload is not all there is found; one that is not whole is not."""
    data, size = bytes(30) + stream(PAYLOADS), len(PAYLOADS[0]) + 16
    for end in range(len(data) + 1):
        expected = (30, size) if end >= 42 else (max(0, end - 11), 12)
        assert kernels.find_header(data[:end], 0, True, limit) == expected, end


@pytest.mark.parametrize("at", range(len(frame(b"second"))))
def test_a_damaged_record_is_passed_over(at: int) -> None:
    """Unless only its payload is damaged, and that is not asked for."""
    data = bytearray(b"?" + stream([b"second", b"third"]))
    data[1 + at] ^= 0x20
    third = (1 + len(frame(b"second")), len(frame(b"third")))
    assert kernels.find_header(data, 0, True, LIMIT) == third
    assert kernels.find_header(data, 0, False, LIMIT) == ((1, 22) if at >= 12 else third)


@pytest.mark.parametrize("length", [11, 2**31, 2**32, 2**40, 2**63, 2**64 - 1])
def test_a_length_above_the_limit_is_none(length: int) -> None:
    data = header(length) + bytes(40) + frame(b"0123456789")
    assert kernels.find_header(data, 0, True, 10) == (52, 26)
    assert kernels.find_header(data, 0, False, 10) == (52, 26)


@pytest.mark.parametrize("length", [2**20, 2**40, 2**62])
def test_a_length_beyond_the_data_wants_its_bytes(length: int) -> None:
    assert kernels.find_header(bytes(5) + header(length), 0, True, NO_LIMIT) == (5, 16 + length)


def test_a_right_crc_over_a_wrong_length_among_many_places() -> None:
    """Eight bytes and their CRC that are no length stand in the same stretch as a header."""
    word = struct.pack("<Q", 2**50 + 7)
    data = bytes(3) + word + struct.pack("<I", oracle.masked_crc32c(word)) + frame(b"x" * 200)
    assert kernels.find_header(data, 0, True, LIMIT) == (15, 216)


@limits
@pytest.mark.parametrize("before", [0, 3, 64, 130])
def test_the_length_whose_crc_is_zero(limit: int, before: int) -> None:
    """Among zeros, which are passed over elsewhere: the only length below 4 GiB with a masked CRC32C of zero."""
    length = 0x0DE7AA85
    assert header(length)[8:] == bytes(4)
    data = bytes(before) + header(length) + bytes(200)
    assert kernels.find_header(data, 0, True, limit) == (before, 16 + length)
    assert kernels.find_header(bytes(300) + frame(b""), 0, True, limit) == (300, 16)


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\0\0\0\1", b"\1\0\0\0\0\0\0\0"])
def test_at_every_distance(filler: bytes) -> None:
    """Stretches that are passed over end before the record, in it and behind it."""
    record = frame(b"found")
    for before in range(0, 200, 7):
        data = (filler * before)[:before] + record + (filler * 100)[:90]
        assert kernels.find_header(data, 0, True, LIMIT) == (before, len(record)), before


pieces = st.lists(
    st.binary(max_size=80)
    | st.binary(max_size=300).map(frame)
    | st.integers(0, 2**64 - 1).map(header)
    | st.integers(0, 400).map(header)
    | st.integers(0, 150).map(bytes),
    max_size=6,
)


@given(
    parts=pieces,
    flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 7)), max_size=2),
    start=st.integers(0, 400),
    cut=st.integers(0, 100),
    verify=st.booleans(),
    limit=st.sampled_from([0, 50, 300, LIMIT, 2**63 - 1]),
)
def test_any_bytes(
    parts: list[bytes], flips: list[tuple[int, int]], start: int, cut: int, verify: bool, limit: int
) -> None:
    data = bytearray(b"".join(parts))
    for place, bit in flips:
        if data:
            data[place % len(data)] ^= 1 << bit
    del data[max(0, len(data) - cut) :]
    start = min(start, len(data))
    assert kernels.find_header(data, start, verify, limit) == oracle.find_header(bytes(data), start, verify, limit)
