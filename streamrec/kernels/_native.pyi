"""The C module. tests/kernels says what each function gives; where that takes more than a line,
tests/oracle does.

Rules of every function:

- Bytes come as any C-contiguous object of the buffer protocol, and are held for the call only.
- Spans are int64 arrays of shape [n, 2]: start and end of a payload, in bytes from the start of a
  buffer. Rows are int64 [n, 4]: start, end, the number of a buffer times 2**32 (plus anything), and
  anything. Results hold them as bytes; `np.frombuffer(spans, np.int64).reshape(-1, 2)` reads them
  without a copy.
- Bad data is reported as a code and an offset. Only wrong arguments raise: TypeError for what is
  not a buffer or not int64, ValueError for a wrong shape or value (a span outside of its buffer),
  BufferError for what is not contiguous.
- No length that is read is believed before its CRC was checked, and none leads to an allocation.
"""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

from streamrec.kernels import BytesLike, Int64s, Scan

def allocate(size: int) -> Buffer:
    """Writable bytes of no particular content, in memory of blocks that are gone again (see
    block.c).
    """

def copy_bytes(target: Buffer, source: BytesLike) -> None:
    """Copies bytes from one buffer into another, which is writable and has the same size; many
    bytes without the GIL.

    Assigning to a slice of a memoryview holds it: for half a millisecond for an uncached megabyte,
    in which a training loop waits.
    """

def crc32c(data: BytesLike, crc: int = 0) -> int:
    """CRC32C (RFC 3720) of a buffer's bytes, continued from that of what came before."""

def masked_crc32c(data: BytesLike) -> int:
    """CRC32C of a buffer, masked as TFRecord stores it."""

def crc32c_implementations() -> tuple[str, ...]:
    """Names of the CRC32C implementations that this machine can run; the first one is used."""

def crc32c_with(name: str, data: BytesLike, crc: int = 0) -> int:
    """`crc32c` by the implementation of that name, so that tests can run them all."""

def scan_frames(data: BytesLike, start: int, verify: bool, max_record_bytes: int) -> Scan:
    """Finds the whole records of a buffer, up to its end or to the first bad one.

    Args:
        data: Bytes of a TFRecord stream.
        start: Where in `data` a record's header begins.
        verify: Whether to check the payloads' CRCs. Those of the lengths are always checked.
        max_record_bytes: A longer payload is a bad record.

    Returns:
        spans: Each good record's payload, counted from the start of `data`.
        position: Where the header of the first record begins that is not among them.
        code: `OK`, `BAD_LENGTH_CRC`, `BAD_PAYLOAD_CRC` or `TOO_LONG`: what is at `position`.
        wants: How many bytes from `position` on the next record needs: 12, its header, as long as
            that is not there whole or is bad; then 16 + length. With `BAD_PAYLOAD_CRC`, the size of
            the damaged record.
    """

def find_header(
    data: BytesLike, start: int, verify: bool, max_record_bytes: int
) -> tuple[int, int]:
    """Finds the next record where the last one's end is not known.

    A header is a length of at most `max_record_bytes` and its right CRC. A record whose payload is
    not all there is found too; with `verify`, a payload that is all there must have a right CRC.

    Returns:
        position: Where the header begins; if there is none, the first offset whose twelve bytes are
            not all there.
        wants: How many bytes from `position` on the record has; 12 if there is no header.
    """

def gather(
    buffers: Sequence[BytesLike], sources: Int64s | None, spans: Int64s
) -> tuple[Buffer, Buffer]:
    """Copies payloads back to back into a new buffer; returns it, and their spans in it.

    Args:
        buffers: The buffers that the payloads are in.
        sources: int64 [n]: for each payload, the index of its buffer. None: there is only one
            buffer.
        spans: The payloads. They may overlap.
    """

def pick(buffers: Sequence[BytesLike], rows: Int64s) -> tuple[Buffer, Buffer]:
    """The same for payloads that rows name."""

def objects(buffers: Sequence[BytesLike], places: Int64s) -> list[bytes]:
    """Copies each payload to an object of its own; `places` are spans in the first buffer, or
    rows.
    """

