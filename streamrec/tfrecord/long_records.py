"""Long records, checked and not held: their payloads go through the CRC as they come, and are dropped.

Counting and checking a shard needs the lengths and CRCs of its records, not the records. So a record of any length
takes no more memory than a block. Where one of them must be copied, its bytes are read once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamrec import kernels
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES

__all__ = ["LONG_BYTES", "LongRecord"]

LONG_BYTES: Final = 64 << 20
"""Records up to this length are held whole where records are only counted or checked."""

MASK_DELTA: Final = 0xA282EAD8


@dataclass(slots=True)
class LongRecord:
    """A record whose bytes pass by.

    Attributes:
        offset: Of its header in the (decompressed) shard, in bytes.
        length: Bytes of its payload.
        passed: How many bytes of its frame have come.
    """

    offset: int
    length: int
    passed: int = 0
    _crc32c: int = 0
    _footer: bytes = b""

    @property
    def nbytes(self) -> int:
        """Bytes of its frame."""
        return HEADER_BYTES + self.length + FOOTER_BYTES

    @property
    def whole(self) -> bool:
        """Whether all of its bytes have come."""
        return self.passed == self.nbytes

    @property
    def stored_crc32c(self) -> int:
        """The masked CRC32C that the shard holds for its payload."""
        return int.from_bytes(self._footer, "little")

    @property
    def actual_crc32c(self) -> int:
        """The masked CRC32C of the payload that came."""
        return ((self._crc32c >> 15 | self._crc32c << 17) + MASK_DELTA) & 0xFFFFFFFF

    def take(self, data: memoryview, verify: bool) -> int:
        """Takes its next bytes from the start of `data`; returns how many it took.

        Args:
            data: The next bytes of the stream; the first ones begin with its header.
            verify: Whether its payload's CRC is computed.
        """
        header, payload, end = (max(0, place - self.passed) for place in (HEADER_BYTES, self.nbytes - 4, self.nbytes))
        if verify:
            self._crc32c = kernels.crc32c(data[header:payload], self._crc32c)
        self._footer += data[payload:end]
        taken = min(end, len(data))
        self.passed += taken
        return taken

    def is_good(self, verify: bool) -> bool:
        """Whether all of it came, with the right CRC."""
        return self.whole and (not verify or self.stored_crc32c == self.actual_crc32c)
