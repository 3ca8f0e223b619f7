"""scan_frames: whole, cut and damaged streams; what comes before a bad record; lengths beyond measure."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from streamrec.kernels import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG
from tests.kernels.streams import GOLDEN, NO_LIMIT, cut, frame, header, spans_of, stream
from tests.oracle import kernels as oracle

PAYLOADS = [b"", b"a", b"hello", bytes(range(100)), b"\xff" * 7]
MANIFEST = json.loads((GOLDEN / "manifest.json").read_text())["files"]
PLAIN = sorted(name for name in MANIFEST if name.endswith(".tfrecord"))
payload_lists = st.lists(st.binary(max_size=60) | st.sampled_from([b"", bytes(200), bytes(700)]), max_size=8)


@pytest.mark.parametrize("name", PLAIN)
def test_files_that_tensorflow_wrote(name: str) -> None:
    """Count, lengths and content as TensorFlow has them."""
    data = (GOLDEN / name).read_bytes()
    spans, position, code, wants = kernels.scan_frames(data, 0, True, NO_LIMIT)
    payloads = cut(data, spans)
    expected = MANIFEST[name]
    assert (position, code, wants) == (len(data), OK, 12)
    assert len(payloads) == expected["records"]
    assert [len(payload) for payload in payloads[:64]] == expected["lengths"]
    assert hashlib.sha256(b"".join(payloads)).hexdigest() == expected["sha256_of_concatenated_payloads"]


def test_spans_are_a_read_only_array_without_a_copy() -> None:
    """What the rooms above build on."""
    spans, *_ = kernels.scan_frames(stream(PAYLOADS), 0, True, NO_LIMIT)
    array = spans_of(spans)
    assert type(spans) is bytes
    assert array.shape == (len(PAYLOADS), 2)
    assert not array.flags.writeable


def test_nothing() -> None:
    """An empty buffer, and a start at the end of a full one."""
    data = stream(PAYLOADS)
    assert kernels.scan_frames(b"", 0, True, NO_LIMIT) == (b"", 0, OK, 12)
    assert kernels.scan_frames(data, len(data), True, NO_LIMIT) == (b"", len(data), OK, 12)


def test_cut_at_every_position() -> None:
    """The whole records come, and `wants` is 12 until the header is there, then the record's size."""
    data = stream(PAYLOADS)
    starts = np.cumsum([0] + [len(frame(payload)) for payload in PAYLOADS]).tolist()
    for end in range(len(data) + 1):
        whole = sum(start <= end for start in starts[1:])
        position = starts[whole]
        wants = 16 + len(PAYLOADS[whole]) if end - position >= 12 else 12
        spans, *rest = kernels.scan_frames(data[:end], 0, True, NO_LIMIT)
        assert cut(data, spans) == PAYLOADS[:whole]
        assert rest == [position, OK, wants], end


def test_start_at_each_record() -> None:
    """Spans count from the start of the data, not from `start`."""
    data = stream(PAYLOADS)
    start = 0
    for i, payload in enumerate(PAYLOADS):
        spans, position, *_ = kernels.scan_frames(data, start, True, NO_LIMIT)
        assert cut(data, spans) == PAYLOADS[i:]
        assert position == len(data)
        start += len(frame(payload))


def test_flip_every_byte() -> None:
    """The record that holds the byte is named, with what is wrong; those before it are returned."""
    first, second, third = PAYLOADS[3], PAYLOADS[2], PAYLOADS[1]
    data = stream([first, second, third])
    position = len(frame(first))
    for at in range(len(frame(second))):
        damaged = bytearray(data)
        damaged[position + at] ^= 0x10
        code, wants = (BAD_LENGTH_CRC, 12) if at < 12 else (BAD_PAYLOAD_CRC, len(frame(second)))
        spans, *rest = kernels.scan_frames(damaged, 0, True, NO_LIMIT)
        assert cut(data, spans) == [first]
        assert rest == [position, code, wants], at


