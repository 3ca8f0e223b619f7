"""The kernels in plain Python: the specification of those in C.

Rules of every kernel, here and in C:

- Bytes come as any C-contiguous object of the buffer protocol, and are held for the call only.
- Spans are int64 arrays of shape [n, 2]: start and end of a payload, in bytes from the start of a buffer.
  Results hold spans as `bytes`; `np.frombuffer(spans, np.int64).reshape(-1, 2)` reads them without a copy.
- Bad data is reported as a code and an offset. Only wrong arguments raise: TypeError for what is no buffer or
  not int64, ValueError for a wrong shape or value, BufferError for what is not contiguous.
- No length that is read is believed before its CRC was checked, and none leads to an allocation.
"""

from __future__ import annotations

import itertools
import operator
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

from streamrec.kernels import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG, BytesLike, Int64s, Scan

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "allocate",
    "crc32c",
    "crc32c_implementations",
    "crc32c_with",
    "encode_block",
    "encode_frames",
    "encode_objects",
    "exchange",
    "find_header",
    "gather",
    "interleave",
    "masked_crc32c",
    "objects",
    "pad_rows",
    "permute",
    "pick",
    "rows_in_turn",
    "scan_frames",
]

WORD = 2**64 - 1
HEADER = struct.Struct("<QI")  # length, masked CRC32C of the length's 8 bytes
FOOTER = struct.Struct("<I")  # masked CRC32C of the payload
FRAME_BYTES = HEADER.size + FOOTER.size


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
    return int(google_crc32c.extend(integer(crc, 0xFFFFFFFF), bytes_of(data)))


def masked_crc32c(data: BytesLike) -> int:
    """CRC32C of a buffer, masked as TFRecord stores it: rotated right by 15 bits, plus a constant.

    The mask keeps the CRC of bytes that hold CRCs a good one (tensorflow/core/lib/hash/crc32c.h).

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = crc32c(data)
    rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def crc32c_implementations() -> tuple[str, ...]:
    """Names of the CRC32C implementations that this machine can run; the first one is used."""
    return ("google-crc32c",)


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

    >>> import numpy as np
    >>> frames = encode_frames(b"helloworld", np.array([[0, 5], [5, 10]]))
    >>> spans, position, code, wants = scan_frames(frames[:-1], 0, True, 1000)
    >>> np.frombuffer(spans, np.int64).reshape(-1, 2).tolist(), position, code, wants
    ([[12, 17]], 21, 0, 21)
    """
    content = bytes_of(data)
    position = integer(start, sys.maxsize)
    limit = integer(max_record_bytes, sys.maxsize)
    if position > len(content):
        raise ValueError(f"start is {position}, beyond the {len(content)} bytes of data")
    spans: list[tuple[int, int]] = []
    while True:
        code, wants = look_at(content, position, verify, limit)
        if code != OK or position + wants > len(content):
            return packed(spans), position, code, wants
        spans.append((position + HEADER.size, position + wants - FOOTER.size))
        position += wants


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
    content = bytes_of(buffer)
    return b"".join(_frame(payload_of(content, i, pair)) for i, pair in enumerate(spans_of(spans)))


def encode_block(buffer: BytesLike, spans: Int64s) -> Buffer:
    """As `encode_frames`; in C, many bytes come as a Block."""
    return encode_frames(buffer, spans)


def encode_objects(records: Sequence[bytes]) -> Buffer:
    """Frames records that are objects; in C, many bytes come as a Block.

    Args:
        records: `bytes` each.

    Returns:
        The records, one after the other.

    Raises:
        TypeError: One of them is something else.
    """
    for record in records:
        if not isinstance(record, bytes):
            raise TypeError(f"expected bytes, {type(record).__name__} found")
    return b"".join(map(_frame, records))


def look_at(content: bytes, position: int, verify: bool, limit: int) -> tuple[int, int]:
    """The code of the record whose header begins at `position`, and how many bytes it has or wants."""
    header = content[position : position + HEADER.size]
    if len(header) < HEADER.size:
        return OK, HEADER.size
    length, length_crc = HEADER.unpack(header)
    if masked_crc32c(header[:8]) != length_crc:
        return BAD_LENGTH_CRC, HEADER.size
    if length > limit:
        return TOO_LONG, HEADER.size
    wants = FRAME_BYTES + length
    if verify and position + wants <= len(content):
        end = position + wants - FOOTER.size
        (payload_crc,) = FOOTER.unpack_from(content, end)
        if masked_crc32c(content[position + HEADER.size : end]) != payload_crc:
            return BAD_PAYLOAD_CRC, wants
    return OK, wants


