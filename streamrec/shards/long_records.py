"""Long records that are checked while their bytes arrive, and not kept: for copies and indexes."""

from __future__ import annotations

from typing import NamedTuple

from streamrec import kernels
from streamrec.shards.opening import Opened
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, Framer
from streamrec.tfrecord.frames import mask_crc32c


class LongRecord(NamedTuple):
    """A good record that was checked and not returned.

    It has the offset of the record's header, and the length of its payload.
    """

    offset: int
    length: int

    @property
    def nbytes(self) -> int:
        """The bytes of the record in the shard, with header and footer."""
        return HEADER_BYTES + self.length + FOOTER_BYTES


class LongRecords:
    """The long records of one shard: those of more than `longest` bytes.

    Attributes:
        checked: Those that were good, and have not been taken.
    """

    def __init__(self, longest: int) -> None:
        self.checked: list[LongRecord] = []
        self._longest = longest
        self._damaged_at = -1  # where a long record begins that is read into memory

    def is_next(self, framer: Framer) -> bool:
        """Whether the framer's next record is to be checked and not kept."""
        return framer.length > self._longest and framer.position != self._damaged_at

    async def check(self, framer: Framer, opened: Opened, block_bytes: int, verify: bool) -> bool:
        """Checks the framer's next record while its bytes arrive, and drops them.

        False if it is damaged, or cut off: the shard must be read again from its header, and the
        framer says what is wrong.
        """
        # The CRC32C is summed over the pieces as they arrive, so that a record of gigabytes takes
        # one block of memory. The footer may be in two pieces.
        record = LongRecord(framer.position, framer.length)
        room = memoryview(kernels.allocate(block_bytes))
        data = memoryview(framer.take_held())[HEADER_BYTES:]
        left = record.length + FOOTER_BYTES
        crc = 0
        footer = b""
        while True:
            payload = data[: max(0, left - FOOTER_BYTES)]
            if verify:
                crc = kernels.crc32c(payload, crc)
            footer += data[len(payload) :]
            left -= len(data)
            if not left:
                break
            count = await opened.source.readinto(room[:left])
            if not count:
                break
            data = room[:count]
        is_good = not verify or footer == mask_crc32c(crc).to_bytes(4, "little")
        if left or not is_good:
            self._damaged_at = record.offset
            return False
        self.checked.append(record)
        framer.skip(record.nbytes)
        return True

    def take(self) -> list[LongRecord]:
        """Returns the good ones since the last call."""
        records = self.checked
        self.checked = []
        return records
