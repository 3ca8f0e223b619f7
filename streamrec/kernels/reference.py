"""The kernels in plain Python, written to be read: this is the specification of the native ones.

Rules of every kernel, here and in C:

- Bytes come as any C-contiguous object of the buffer protocol, and are held for the call only.
- Spans are int64 arrays of shape [n, 2]: start and end of a payload, in bytes from the start of a buffer.
  Results hold spans as `bytes`; `np.frombuffer(spans, np.int64).reshape(-1, 2)` reads them without a copy.
- Bad data is reported as a code and an offset. Only wrong arguments raise: TypeError for what is no buffer or
  not int64, ValueError for a wrong shape or value, BufferError for what is not contiguous.
- No length that is read is believed before its CRC was checked, and none leads to an allocation.

A TFRecord file is a row of records, each: uint64 length (little-endian), masked CRC32C of those 8 bytes,
payload, masked CRC32C of the payload. Sources: tensorflow/core/lib/io/record_writer.h; for CRC32C, RFC 3720,
appendix B.4.
"""

from __future__ import annotations

import itertools
import operator
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from streamrec.errors import StreamrecError
from streamrec.kernels.codes import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG, BytesLike, Int64s, Scan

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "allocate",
    "arrow_binary",
    "crc32c",
    "crc32c_implementations",
    "crc32c_with",
    "encode_frames",
    "exchange",
    "find_header",
    "gather",
    "interleave",
    "masked_crc32c",
    "pad_rows",
    "pick",
    "scan_frames",
]

_IMPLEMENTATION = "google-crc32c"
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")  # length, masked CRC32C of the length's 8 bytes
_FOOTER = struct.Struct("<I")  # masked CRC32C of the payload
_FRAME_BYTES = _HEADER.size + _FOOTER.size


def crc32c(data: BytesLike, crc: int = 0) -> int:
    """CRC32C of a buffer.

    Args:
        data: Any C-contiguous buffer; its bytes count, whatever its element type.
        crc: The CRC32C of what came before, to continue from; 0 at the start.

    Returns:
        The CRC32C, from 0 to 0xFFFFFFFF. That of nothing is `crc`.

    Raises:
        TypeError, ValueError, BufferError: As in the module's rules.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    return int(google_crc32c.extend(_integer(crc, 0xFFFFFFFF), _bytes(data)))


def masked_crc32c(data: BytesLike) -> int:
    """CRC32C of a buffer, masked as TFRecord stores it: rotated right by 15 bits, plus a constant.

    The mask keeps the CRC of bytes that hold CRCs a good one (tensorflow/core/lib/hash/crc32c.h).

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF


def crc32c_implementations() -> tuple[str, ...]:
    """Names of the CRC32C implementations that this machine can run; the first one is used."""
    return (_IMPLEMENTATION,)


def crc32c_with(name: str, data: BytesLike, crc: int = 0) -> int:
    """`crc32c` by the implementation of that name, so that tests can run them all.

    Raises:
        ValueError: There is no such implementation, or this machine cannot run it.
    """
    if name not in crc32c_implementations():
        raise ValueError(f"no CRC32C implementation {name} on this machine; see crc32c_implementations()")
    return crc32c(data, crc)


def scan_frames(data: BytesLike, start: int, verify: bool, max_record_bytes: int) -> Scan:
    """Finds the whole records of a buffer, up to its end or to the first bad one.

    Args:
        data: Bytes of a TFRecord stream.
        start: Where in `data` a record's header begins.
        verify: Whether to check the payloads' CRCs. Those of the lengths are always checked.
        max_record_bytes: A longer payload is a bad record.

    Returns:
        spans: bytes, int64 [n, 2]: start and end of each good record's payload, from the start of `data`.
        position: Where the header of the first record begins that is not among them.
        code: `OK`, `BAD_LENGTH_CRC`, `BAD_PAYLOAD_CRC` or `TOO_LONG` (see `codes`): what is at `position`.
        wants: How many bytes from `position` on the next record needs: 12, its header, as long as that is not
            there whole or is bad; then 16 + length. With `BAD_PAYLOAD_CRC`, the size of the damaged record.

    Raises:
        ValueError: `start` is outside of `data`, or an argument is negative.

    >>> frames = encode_frames(b"helloworld", np.array([[0, 5], [5, 10]]))
    >>> spans, position, code, wants = scan_frames(frames[:-1], 0, True, 1000)
    >>> np.frombuffer(spans, np.int64).reshape(-1, 2).tolist(), position, code, wants
    ([[12, 17]], 21, 0, 21)
    """
    content = _bytes(data)
    position = _integer(start, sys.maxsize)
    limit = _integer(max_record_bytes, sys.maxsize)
    if position > len(content):
        raise ValueError(f"start is {position}, beyond the {len(content)} bytes of data")
    spans: list[tuple[int, int]] = []
    while True:
        code, wants = _look_at(content, position, verify, limit)
        if code != OK or position + wants > len(content):
            return _packed(spans), position, code, wants
        spans.append((position + _HEADER.size, position + wants - _FOOTER.size))
        position += wants