def _frame(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    header = length + FOOTER.pack(masked_crc32c(length))
    return header + payload + FOOTER.pack(masked_crc32c(payload))


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

    >>> import numpy as np
    >>> frames = encode_frames(b"helloworld", np.array([[0, 5], [5, 10]]))
    >>> find_header(frames, 1, True, 1000), find_header(frames, 22, True, 1000)
    ((21, 21), (31, 12))
    """
    content = bytes_of(data)
    begin = integer(start, sys.maxsize)
    limit = integer(max_record_bytes, sys.maxsize)
    if begin > len(content):
        raise ValueError(f"start is {begin}, beyond the {len(content)} bytes of data")
    stop = max(begin, len(content) - HEADER.size + 1)
    for position in range(begin, stop):
        length, length_crc = HEADER.unpack_from(content, position)
        if length <= limit and masked_crc32c(content[position : position + 8]) == length_crc:
            code, wants = look_at(content, position, verify, limit)
            if code == OK:
                return position, wants
    return stop, HEADER.size


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

    >>> import numpy as np
    >>> buffer, spans = gather([b"abcdef", b"uvwxyz"], np.array([1, 0]), np.array([[0, 2], [3, 6]]))
    >>> buffer, np.frombuffer(spans, np.int64).tolist()
    (b'uvdef', [0, 2, 2, 5])
    """
    indexes = None if sources is None else int64s(sources, 1, "None or an int64 array of shape [n]")
    pairs = spans_of(spans)
    contents = [bytes_of(buffer) for buffer in tuple(buffers)]
    if indexes is None and len(contents) != 1:
        raise ValueError(f"sources is None, which is for one buffer; found {len(contents)} buffers")
    if indexes is not None and len(indexes) != len(pairs):
        raise ValueError(f"found {len(indexes)} sources for {len(pairs)} spans")
    payloads = []
    for i, pair in enumerate(pairs):
        source = 0 if indexes is None else int(indexes[i])
        if not 0 <= source < len(contents):
            raise ValueError(f"source {i} is {source}: wanted 0 <= source < {len(contents)}, the number of buffers")
        payloads.append(payload_of(contents[source], i, pair))
    return joined(payloads)


def objects(buffers: Sequence[BytesLike], places: Int64s) -> list[bytes]:
    """Copies each payload to an object of its own.

    Args:
        buffers: What the payloads lie in.
        places: int64 [n, 2], spans in the first buffer; or [n, 4], rows: start, end, `buffer << 32`, and anything.

    Returns:
        The payloads, in order.

    Raises:
        ValueError: A span outside of its buffer, or a buffer that is none.

    >>> import numpy as np
    >>> objects([b"abcdef", b"uvwxyz"], np.array([[1, 3, 1 << 32, 0], [0, 1, 0, 0]]))
    [b'vw', b'a']
    """
    rows = int64s(places, 2, "spans or rows as an int64 array of shape [n, 2] or [n, 4]", most=4).tolist()
    contents = [bytes_of(buffer) for buffer in tuple(buffers)]
    found = []
    for index, (start, end, *rest) in enumerate(rows):
        buffer = rest[0] >> 32 if rest else 0
        if not 0 <= buffer < len(contents) or not 0 <= start <= end <= len(contents[buffer]):
            raise ValueError(f"record {index} does not lie in one of the {len(contents)} buffers")
        found.append(contents[buffer][start:end])
    return found


def interleave(queues: Sequence[Sequence[tuple[BytesLike, Int64s]]], block: int) -> tuple[Buffer, Buffer]:
    """Copies payloads from many queues in turn, back to back into a new buffer: `block` of each queue, again and again.

    Args:
        queues: For each queue its windows in order, each a buffer and int64 [n, 2] spans of payloads in it. A queue
            holds exactly what its turns take: the last turn of all may be a shorter one.
        block: Payloads in a turn, 1 or more.

    Returns:
        buffer: The payloads, one after the other.
        spans: int64 [n, 2], as bytes: where each lies in it.

    Raises:
        ValueError: A span outside of its buffer, or a queue that has no record left when its turn comes.

    >>> import numpy as np
    >>> spans = np.array([[0, 1], [1, 3]])
    >>> buffer, _ = interleave([[(b"abc", spans)], [(b"xyz", spans)]], 1)
    >>> buffer
    b'axbcyz'
    """
    payloads = [
        [payload for window in queue for payload in _payloads(*_window(window))] for queue in map(tuple, queues)
    ]
    return joined(in_turn(payloads, block))


def _window(pair: object) -> tuple[BytesLike, Int64s]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"a window is a tuple (buffer, spans), not {type(pair)}")
    return pair


def _payloads(buffer: BytesLike, spans: Int64s) -> list[bytes]:
    content = bytes_of(buffer)
    return [payload_of(content, i, pair) for i, pair in enumerate(spans_of(spans))]


