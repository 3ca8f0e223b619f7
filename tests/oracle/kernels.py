"""Those kernels in plain Python of which a test cannot say in a line what they give: the
specification of the C code.

Their arguments are right: `_native.pyi` says what they are, and tests/kernels what happens where
they are not.
"""

import struct
from collections.abc import Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt

from streamrec.kernels import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG

Rows = npt.NDArray[np.int64]

WORD = 2**64 - 1
HEADER = struct.Struct("<QI")  # length, masked CRC32C of the length's 8 bytes
FOOTER = struct.Struct("<I")  # masked CRC32C of the payload


def masked_crc32c(data: bytes) -> int:
    """CRC32C, masked as TFRecord stores it: rotated right by 15 bits, plus a constant.

    The mask keeps the CRC of bytes that hold CRCs a good one (tensorflow/core/lib/hash/crc32c.h).
    """
    crc = int(google_crc32c.value(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def scan_frames(
    data: bytes, start: int, verify: bool, max_record_bytes: int
) -> tuple[bytes, int, int, int]:
    """The whole records of a buffer from `start` on, up to its end or to the first bad one."""
    spans: list[tuple[int, int]] = []
    position = start
    while True:
        code, wants = read_header(data, position, verify, max_record_bytes)
        if code != OK or position + wants > len(data):
            return np.array(spans, np.int64).tobytes(), position, code, wants
        spans.append((position + HEADER.size, position + wants - FOOTER.size))
        position += wants


def read_header(data: bytes, position: int, verify: bool, limit: int) -> tuple[int, int]:
    """The code of the record whose header begins at `position`, and how many bytes it has or
    wants.
    """
    header = data[position : position + HEADER.size]
    if len(header) < HEADER.size:
        return OK, HEADER.size
    length, length_crc = HEADER.unpack(header)
    if masked_crc32c(header[:8]) != length_crc:
        return BAD_LENGTH_CRC, HEADER.size
    if length > limit:
        return TOO_LONG, HEADER.size
    wants = HEADER.size + length + FOOTER.size
    if verify and position + wants <= len(data):
        end = position + wants - FOOTER.size
        (payload_crc,) = FOOTER.unpack_from(data, end)
        if masked_crc32c(data[position + HEADER.size : end]) != payload_crc:
            return BAD_PAYLOAD_CRC, wants
    return OK, wants


def find_header(data: bytes, start: int, verify: bool, max_record_bytes: int) -> tuple[int, int]:
    """The next record where the last one's end is not known, looked for at every offset."""
    stop = max(start, len(data) - HEADER.size + 1)
    for position in range(start, stop):
        length, length_crc = HEADER.unpack_from(data, position)
        if (
            length <= max_record_bytes
            and masked_crc32c(data[position : position + 8]) == length_crc
        ):
            code, wants = read_header(data, position, verify, max_record_bytes)
            if code == OK:
                return position, wants
    return stop, HEADER.size


def exchange(
    slots: Rows,
    held: int,
    weight: int,
    limit: int,
    incoming: Rows,
    out: Rows,
    most: int,
    key: int,
    step: int,
    ended: bool,
) -> tuple[int, int, int, int]:
    """Lets rows into a shuffle buffer, and random ones out of it to make room.

    A row weighs end - start + 64. The buffer is full for a row when all slots are held, or when its
    weight and theirs would exceed the limit; but an empty buffer takes any row. While it is full, a
    row goes out: number `random * held >> 64` of those held, where random is the number of
    SplitMix64 (key, step); the last row moves to its place; step grows by one. Then the new row
    comes in, after the last one.
    """
    given = 0

    def give() -> None:
        nonlocal held, weight, given
        chosen = split_mix(key, step + given) * held >> 64
        out[given] = slots[chosen]
        held -= 1
        weight -= weight_of_row(slots[chosen])
        given += 1
        slots[chosen] = slots[held]

    for taken, row in enumerate(incoming):
        while held and (held == len(slots) or weight + weight_of_row(row) > limit):
            if given == most:
                return taken, given, held, weight
            give()
        slots[held] = row
        held, weight = held + 1, weight + weight_of_row(row)
    while ended and held and given < most:
        give()
    return len(incoming), given, held, weight


def weight_of_row(row: Rows) -> int:
    return int(row[1]) - int(row[0]) + 64


def split_mix(key: int, step: int) -> int:
    """Number `step` of SplitMix64, from 0 to 2**64 - 1."""
    z = (key + (step + 1) * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return z ^ z >> 31


def permute(numbers: Rows, sizes: Rows, variants: Rows, keys: Rows) -> list[int]:
    """Where pseudorandom permutations of the numbers below each size take each number."""
    rounds = keys.tolist()
    return [
        permute_one(number, size, murmur(variant * 0x9E3779B97F4A7C15 & WORD), rounds)
        for number, size, variant in zip(
            numbers.tolist(), sizes.tolist(), variants.tolist(), strict=True
        )
    ]


def permute_one(number: int, size: int, tweak: int, keys: Sequence[int]) -> int:
    bits = ((size - 1).bit_length() + 1) // 2
    mask = (1 << bits) - 1
    above = (size - 1 >> bits) + 1
    while True:
        low, high = number & mask, number >> bits
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            word = murmur(low + tweak & WORD ^ first & WORD)
            high = (high + ((word >> 32) * above >> 32)) % above
            low = low + murmur(high + tweak & WORD ^ second & WORD) & mask
        number = high << bits | low
        if number < size:
            return number


def murmur(word: int) -> int:
    """The finalizer of MurmurHash3."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33