def find_header(data: BytesLike, start: int, verify: bool, max_record_bytes: int) -> tuple[int, int]:
    """Finds the next record where the last one's end is not known, place by place.

    A header is a length of at most `max_record_bytes` and its right CRC: twelve bytes that are none by chance pass
    once in 2^66 places. A record whose payload is not all there is found too, and its CRC left to the caller.

    Args:
        data: Bytes of a TFRecord stream.
        start: Where to begin.
        verify: Whether the payload's CRC must be right too, where the payload is all there.
        max_record_bytes: A longer length is none.

    Returns:
        position: Where the header begins; if there is none, the first place whose twelve bytes are not all there.
        wants: How many bytes from `position` on the record has; 12 if there is no header.

    Raises:
        ValueError: `start` is outside of `data`, or an argument is negative.

    >>> frames = encode_frames(b"helloworld", np.array([[0, 5], [5, 10]]))
    >>> find_header(frames, 1, True, 1000), find_header(frames, 22, True, 1000)
    ((21, 21), (31, 12))
    """
    content = _bytes(data)
    begin = _integer(start, sys.maxsize)
    limit = _integer(max_record_bytes, sys.maxsize)
    if begin > len(content):
        raise ValueError(f"start is {begin}, beyond the {len(content)} bytes of data")
    stop = max(begin, len(content) - _HEADER.size + 1)
    for position in range(begin, stop):
        length, length_crc = _HEADER.unpack_from(content, position)
        if length <= limit and masked_crc32c(content[position : position + 8]) == length_crc:
            code, wants = _look_at(content, position, verify, limit)
            if code == OK:
                return position, wants
    return stop, _HEADER.size


def allocate(size: int) -> Buffer:
    """Writable bytes of no particular content, for blocks of records.

    The native kernel uses the memory of blocks that are gone again, because fresh memory costs more than the
    copy that fills it (see block.c).

    Args:
        size: In bytes.

    Raises:
        ValueError: It is negative.
    """
    if size < 0:
        raise ValueError(f"size is {size}: wanted 0 or more")
    return bytearray(size)


def gather(buffers: Sequence[BytesLike], sources: Int64s | None, spans: Int64s) -> tuple[Buffer, bytes]:
    """Copies payloads from one or many buffers back to back into a new one.

    Args:
        buffers: The buffers that the payloads lie in.
        sources: int64 [n]: for each record, the index of its buffer. None: there is only one buffer.
        spans: int64 [n, 2]: for each record, start and end of its payload in its buffer. They may overlap.

    Returns:
        buffer: The payloads, one after the other.
        spans: bytes, int64 [n, 2]: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, a source that is none, other numbers of sources and spans.

    >>> buffer, spans = gather([b"abcdef", b"uvwxyz"], np.array([1, 0]), np.array([[0, 2], [3, 6]]))
    >>> buffer, np.frombuffer(spans, np.int64).tolist()
    (b'uvdef', [0, 2, 2, 5])
    """
    indexes = None if sources is None else _int64s(sources, 1, "None or an int64 array of shape [n]")
    pairs = _spans(spans)
    contents = [_bytes(buffer) for buffer in tuple(buffers)]
    if indexes is None and len(contents) != 1:
        raise ValueError(f"sources is None, which is for one buffer; found {len(contents)} buffers")
    if indexes is not None and len(indexes) != len(pairs):
        raise ValueError(f"found {len(indexes)} sources for {len(pairs)} spans")
    payloads = []
    for i, pair in enumerate(pairs):
        source = 0 if indexes is None else int(indexes[i])
        if not 0 <= source < len(contents):
            raise ValueError(f"source {i} is {source}: wanted 0 <= source < {len(contents)}, the number of buffers")
        payloads.append(_payload(contents[source], i, pair))
    ends = np.cumsum([0, *map(len, payloads)])
    return b"".join(payloads), _packed(itertools.pairwise(ends))