def rows_in_turn(queues: Sequence[Sequence[tuple[Int64s, int]]], block: int) -> Buffer:
    """Says where the records of many queues lie, in turn: `block` of each queue, again and again.

    Args:
        queues: For each queue its parts in order. A part is int64 [n, 2], spans of records in the buffer of that
            number; or int64 [n, 4], rows, whose buffers are numbered from that number on. A queue holds exactly what
            its turns take: the last turn of all may be a shorter one.
        block: Records in a turn, 1 or more.

    Returns:
        int64 [n, 4], as bytes: rows as `pick` takes them, START, END, `buffer << 32`, and what the fourth was, or 0.

    Raises:
        ValueError: A queue that has no record left when its turn comes.

    >>> import numpy as np
    >>> packed = rows_in_turn([[(np.array([[0, 1], [1, 3]]), 0)], [(np.array([[5, 9], [9, 9]]), 1)]], 1)
    >>> [(start, end, tag >> 32) for start, end, tag, _ in np.frombuffer(packed, np.int64).reshape(-1, 4).tolist()]
    [(0, 1, 0), (5, 9, 1), (1, 3, 0), (9, 9, 1)]
    """
    rows = [[row for part in queue for row in _rows(*_part(part))] for queue in map(tuple, queues)]
    return b"".join(row.tobytes() for row in in_turn(rows, block))


def _part(pair: object) -> tuple[Int64s, int]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"a part is a tuple (places, first), not {type(pair)}")
    return pair


def _rows(places: Int64s, first: int) -> npt.NDArray[np.int64]:
    number = integer(first, 2**31 - 1)
    cells = int64s(places, 2, "spans or rows as an int64 array of shape [n, 2] or [n, 4]", most=4)
    rows = np.zeros((len(cells), 4), np.int64)
    rows[:, : cells.shape[1]] = cells
    rows[:, 2] += number << 32
    return rows


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
    rows, coming = rows_of(slots, True), rows_of(incoming, False)
    going = None if out is None else rows_of(out, True)
    held, weight, limit = (integer(value, sys.maxsize) for value in (held, weight, limit))
    most, step = integer(most, sys.maxsize), integer(step, sys.maxsize)
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
    contents = [bytes_of(buffer) for buffer in tuple(buffers)]
    payloads = []
    for index, (start, end, tag, _) in enumerate(rows_of(rows, False).tolist()):
        buffer = tag >> 32
        if not 0 <= buffer < len(contents):
            raise ValueError(f"row {index} lies in buffer {buffer}: wanted 0 <= buffer < {len(contents)}")
        size = len(contents[buffer])
        if not 0 <= start <= end <= size:
            raise ValueError(f"row {index} is [{start}, {end}): wanted 0 <= start <= end <= {size}, its buffer's size")
        payloads.append(contents[buffer][start:end])
    return joined(payloads)


def _weight(row: npt.NDArray[np.int64]) -> int:
    return int(row[1]) - int(row[0]) + 64


