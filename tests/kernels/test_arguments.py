"""Wrong arguments raise, and leave no buffer locked."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from streamrec import kernels

STRIDED = np.arange(20, dtype=np.uint8)[::2]
SPANS = np.array([[0, 1], [1, 2]])
NO_SPANS = [
    (b"\0" * 16, TypeError),  # bytes, not int64
    (SPANS.astype(np.int32), TypeError),
    (SPANS.astype(np.uint64), TypeError),
    (SPANS.astype(np.float64), TypeError),
    (SPANS.astype(">i8"), TypeError),
    ([[0, 1]], TypeError),
    (None, TypeError),
    (SPANS.ravel(), ValueError),
    (np.zeros((2, 3), np.int64), ValueError),
    (np.zeros((1, 2, 2), np.int64), ValueError),
    (np.zeros((), np.int64), ValueError),
    (SPANS[::-1], BufferError),
    (np.asfortranarray(np.zeros((3, 2), np.int64)), BufferError),
]
NO_BYTES = [
    ("text", TypeError),
    (7, TypeError),
    (None, TypeError),
    ([1, 2], TypeError),
    (STRIDED, BufferError),
    (memoryview(b"abcdef")[::-1], BufferError),
]


@pytest.mark.parametrize(("data", "error"), NO_BYTES)
def test_no_bytes(data: Any, error: type[Exception]) -> None:
    calls = {
        "crc32c": (data,),
        "crc32c_with": (kernels.crc32c_implementations()[0], data),
        "masked_crc32c": (data,),
        "scan_frames": (data, 0, True, 100),
        "find_header": (data, 0, True, 100),
        "encode_frames": (data, SPANS),
        "gather": ([b"abc", data], np.array([0, 0]), SPANS),
    }
    for name, arguments in calls.items():
        with pytest.raises(error):
            getattr(kernels, name)(*arguments)


@pytest.mark.parametrize(("spans", "error"), NO_SPANS)
def test_no_spans(spans: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        kernels.gather([b"abc"], None, spans)
    with pytest.raises(error):
        kernels.encode_frames(b"abc", spans)


@pytest.mark.parametrize(
    ("sources", "error"),
    [
        (SPANS, ValueError),
        (np.zeros(2, np.int32), TypeError),
        ([0, 0], TypeError),
        (np.zeros(4, np.int64)[::2], BufferError),
    ],
)
def test_no_sources(sources: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        kernels.gather([b"abc"], sources, SPANS)


@pytest.mark.parametrize("buffers", [7, None, b"abc", [None]])
def test_no_buffers(buffers: Any) -> None:
    """A sequence of bytes-like objects; bytes are a sequence of ints."""
    with pytest.raises(TypeError):
        kernels.gather(buffers, np.array([0, 0]), SPANS)


@pytest.mark.parametrize("crc", [-1, 2**32, 2**64, -(2**70)])
def test_crc_out_of_range(crc: int) -> None:
    with pytest.raises(ValueError, match="from 0 to 4294967295"):
        kernels.crc32c(b"", crc)


@pytest.mark.parametrize(("start", "limit"), [(-1, 9), (4, 9), (2**63, 9), (-(2**80), 9), (0, -1), (0, 2**63)])
def test_scan_out_of_range(start: int, limit: int) -> None:
    """Start lies in the data, the limit in what an int64 holds."""
    with pytest.raises(ValueError):
        kernels.scan_frames(b"abc", start, True, limit)
    with pytest.raises(ValueError):
        kernels.find_header(b"abc", start, True, limit)


@pytest.mark.parametrize("number", [1.0, "1", None])
def test_no_integers(number: Any) -> None:
    for call in (
        partial(kernels.crc32c, b"", number),
        partial(kernels.scan_frames, b"", number, True, 1),
        partial(kernels.scan_frames, b"", 0, True, number),
        partial(kernels.find_header, b"", number, True, 1),
        partial(kernels.find_header, b"", 0, True, number),
    ):
        with pytest.raises(TypeError):
            call()


def test_numpy_integers_and_keywords() -> None:
    """What has __index__ is an integer; every argument has its name."""
    whole = kernels.scan_frames(data=b"", start=np.int64(0), verify=np.True_, max_record_bytes=np.int32(5))
    assert whole == (b"", 0, 0, 12)
    assert kernels.find_header(data=b"", start=np.int64(0), verify=True, max_record_bytes=np.int32(5)) == (0, 12)
    assert kernels.crc32c(data=b"", crc=np.uint32(7)) == 7
    assert kernels.gather(buffers=[b""], sources=None, spans=SPANS[:0]) == (b"", b"")
    assert kernels.encode_frames(buffer=b"", spans=SPANS[:0]) == b""


def test_buffers_are_released() -> None:
    """A bytearray that is exported cannot be resized: after success and after each kind of error it can."""
    data, spans = bytearray(b"abc"), memoryview(bytearray(SPANS.tobytes())).cast("q", (2, 2))
    outside = SPANS + 9
    kernels.crc32c(data)
    kernels.masked_crc32c(data)
    kernels.scan_frames(data, 0, True, 5)
    kernels.find_header(data, 0, True, 5)
    kernels.gather([data], None, spans)
    kernels.encode_frames(data, spans)
    for name, arguments in {
        "crc32c": (data, -1),
        "crc32c_with": ("abacus", data),
        "scan_frames": (data, 9, True, 5),
        "find_header": (data, 9, True, 5),
        "encode_frames": (data, outside),
        "gather": ([data, STRIDED], np.array([0, 0]), spans),
    }.items():
        with pytest.raises((ValueError, BufferError)):
            getattr(kernels, name)(*arguments)
    with pytest.raises(TypeError):
        kernels.encode_frames(data, None)
    data.append(0)
    spans.release()
