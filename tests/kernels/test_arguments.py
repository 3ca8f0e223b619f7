"""All kernels: wrong arguments raise and leave no buffer locked, the stub is true, threads run at
once, copies.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec.kernels
from streamrec import kernels
from streamrec.kernels import _native, copy_bytes
from tests.kernels.streams import NO_LIMIT, frame, payloads_of, spans_of

BUFFERS = [b"abcdef", b"", bytes(range(256))]
STRIDED = np.arange(20, dtype=np.uint8)[::2]
SPANS = np.array([[0, 1], [1, 2]])
ZEROS, ROW = np.array([0, 0]), np.array([[7, 8, 0, 0]])
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
NO_SOURCES = [
    (SPANS, ValueError),
    (np.zeros(2, np.int32), TypeError),
    ([0, 0], TypeError),
    (np.zeros(4, np.int64)[::2], BufferError),
]
WANTED_SPANS_OR_ROWS = "wanted spans or rows as an int64 array of shape [n, 2] or [n, 4]"
SPANS_OUTSIDE = [
    [-1, 2],
    [0, 7],
    [4, 3],
    [7, 7],
    [-(2**63), 2**63 - 1],
    [2**63 - 1, -(2**63)],
    [0, 2**63 - 1],
]
INTERLEAVE_REFUSALS = [
    ("interleave", [[(b"a", SPANS)]], 0, ValueError, "block is 0: wanted 1 or more"),
    ("interleave", [[(b"a", SPANS)]], -1, ValueError, "wanted an integer from 0"),
    ("interleave", [[b"a"]], 1, TypeError, "a window is a tuple (buffer, spans), not"),
    ("interleave", [[(b"a",)]], 1, TypeError, "a window is a tuple (buffer, spans), not"),
    ("interleave", [[[b"a", SPANS]]], 1, TypeError, "a window is a tuple (buffer, spans), not"),
    ("interleave", [[(b"a", np.array([[0.0, 1.0]]))]], 1, TypeError, "wanted spans"),
    ("interleave", [[("text", SPANS)]], 1, TypeError, "bytes-like"),
    ("interleave", [1], 1, TypeError, ""),
    ("rows_in_turn", [[(SPANS, 0)]], 0, ValueError, "block is 0: wanted 1 or more"),
    ("rows_in_turn", [[b"a"]], 1, TypeError, "a part is a tuple (places, first), not"),
    ("rows_in_turn", [[(SPANS,)]], 1, TypeError, "a part is a tuple (places, first), not"),
    ("rows_in_turn", [[[SPANS, 0]]], 1, TypeError, "a part is a tuple (places, first), not"),
    ("rows_in_turn", [[(SPANS, -1)]], 1, ValueError, "wanted an integer from 0 to 2147483647"),
    ("rows_in_turn", [[(SPANS, 2**31)]], 1, ValueError, "wanted an integer from 0 to 2147483647"),
    ("rows_in_turn", [[(np.zeros((1, 3), np.int64), 0)]], 1, ValueError, WANTED_SPANS_OR_ROWS),
    ("rows_in_turn", [[(np.zeros(4, np.int64), 0)]], 1, ValueError, WANTED_SPANS_OR_ROWS),
    ("rows_in_turn", [[(np.zeros((1, 4)), 0)]], 1, TypeError, "wanted spans or rows"),
    (
        "rows_in_turn",
        [[(np.zeros((4, 4), np.int64)[:, :2], 0)]],
        1,
        BufferError,
        "not C-contiguous",
    ),
]
NOT_PERMUTED = [
    ([0, 5], [5], [0], [1, 2]),
    ([-1], [5], [0], [1, 2]),
    ([0], [0], [0], [1, 2]),
    ([0], [2**62 + 1], [0], [1, 2]),
    ([0], [5], [0], [1]),
    ([0], [5], [0], [1] * 66),
    ([0, 1, 2], [5, 5], [0], [1, 2]),
    ([0, 1, 2], [5], [0, 0], [1, 2]),
]


def exchange_arguments(**changed: Any) -> tuple[Any, ...]:
    slots, names = (
        np.zeros((3, 4), np.int64),
        "slots held weight limit incoming out most key step ended",
    )
    usual = dict(zip(names.split(), (slots, 0, 0, 1 << 40, ROW, None, 9, 5, 0, False), strict=True))
    return tuple({**usual, **changed}.values())


def refusals() -> Iterator[tuple[str, tuple[Any, ...], Any, str]]:
    """A function, arguments, and the error with some of its words."""
    for data, error in NO_BYTES:
        yield "crc32c", (data,), error, ""
        yield "crc32c_with", (kernels.crc32c_implementations()[0], data), error, ""
        yield "masked_crc32c", (data,), error, ""
        yield "scan_frames", (data, 0, True, 100), error, ""
        yield "find_header", (data, 0, True, 100), error, ""
        yield "encode_frames", (data, SPANS), error, ""
        yield "gather", ([b"abc", data], ZEROS, SPANS), error, ""
    for spans, error in NO_SPANS:
        yield "gather", ([b"abc"], None, spans), error, ""
        yield "encode_frames", (b"abc", spans), error, ""
    for sources, error in NO_SOURCES:
        yield "gather", ([b"abc"], sources, SPANS), error, ""
    for buffers in (7, None, b"abc", [None]):  # bytes are a sequence of ints
        yield "gather", (buffers, ZEROS, SPANS), TypeError, ""
    for crc in (-1, 2**32, 2**64, -(2**70)):
        yield "crc32c", (b"", crc), ValueError, "from 0 to 4294967295"
    for start, limit in ((-1, 9), (4, 9), (2**63, 9), (-(2**80), 9), (0, -1), (0, 2**63)):
        yield "scan_frames", (b"abc", start, True, limit), ValueError, ""
        yield "find_header", (b"abc", start, True, limit), ValueError, ""
    for number in (1.0, "1", None):
        yield "crc32c", (b"", number), TypeError, ""
        for name in ("scan_frames", "find_header"):
            yield name, (b"", number, True, 1), TypeError, ""
            yield name, (b"", 0, True, number), TypeError, ""
    yield "crc32c_with", ("abacus", b""), ValueError, "no CRC32C implementation abacus"
    yield "allocate", (-1,), ValueError, "size is -1: wanted 0 or more"
    yield "allocate", ("many",), TypeError, ""
    for span in SPANS_OUTSIDE:
        spans, words = (
            np.array([[0, 6], span]),
            f"1 is [{span[0]}, {span[1]}): wanted 0 <= start <= end <= 6",
        )
        yield "gather", ([b"abcdef"], None, spans), ValueError, f"span {words}, the buffer's size"
        yield "gather", (BUFFERS, ZEROS, spans), ValueError, f"span {words}, the buffer's size"
        yield "encode_frames", (b"abcdef", spans), ValueError, f"span {words}, the buffer's size"
        yield (
            "interleave",
            ([[(b"a", SPANS[:1])], [(b"abcdef", spans)]], 1),
            ValueError,
            f"span {words}",
        )
        yield (
            "pick",
            (BUFFERS, np.hstack([spans, SPANS * 0])),
            ValueError,
            f"row {words}, its buffer",
        )
        yield "objects", (BUFFERS, spans), ValueError, "record 1 does not lie"
    for source in (-1, 3, 2**63 - 1, -(2**63)):
        words = f"source 1 is {source}: wanted 0 <= source < 3"
        yield "gather", (BUFFERS, np.array([0, source]), SPANS), ValueError, words
    for buffer in (-1, 3):
        row, words = (
            np.array([[0, 0, buffer << 32, 0]]),
            f"row 0 lies in buffer {buffer}: wanted 0 <= buffer < 3",
        )
        yield "pick", (BUFFERS, row), ValueError, words
    yield "objects", (BUFFERS, np.array([[0, 0, 3 << 32, 0]])), ValueError, "record 0 does not lie"
    yield "gather", (BUFFERS, None, SPANS[:0]), ValueError, "found 3 buffers"
    yield "gather", ([], None, SPANS[:0]), ValueError, "found 0 buffers"
    yield "gather", (BUFFERS, ZEROS[:1], SPANS), ValueError, "found 1 sources for 2 spans"
    for splits in (
        [0, 7],
        [-1, 2],
        [0, 2, 1],
        [0, 5],
        [2**63 - 1, -(2**63)],
        [-(2**63), 2**63 - 1],
    ):
        words = (
            f"row {len(splits) - 2} is [{splits[-2]}, {splits[-1]}): wanted up to 4 of 6 elements"
        )
        yield "pad_rows", (b"abcdef", np.array(splits), 4, b"."), ValueError, words
    for size, fill in ((0, b"."), (2, b""), (2, b"..")):
        words = "wanted at least one split, and whole elements"
        yield "pad_rows", (b"abc", np.arange(size), 4, fill), ValueError, words
    for splits in ([0, 1], np.zeros(2, np.int32), None):
        yield "pad_rows", (b"abc", splits, 4, b"."), TypeError, ""
    yield (
        "pad_rows",
        (b"", np.zeros(4, np.int64), 2**62, bytes(8)),
        MemoryError,
        "",
    )  # the size overflows
    for name, queues, block, error, words in INTERLEAVE_REFUSALS:
        yield name, (queues, block), error, words
    yield "exchange", exchange_arguments(held=4), ValueError, "held is 4 of 3 slots"
    yield "exchange", exchange_arguments(slots=ROW[:0]), ValueError, "held is 0 of 0 slots"
    yield (
        "exchange",
        exchange_arguments(out=np.zeros((3, 4), np.int64)),
        ValueError,
        "most is 9, beyond the 3 rows of out",
    )
    yield (
        "exchange",
        exchange_arguments(incoming=np.array([[5, 4, 0, 0]])),
        ValueError,
        "row 0 is [5, 4): wanted 0 <= start <= end",
    )
    yield (
        "exchange",
        exchange_arguments(incoming=ROW[:, :2]),
        ValueError,
        "wanted rows as a C-contiguous int64 array of shape [n, 4]",
    )
    yield "exchange", exchange_arguments(incoming=ROW.astype(np.int32)), TypeError, "wanted rows"
    read_only = np.frombuffer(bytes(96), np.int64).reshape(3, 4)
    yield "exchange", exchange_arguments(slots=read_only), (ValueError, BufferError), ""
    for case in NOT_PERMUTED:
        yield "permute", tuple(np.array(each, np.int64) for each in case), ValueError, ""


@pytest.mark.parametrize(("name", "arguments", "error", "words"), [*refusals()])
def test_wrong_arguments_of_kernels_are_refused(
    name: str, arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words) or None):
        getattr(kernels, name)(*arguments)


def test_numpy_integers_and_keywords() -> None:
    """What has __index__ is an integer; every argument has its name."""
    whole = kernels.scan_frames(
        data=b"", start=np.int64(0), verify=np.True_, max_record_bytes=np.int32(5)
    )
    assert whole == (b"", 0, 0, 12)
    assert kernels.find_header(
        data=b"", start=np.int64(0), verify=True, max_record_bytes=np.int32(5)
    ) == (0, 12)
    assert kernels.crc32c(data=b"", crc=np.uint32(7)) == 7
    assert kernels.gather(buffers=[b""], sources=None, spans=SPANS[:0]) == (b"", b"")
    assert kernels.encode_frames(buffer=b"", spans=SPANS[:0]) == b""


def test_buffers_are_released() -> None:
    """A bytearray that is exported cannot be resized: after success and after each kind of error it
    can.
    """
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


LARGE = 128 << 10
"""From this many bytes on, `copy_bytes` releases the GIL."""


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


STUB_NAMESPACE: dict[str, Any] = {}
STUB_TEXT = Path(streamrec.kernels.__file__).with_name("_native.pyi").read_text()
exec(STUB_TEXT, STUB_NAMESPACE)  # its annotations are not computed, as those of this file are not
STUB_FUNCTIONS = {name for name, value in STUB_NAMESPACE.items() if inspect.isfunction(value)}
EXAMPLE_ROOM = ("decode_", "encode_examples")
"""What belongs to streamrec.example: wrapped there."""


def parameters(function: Any) -> list[tuple[str, object]]:
    return [(each.name, each.default) for each in inspect.signature(function).parameters.values()]


def test_the_stub_names_the_native_functions() -> None:
    own = [
        value
        for value in vars(_native).values()
        if getattr(value, "__module__", "") == _native.__name__
    ]
    assert {value.__name__ for value in own if inspect.isroutine(value)} == STUB_FUNCTIONS


@pytest.mark.parametrize(
    "name", sorted(name for name in STUB_FUNCTIONS if not name.startswith(EXAMPLE_ROOM))
)
def test_the_same_parameters_everywhere(name: str) -> None:
    assert parameters(getattr(_native, name)) == parameters(STUB_NAMESPACE[name])
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
            payloads_of(data, spans) == payloads
            and position == len(common)
            and payloads_of(common, common_spans) == RECORDS * 20
            and kernels.encode_frames(buffer, spans_of(new)) == data
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