def interleave(
    queues: Sequence[Sequence[tuple[BytesLike, Int64s]]], block: int
) -> tuple[Buffer, Buffer]:
    """Copies payloads of many queues in turn, `block` of each again and again, as `gather` does.

    Args:
        queues: For each queue its windows in order, each a buffer and spans in it. A queue holds
            exactly what its turns take: the last turn of all may be a shorter one.
        block: Payloads in a turn.
    """

def rows_in_turn(queues: Sequence[Sequence[tuple[Int64s, int]]], block: int) -> Buffer:
    """Rows of the payloads of many queues, in turn as `interleave` has them.

    Args:
        queues: For each queue its parts in order. A part is spans in the buffer of a number, or
            rows whose buffers are numbered from that number on.
        block: Payloads in a turn.
    """

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
    """Lets rows into a shuffle buffer, and random ones out of it to make room: see
    tests/oracle/kernels.py.

    Args:
        slots: The rows that are held come first; writable.
        held: How many.
        weight: What they weigh.
        limit: What they may weigh.
        incoming: The rows that come.
        out: Where the rows that go are written; None: nowhere.
        most: How many may go; before one more would have to, it ends.
        key: From 0 to 2**64 - 1.
        step: How many rows went out so far.
        ended: Whether nothing comes after `incoming`: then all rows go out, as far as `most`
            allows.

    Returns:
        taken: How many rows came in.
        given: How many went out.
        held, weight: What the slots hold now.
    """

def permute(numbers: Int64s, sizes: Int64s, variants: Int64s, keys: Int64s) -> Buffer:
    """Says where pseudorandom permutations of the numbers below a size take each of these numbers,
    as int64 [n].

    Args:
        numbers: int64 [n]: each from 0 to its size, exclusive.
        sizes: int64 [n] or [1]: of how many numbers each is one, 1 to 2**62.
        variants: int64 [n] or [1]: which permutation of those that the keys have.
        keys: int64 of an even number, at most 64: the key of each round.
    """

def pad_rows(values: BytesLike, splits: Int64s, longest: int, fill: BytesLike) -> Buffer:
    """Rows of different lengths as rows of one length, in a new, writable buffer.

    Args:
        values: The elements of all rows, of any type.
        splits: int64 [rows + 1]: row i goes from element `splits[i]` to `splits[i + 1]`
            (exclusive).
        longest: How many elements each row of the result has.
        fill: One element, which fills up the shorter rows. Its size is that of all elements.
    """

def encode_frames(buffer: BytesLike, spans: Int64s) -> bytes:
    """Frames payloads as TFRecord does: the records, one after the other."""

def encode_block(buffer: BytesLike, spans: Int64s) -> Buffer:
    """The same; many bytes come as a Block."""

def encode_objects(records: Sequence[bytes]) -> Buffer:
    """The same for records that are objects."""

# The encoder, which streamrec.example.encode wraps: what protobuf would write.
def encode_examples(
    columns: tuple[tuple[bytes, int, Any, Any, Any], ...], rows: int, /
) -> tuple[int, int, int, BytesLike | None, bytes | None]: ...

# The decoder, which streamrec.example.walk wraps; its twin is tests.oracle.parsing.
def decode_plan(
    slots: tuple[tuple[bytes, int, bool, bool, int, bytes | None, bool, bool], ...], /
) -> object: ...
def decode_examples(
    plan: object,
    records: tuple[bytes, ...] | None,
    buffer: Any,
    spans: Int64s | None,
    arrays: tuple[Any, ...],
    /,
) -> list[Any] | tuple[int, int, int, int, int]: ...
def decode_sequences(
    context: object,
    lists: object,
    records: tuple[bytes, ...] | None,
    buffer: Any,
    spans: Int64s | None,
    context_arrays: tuple[Any, ...],
    list_arrays: tuple[Any, ...],
    /,
) -> list[list[Any]] | tuple[int, int, int, int, int]: ...
def decode_varints(data: bytes, array: Int64s, way: int, /) -> int: ...
def decode_strings(result: Any, array: Any, defaults: tuple[bytes, ...], /) -> None: ...
def decode_spans(result: Any, buffers: Any, array: Int64s, /) -> None: ...