def test_verify_false_skips_only_the_payload_crc() -> None:
    """A damaged payload passes; a damaged length never does."""
    data = bytearray(stream([b"hello", b"world"]))
    data[14] ^= 1
    spans, position, code, _ = kernels.scan_frames(data, 0, False, NO_LIMIT)
    assert (len(spans_of(spans)), position, code) == (2, len(data), OK)
    data[8] ^= 1
    assert kernels.scan_frames(data, 0, False, NO_LIMIT) == (b"", 0, BAD_LENGTH_CRC, 12)


def test_a_damaged_record_can_be_stepped_over() -> None:
    """With a bad payload, the next record begins at position + wants."""
    data = bytearray(stream([b"one", b"two", b"three"]))
    data[len(frame(b"one")) + 13] ^= 1
    _, position, code, wants = kernels.scan_frames(data, 0, True, NO_LIMIT)
    assert code == BAD_PAYLOAD_CRC
    spans, *_ = kernels.scan_frames(data, position + wants, True, NO_LIMIT)
    assert cut(bytes(data), spans) == [b"three"]


@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - 16, 2**62 + 1])
def test_the_longest_lengths_that_are_allowed(length: int) -> None:
    """Nothing overflows: the record is not whole, and wants 16 + length."""
    data = frame(b"good") + header(length) + b"some bytes"
    spans, *rest = kernels.scan_frames(data, 0, True, 2**63 - 1)
    assert cut(data, spans) == [b"good"]
    assert rest == [20, OK, 16 + length]


@pytest.mark.parametrize("length", [11, 2**31, 2**32 + 4, 2**63, 2**64 - 16, 2**64 - 12, 2**64 - 1])
def test_lengths_above_the_limit(length: int) -> None:
    """A good CRC over a length beyond measure: a code, no allocation, no overflow."""
    data = frame(b"0123456789") + header(length) + bytes(32)
    spans, *rest = kernels.scan_frames(data, 0, True, 10)
    assert cut(data, spans) == [b"0123456789"]
    assert rest == [26, TOO_LONG, 12]


def test_the_crc_is_checked_before_the_length_is_believed() -> None:
    assert kernels.scan_frames(b"\xff" * 12, 0, True, 10) == (b"", 0, BAD_LENGTH_CRC, 12)


def test_more_records_than_the_first_allocation_of_spans() -> None:
    data = frame(b"x") * 5000
    spans, position, *_ = kernels.scan_frames(data, 0, True, NO_LIMIT)
    starts = 12 + 17 * np.arange(5000)
    assert position == len(data)
    np.testing.assert_array_equal(spans_of(spans), np.stack([starts, starts + 1], 1))


@given(payloads=payload_lists)
def test_round_trip(payloads: list[bytes]) -> None:
    data = stream(payloads)
    spans, position, code, wants = kernels.scan_frames(data, 0, True, NO_LIMIT)
    assert cut(data, spans) == payloads
    assert (position, code, wants) == (len(data), OK, 12)


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    """Records with bytes flipped, taken out, put in or cut off."""
    data = bytearray(stream(draw(payload_lists)))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        way = draw(st.sampled_from(["flip", "insert", "delete", "cut"]))
        if way == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif way == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        elif way == "delete":
            del data[at : at + draw(st.integers(1, 20))]
        elif way == "cut":
            del data[at:]
    return bytes(data)


@given(
    data=damaged_streams() | st.binary(max_size=100),
    start=st.integers(0, 100),
    verify=st.booleans(),
    limit=st.sampled_from([0, 50, 200, 2**63 - 1]),
)
def test_any_bytes(data: bytes, start: int, verify: bool, limit: int) -> None:
    start = min(start, len(data))
    assert kernels.scan_frames(data, start, verify, limit) == oracle.scan_frames(data, start, verify, limit)