def interleave(lanes: Sequence[Sequence[tuple[BytesLike, Int64s]]], block: int) -> tuple[Buffer, Buffer]:
    """Copies payloads from many lanes in turn, back to back into a new buffer: `block` of each lane, again and again.

    Args:
        lanes: For each lane its windows in order, each a buffer and int64 [n, 2] spans of payloads in it. A lane
            holds exactly what its turns take: the last turn of all may be a shorter one.
        block: Payloads in a turn, 1 or more.

    Returns:
        buffer: The payloads, one after the other.
        spans: int64 [n, 2], as bytes: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, or a lane that has no record left when its turn comes.

    >>> spans = np.array([[0, 1], [1, 3]])
    >>> buffer, _ = interleave([[(b"abc", spans)], [(b"xyz", spans)]], 1)
    >>> buffer
    b'axbcyz'
    """
    if _integer(block, sys.maxsize) == 0:
        raise ValueError("block is 0: wanted 1 or more")
    payloads = [[payload for window in lane for payload in _payloads(*_window(window))] for lane in map(tuple, lanes)]
    count = sum(map(len, payloads))
    ordered: list[bytes] = []
    queues = [iter(lane) for lane in payloads]
    for lane in itertools.cycle(queues):
        if len(ordered) == count:
            break
        turn = list(itertools.islice(lane, min(block, count - len(ordered))))
        ordered += turn
        if len(turn) < block and len(ordered) < count:
            raise ValueError(
                f"the lane whose turn it is has no record after {len(ordered)} of {count}: each lane must hold what "
                f"its turns of {block} take"
            )
    ends = np.cumsum([0, *map(len, ordered)])
    return b"".join(ordered), _packed(itertools.pairwise(ends))


def _window(pair: object) -> tuple[BytesLike, Int64s]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"a window is a tuple (buffer, spans), not {type(pair)}")
    return pair


def _payloads(buffer: BytesLike, spans: Int64s) -> list[bytes]:
    content = _bytes(buffer)
    return [_payload(content, i, pair) for i, pair in enumerate(_spans(spans))]


def pad_rows(values: BytesLike, splits: Int64s, longest: int, fill: BytesLike) -> Buffer:
    """Rows of different lengths, which lie one after the other, as rows of one length.

    Args:
        values: The elements of all rows, of any type.
        splits: int64 [rows + 1]: row i goes from element `splits[i]` to `splits[i + 1]` (exclusive).
        longest: How many elements each row of the result has.
        fill: One element: what stands behind the shorter rows. Its size is that of all elements.

    Returns:
        A new, writable buffer of `rows * longest` elements.

    Raises:
        ValueError: A row outside of the values, or longer than `longest`; no splits; elements that are not whole.

    >>> bytes(pad_rows(b"abc", np.array([0, 1, 1, 3]), 2, b"."))
    b'a...bc'
    """
    content, element, room = _bytes(values), _bytes(fill), _integer(longest, sys.maxsize)
    places = _int64s(splits, 1, "row splits as an int64 array of shape [n]").tolist()
    if not places or not element or len(content) % len(element):
        raise ValueError(
            f"found {len(places)} row splits, and {len(content)} bytes of elements of {len(element)}: wanted at least "
            "one split, and whole elements"
        )
    count, result = len(content) // len(element), bytearray()
    for i, (start, end) in enumerate(itertools.pairwise(places)):
        if not 0 <= start <= end <= count or end - start > room:
            raise ValueError(f"row {i} is [{start}, {end}): wanted up to {room} of {count} elements")
        result += content[start * len(element) : end * len(element)] + element * (room - (end - start))
    return result


def encode_frames(buffer: BytesLike, spans: Int64s) -> bytes:
    """Frames payloads as TFRecord does.

    Args:
        buffer: What the payloads lie in.
        spans: int64 [n, 2]: start and end of each payload in it.

    Returns:
        The n records, one after the other; 16 bytes more each than its payload.

    Raises:
        ValueError: A span outside of the buffer.
    """
    content = _bytes(buffer)
    return b"".join(_frame(_payload(content, i, pair)) for i, pair in enumerate(_spans(spans)))


