"""scan_frames and find_header: whole, cut and damaged streams, and lengths beyond measure, as the
oracle has them.
"""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from tests.example.strategies import damaged
from tests.kernels.streams import NO_LIMIT, frame, header, spans_of, stream
from tests.oracle import kernels as oracle

PAYLOADS = [b"", b"a", b"hello", bytes(range(40)), b"\xff" * 7, bytes(30)]
ZERO_CRC = 0x0DE7AA85
"""The only length below 4 GiB with a masked CRC32C of zero."""


def check_kernels(data: bytes, start: int = 0, verify: bool = True, limit: int = NO_LIMIT) -> None:
    for name in ("scan_frames", "find_header"):
        found, wanted = (
            getattr(module, name)(data, start, verify, limit) for module in (kernels, oracle)
        )
        assert found == wanted, (name, start, verify, limit)


def test_spans_are_a_read_only_array_without_a_copy() -> None:
    spans, *_ = kernels.scan_frames(stream(PAYLOADS), 0, True, NO_LIMIT)
    assert type(spans) is bytes
    assert spans_of(spans).shape == (len(PAYLOADS), 2)
    assert not spans_of(spans).flags.writeable


@pytest.mark.parametrize("limit", [30, 1 << 30, NO_LIMIT])
@pytest.mark.parametrize("verify", [True, False])
def test_every_start_cut_and_changed_byte(verify: bool, limit: int) -> None:
    data = bytes(30) + stream(PAYLOADS)
    for place in range(len(data) + 1):
        check_kernels(data, place, verify, limit)
        check_kernels(data[30:place], 0, verify, limit)
        damaged = bytearray(data)
        if place < len(data):
            damaged[place] ^= 0x20
        check_kernels(bytes(damaged), 30, verify, limit)
        check_kernels(bytes(damaged), 0, verify, limit)


@pytest.mark.parametrize("limit", [10, NO_LIMIT, 2**63 - 1])
def test_lengths_beyond_measure(limit: int) -> None:
    """A good CRC over any length: no allocation, no overflow."""
    near = [size - more for size in (2**32, 2**63, 2**64) for more in (1, 12, 16, -4)]
    for length in (11, 2**20, 2**31, 2**40, 2**62 + 1, *(size for size in near if size < 2**64)):
        data = frame(b"0123456789") + header(length) + bytes(40) + frame(b"next")
        for verify in (True, False):
            check_kernels(data, 0, verify, limit)
            check_kernels(data, 1, verify, limit)


def test_more_records_than_the_first_allocation_of_spans() -> None:
    data = frame(b"x") * 5000
    spans, position, *_ = kernels.scan_frames(data, 0, True, NO_LIMIT)
    starts = 12 + 17 * np.arange(5000)
    assert position == len(data)
    np.testing.assert_array_equal(spans_of(spans), np.stack([starts, starts + 1], 1))


@pytest.mark.parametrize("limit", [1 << 30, NO_LIMIT])
@pytest.mark.parametrize("before", [0, 3, 64, 130])
def test_bytes_that_are_nearly_headers(before: int, limit: int) -> None:
    """Zeros are passed over many at a time, and so are eight bytes with their CRC that are no
    length.
    """
    assert header(ZERO_CRC)[8:] == bytes(4)
    word = struct.pack("<Q", 2**50 + 7)
    wrong = word + struct.pack("<I", oracle.masked_crc32c(word))
    for data in (header(ZERO_CRC) + bytes(200), bytes(300) + frame(b""), wrong + frame(b"x" * 200)):
        check_kernels(bytes(before) + data, 0, True, limit)


@pytest.mark.parametrize("filler", [b"\0", b"\xff", b"\0\0\0\1", b"\1\0\0\0\0\0\0\0"])
def test_records_at_every_distance(filler: bytes) -> None:
    """Bytes that are passed over end before the record, in it and after it."""
    for before in range(0, 200, 7):
        check_kernels((filler * before)[:before] + frame(b"found") + (filler * 100)[:90])


pieces = st.lists(
    st.binary(max_size=80)
    | st.binary(max_size=300).map(frame)
    | st.integers(0, 2**64 - 1).map(header)
    | st.integers(0, 400).map(header)
    | st.integers(0, 150).map(bytes)
    | st.just(frame(bytes(700))),
    max_size=8,
)


@given(
    data=pieces.map(b"".join).flatmap(lambda data: damaged(data) | st.just(data)),
    start=st.integers(0, 400),
    verify=st.booleans(),
    limit=st.sampled_from([0, 50, 300, 1 << 30, 2**63 - 1]),
)
def test_native_and_python_scans_agree_on_random_bytes(
    data: bytes, start: int, verify: bool, limit: int
) -> None:
    check_kernels(data, min(start, len(data)), verify, limit)
