"""All kernels: wrong arguments raise and leave no buffer locked, the stub is true, threads run at once, copies."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec.kernels
from streamrec import kernels
from streamrec.kernels import LARGE, _native, copy_bytes
from tests.kernels.streams import NO_LIMIT, cut, frame, spans_of

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
    kernels.pad_rows(data, np.array([0, 3]), 4, b".")
    for name, arguments in {
        "crc32c": (data, -1),
        "crc32c_with": ("abacus", data),
        "scan_frames": (data, 9, True, 5),
        "find_header": (data, 9, True, 5),
        "encode_frames": (data, outside),
        "gather": ([data, STRIDED], np.array([0, 0]), spans),
        "pad_rows": (data, np.array([0, 4]), 4, b"."),
    }.items():
        with pytest.raises((ValueError, BufferError)):
            getattr(kernels, name)(*arguments)
    with pytest.raises(TypeError):
        kernels.encode_frames(data, None)
    data.append(0)
    spans.release()


@pytest.mark.parametrize("size", [0, 1, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE])
def test_copies_what_there_is(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    for source in (data, bytearray(data), memoryview(data)):
        room = bytearray(size + 2)
        copy_bytes(memoryview(room)[1:-1], source)
        assert room == b"\0" + data + b"\0"


@pytest.mark.parametrize("size", [5, LARGE + 1])
@pytest.mark.parametrize("other", [0, 1, LARGE])
def test_sizes_that_differ(size: int, other: int) -> None:
    with pytest.raises(ValueError):
        copy_bytes(memoryview(bytearray(size)), bytes(other))


STUB: dict[str, Any] = {}
WRITTEN = Path(streamrec.kernels.__file__).with_name("_native.pyi").read_text()
exec(WRITTEN, STUB)  # its annotations are not computed, as those of this file are not
STUBS = {name for name, value in STUB.items() if inspect.isfunction(value)}
EXAMPLE_ROOM = ("decode_", "encode_examples")
"""What belongs to streamrec.example: wrapped there."""


def parameters(function: Any) -> list[tuple[str, object]]:
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]


def test_the_stub_names_the_native_functions() -> None:
    own = [value for value in vars(_native).values() if getattr(value, "__module__", "") == _native.__name__]
    assert {value.__name__ for value in own if inspect.isroutine(value)} == STUBS


@pytest.mark.parametrize("name", sorted(name for name in STUBS if not name.startswith(EXAMPLE_ROOM)))
def test_the_same_parameters_everywhere(name: str) -> None:
    assert parameters(getattr(_native, name)) == parameters(STUB[name])
    assert getattr(streamrec.kernels, name) is getattr(_native, name)


RECORDS = [np.random.default_rng(size).bytes(size) for size in (0, 3, 84, 680, 5000)]


def test_threads_over_one_buffer_and_over_many() -> None:
    """Each thread scans, gathers and encodes its own stream and the common one."""
    common = b"".join(map(frame, RECORDS)) * 20

    def work(i: int) -> bool:
        payloads = RECORDS[i % 5 :] * 40
        data = b"".join(map(frame, payloads))
        spans, *_ = kernels.scan_frames(data, 0, True, NO_LIMIT)
        common_spans, position, *_ = kernels.scan_frames(common, 0, True, NO_LIMIT)
        buffer, new = kernels.gather([data], None, spans_of(spans))
        return (
            cut(data, spans) == payloads
            and position == len(common)
            and cut(common, common_spans) == RECORDS * 20
            and kernels.encode_frames(buffer, spans_of(new)) == data
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