def exchange(
    slots: Int64s,
    held: int,
    weight: int,
    limit: int,
    incoming: Int64s,
    out: Int64s | None,
    most: int,
    key: int,
    step: int,
    ended: bool,
) -> tuple[int, int, int, int]:
    """Lets rows into a shuffle buffer, and random ones out of it to make room.

    A row stands for an element: int64 start, end, and two more that are the caller's. It weighs end - start + 64.
    The buffer is full for a row when all slots are held, or when its weight and theirs would exceed the limit; but an
    empty buffer takes any row. While it is full, a row goes out: number `random * held >> 64` of those held, where
    random is the number of SplitMix64 (key, step); the last row moves to its place; step grows by one. Then the new row
    comes in, behind the last one.

    Args:
        slots: int64 [n, 4], writable: the rows that are held come first.
        held: How many.
        weight: What they weigh.
        limit: What they may weigh.
        incoming: int64 [m, 4]: the rows that come.
        out: int64 [k, 4], writable: where the rows that go are written; None: nowhere.
        most: How many may go; before one more would have to, it ends.
        key: From 0 to 2**64 - 1.
        step: How many rows went out so far.
        ended: Whether nothing comes behind `incoming`: then all rows go out, as far as `most` allows.

    Returns:
        taken: How many rows came in.
        given: How many went out.
        held, weight: What the slots hold now.

    Raises:
        ValueError: A row that ends before it starts, no slot, more held than there are, or `out` is too small.

    >>> slots, out = np.zeros((2, 4), np.int64), np.zeros((3, 4), np.int64)
    >>> rows = np.array([[0, 1, 0, number] for number in range(3)])
    >>> exchange(slots, 0, 0, 1000, rows, out, 3, 7, 0, False), out[:1, 3].tolist(), slots[:, 3].tolist()
    ((3, 1, 2, 130), [0], [1, 2])
    """
    rows, coming = _rows(slots, True), _rows(incoming, False)
    going = None if out is None else _rows(out, True)
    held, weight, limit = (_integer(value, sys.maxsize) for value in (held, weight, limit))
    most, step = _integer(most, sys.maxsize), _integer(step, sys.maxsize)
    if held > len(rows) or not len(rows):
        raise ValueError(
            f"held is {held} of {len(rows)} slots: wanted at least one slot, and no more held than there are"
        )
    if going is not None and most > len(going):
        raise ValueError(f"most is {most}, beyond the {len(going)} rows of out")
    for index, (start, end, *_) in enumerate(coming.tolist()):
        if not 0 <= start <= end <= sys.maxsize // 2:
            raise ValueError(f"row {index} is [{start}, {end}): wanted 0 <= start <= end")
    given = 0

    def give() -> None:
        nonlocal held, weight, given
        chosen = _random(key, step + given) * held >> 64
        if going is not None:
            going[given] = rows[chosen]
        held, weight, given = held - 1, weight - _weight(rows[chosen]), given + 1
        rows[chosen] = rows[held]

    for taken, row in enumerate(coming):
        while held and (held == len(rows) or weight + _weight(row) > limit):
            if given == most:
                return taken, given, held, weight
            give()
        rows[held] = row
        held, weight = held + 1, weight + _weight(row)
    while ended and held and given < most:
        give()
    return len(coming), given, held, weight


def pick(buffers: Sequence[BytesLike], rows: Int64s) -> tuple[Buffer, Buffer]:
    """Copies the payloads of a shuffle buffer's rows back to back into a new buffer, as `gather` does.

    Args:
        buffers: What the payloads lie in.
        rows: int64 [n, 4]: start and end of each payload, `buffer << 32 | anything`, and anything.

    Returns:
        buffer: The payloads, one after the other.
        spans: int64 [n, 2], as bytes: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, or a buffer that is none.

    >>> pick([b"abcdef", b"uvwxyz"], np.array([[1, 3, 1 << 32, 0], [0, 1, 0, 0]]))[0]
    b'vwa'
    """
    contents = [_bytes(buffer) for buffer in tuple(buffers)]
    payloads = []
    for index, (start, end, tag, _) in enumerate(_rows(rows, False).tolist()):
        buffer = tag >> 32
        if not 0 <= buffer < len(contents):
            raise ValueError(f"row {index} lies in buffer {buffer}: wanted 0 <= buffer < {len(contents)}")
        size = len(contents[buffer])
        if not 0 <= start <= end <= size:
            raise ValueError(f"row {index} is [{start}, {end}): wanted 0 <= start <= end <= {size}, its buffer's size")
        payloads.append(contents[buffer][start:end])
    ends = np.cumsum([0, *map(len, payloads)])
    return b"".join(payloads), _packed(itertools.pairwise(ends))