def _random(key: int, step: int) -> int:
    """Number `step` of SplitMix64, from 0 to 2**64 - 1."""
    z = (key + (step + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return z ^ z >> 31


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

    >>> import numpy as np
    >>> bytes(pad_rows(b"abc", np.array([0, 1, 1, 3]), 2, b"."))
    b'a...bc'
    """
    content, element, room = bytes_of(values), bytes_of(fill), integer(longest, sys.maxsize)
    places = int64s(splits, 1, "row splits as an int64 array of shape [n]").tolist()
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


def permute(numbers: Int64s, sizes: Int64s, variants: Int64s, keys: Int64s) -> Buffer:
    """Says where a pseudorandom permutation of the numbers below a size takes each of these numbers.

    Args:
        numbers: int64 [n]: each from 0 to its size, exclusive.
        sizes: int64 [n] or [1]: of how many numbers each is one, 1 to 2**62.
        variants: int64 [n] or [1]: which permutation of those that the keys have.
        keys: int64 of an even number, 64 at the most: the key of each round.

    Returns:
        int64 [n], as bytes.

    Raises:
        ValueError: A number or a size is out of its range, or there are not as many as there must be.

    >>> import numpy as np
    >>> two_keys = np.array([5, 7])
    >>> np.frombuffer(permute(np.arange(6), np.array([6]), np.array([0]), two_keys), np.int64).tolist()
    [0, 2, 3, 5, 1, 4]
    """
    told = [int64s(value, 1, "row splits as an int64 array of shape [n]") for value in (numbers, sizes, variants, keys)]
    each, size_of_each, variant_of_each, rounds = (array.tolist() for array in told)
    if len(rounds) > 64 or len(rounds) % 2:
        raise ValueError(f"keys are {len(rounds)}: wanted an even number, 64 at the most")
    for name, values in (("sizes", size_of_each), ("variants", variant_of_each)):
        if len(values) not in (1, len(each)):
            raise ValueError(f"{name} are {len(values)} for {len(each)} numbers: wanted one, or as many")
    results = []
    for index, number in enumerate(each):
        size = size_of_each[index if len(size_of_each) > 1 else 0]
        variant = variant_of_each[index if len(variant_of_each) > 1 else 0]
        if not 0 <= number < size <= 2**62:
            raise ValueError(f"number {index} or its size is out of range: wanted 0 <= number < size <= 2**62")
        results.append(_permuted(number, size, _hash(variant * 0x9E3779B97F4A7C15 & WORD), rounds))
    return np.array(results, np.int64).tobytes()


def _permuted(number: int, size: int, tweak: int, keys: Sequence[int]) -> int:
    bits = ((size - 1).bit_length() + 1) // 2
    mask = (1 << bits) - 1
    above = (size - 1 >> bits) + 1
    while True:
        low, high = number & mask, number >> bits
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            word = _hash(low + tweak & WORD ^ first & WORD)
            high = (high + ((word >> 32) * above >> 32)) % above
            low = low + _hash(high + tweak & WORD ^ second & WORD) & mask
        number = high << bits | low
        if number < size:
            return number


def _hash(word: int) -> int:
    """The finalizer of MurmurHash3."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33


T = TypeVar("T")


def bytes_of(data: BytesLike) -> bytes:
    """What a C-contiguous buffer holds."""
    return data if type(data) is bytes else _contiguous(_view(data)).tobytes()


def spans_of(value: Int64s) -> list[tuple[int, int]]:
    """The pairs of an int64 array of shape [n, 2]."""
    pairs = int64s(value, 2, "spans as an int64 array of shape [n, 2]")
    return [(start, end) for start, end in pairs.tolist()]


def int64s(value: Int64s, ndim: int, wanted: str, most: int = 2) -> npt.NDArray[np.int64]:
    """A C-contiguous int64 array of so many dimensions, aligned or not; of two, the second has 2, or `most`."""
    view = _view(value)
    shape = view.shape or ()
    right_type = view.itemsize == 8 and view.format in ("l", "q", "=q")  # the last: not aligned
    if not right_type or len(shape) != ndim or (ndim == 2 and shape[1] not in (2, most)):
        message = f"wanted {wanted}, found {len(shape)} dimension(s) of format '{view.format}'"
        raise (ValueError if right_type else TypeError)(message)
    return np.frombuffer(_contiguous(view), np.int64).reshape(shape)


def rows_of(value: Int64s, writable: bool) -> npt.NDArray[np.int64]:
    """The rows of a shuffle buffer: a C-contiguous int64 array of shape [n, 4], whose memory the result shares."""
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


def integer(value: int, limit: int) -> int:
    """An integer from 0 to a limit."""
    index = operator.index(value)
    if not 0 <= index <= limit:
        raise ValueError(f"wanted an integer from 0 to {limit}, found {index!r}")
    return index


def in_turn(queues: Sequence[Iterable[T]], block: int) -> list[T]:
    """What the queues hold, `block` of each in turn, again and again."""
    if integer(block, sys.maxsize) == 0:
        raise ValueError("block is 0: wanted 1 or more")
    lists = [list(queue) for queue in queues]
    count = sum(map(len, lists))
    ordered: list[T] = []
    for queue in itertools.cycle([iter(held) for held in lists]):
        if len(ordered) == count:
            break
        turn = list(itertools.islice(queue, min(block, count - len(ordered))))
        ordered += turn
        if len(turn) < block and len(ordered) < count:
            raise ValueError(
                f"the queue whose turn it is has no record after {len(ordered)} of {count}: each queue must hold what "
                f"its turns of {block} take"
            )
    return ordered


def payload_of(content: bytes, index: int, pair: tuple[int, int]) -> bytes:
    """What span number `index` stands for."""
    start, end = pair
    if not 0 <= start <= end <= len(content):
        raise ValueError(
            f"span {index} is [{start}, {end}): wanted 0 <= start <= end <= {len(content)}, the buffer's size"
        )
    return content[start:end]


def joined(payloads: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Payloads one after the other, and where each lies: int64 spans, as bytes."""
    ends = np.cumsum([0, *map(len, payloads)])
    return b"".join(payloads), packed(itertools.pairwise(ends))


def packed(spans: Iterable[tuple[int, int]]) -> bytes:
    """Spans as int64 [n, 2], as bytes."""
    return np.array(list(spans), np.int64).tobytes()


def _view(value: Any) -> memoryview:
    try:
        return memoryview(value)
    except TypeError as error:
        raise TypeError(f"a bytes-like object is required, not {type(value)!r}") from error


def _contiguous(view: memoryview) -> memoryview:
    if not view.c_contiguous:
        raise BufferError("the buffer is not C-contiguous; pass np.ascontiguousarray() of it")
    return view
