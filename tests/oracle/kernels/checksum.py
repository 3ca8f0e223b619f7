"""CRC32C (RFC 3720, appendix B.4) of buffers; the twin of crc32c*.c."""

from __future__ import annotations

import google_crc32c

from streamrec.kernels.codes import BytesLike
from tests.oracle.kernels.args import bytes_of, integer

__all__ = ["crc32c", "crc32c_implementations", "crc32c_with", "masked_crc32c"]

_IMPLEMENTATION = "google-crc32c"
_MASK_DELTA = 0xA282EAD8


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