def _weight(row: npt.NDArray[np.int64]) -> int:
    return int(row[1]) - int(row[0]) + 64


def _random(key: int, step: int) -> int:
    """Number `step` of SplitMix64, from 0 to 2**64 - 1."""
    mask = 0xFFFFFFFFFFFFFFFF
    z = (key + (step + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return z ^ z >> 31


def _look_at(content: bytes, position: int, verify: bool, limit: int) -> tuple[int, int]:
    """The code of the record whose header begins at `position`, and how many bytes it has or wants."""
    header = content[position : position + _HEADER.size]
    if len(header) < _HEADER.size:
        return OK, _HEADER.size
    length, length_crc = _HEADER.unpack(header)
    if masked_crc32c(header[:8]) != length_crc:
        return BAD_LENGTH_CRC, _HEADER.size
    if length > limit:
        return TOO_LONG, _HEADER.size
    wants = _FRAME_BYTES + length
    if verify and position + wants <= len(content):
        end = position + wants - _FOOTER.size
        (payload_crc,) = _FOOTER.unpack_from(content, end)
        if masked_crc32c(content[position + _HEADER.size : end]) != payload_crc:
            return BAD_PAYLOAD_CRC, wants
    return OK, wants


def _frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    header = length + _FOOTER.pack(masked_crc32c(length))
    return header + payload + _FOOTER.pack(masked_crc32c(payload))


def _payload(content: bytes, index: int, pair: tuple[int, int]) -> bytes:
    start, end = pair
    if not 0 <= start <= end <= len(content):
        raise ValueError(
            f"span {index} is [{start}, {end}): wanted 0 <= start <= end <= {len(content)}, the buffer's size"
        )
    return content[start:end]


def _packed(spans: Iterable[tuple[int, int]]) -> bytes:
    return np.array(list(spans), np.int64).tobytes()


# What arguments may be: the twins of args.c.


def _view(value: Any) -> memoryview:
    try:
        return memoryview(value)
    except TypeError as error:
        raise TypeError(f"a bytes-like object is required, not {type(value)!r}") from error


def _contiguous(view: memoryview) -> memoryview:
    if not view.c_contiguous:
        raise BufferError("the buffer is not C-contiguous; pass np.ascontiguousarray() of it")
    return view


def _bytes(data: BytesLike) -> bytes:
    return data if type(data) is bytes else _contiguous(_view(data)).tobytes()


def _int64s(value: Int64s, ndim: int, wanted: str) -> npt.NDArray[np.int64]:
    view = _view(value)
    shape = view.shape or ()
    right_type = view.itemsize == 8 and view.format in ("l", "q", "=q")  # the last: not aligned
    if not right_type or len(shape) != ndim or (ndim == 2 and shape[1] != 2):
        message = f"wanted {wanted}, found {len(shape)} dimension(s) of format '{view.format}'"
        raise (ValueError if right_type else TypeError)(message)
    return np.frombuffer(_contiguous(view), np.int64).reshape(shape)


def _rows(value: Int64s, writable: bool) -> npt.NDArray[np.int64]:
    view = _view(value)
    if writable and view.readonly:
        raise BufferError("Object is not writable.")
    right_type = view.itemsize == 8 and view.format in ("l", "q")
    if not right_type or view.ndim != 2 or view.shape is None or view.shape[1] != 4 or not view.c_contiguous:
        message = (
            "wanted rows as a C-contiguous int64 array of shape [n, 4], "
            f"found {view.ndim} dimension(s) of format '{view.format}'"
        )
        raise (ValueError if right_type else TypeError)(message)
    return np.frombuffer(view, np.int64).reshape(view.shape)


def _spans(value: Int64s) -> list[tuple[int, int]]:
    pairs = _int64s(value, 2, "spans as an int64 array of shape [n, 2]")
    return [(start, end) for start, end in pairs.tolist()]


def _integer(value: int, limit: int) -> int:
    index = operator.index(value)
    if not 0 <= index <= limit:
        raise ValueError(f"wanted an integer from 0 to {limit}, found {index!r}")
    return index


def arrow_binary(buffer: Buffer, spans: Int64s, /) -> tuple[object, object]:
    """Refuses: Arrow's C structs are made in C only."""
    raise StreamrecError("Arrow's interface is part of the C extension, which STREAMREC_PURE=1 left out")
