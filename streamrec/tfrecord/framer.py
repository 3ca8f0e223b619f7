"""Framer: bytes in, Frames out, no I/O. The one place that turns a stream of chunks into records.

The format (TensorFlow's `record_writer.h`): each record is a little-endian uint64 length, the masked CRC32C
of those eight bytes, the payload, and the payload's masked CRC32C.

Rules, each with a test that runs whole, byte by byte and with trailing data:
- `feed` returns every record that the data completes, possibly none.
- The length's CRC is checked before the length is believed. A length above `max_record_bytes` is
  corruption, never an allocation.
- What precedes a bad record is returned; the error comes from the next call, and from every call after it.
- `position` is the offset of the next unread record: where a resume starts.
- `wants` is how many bytes must be held before the next record can come: a reader sizes its request with it.
- A record that straddles chunks is held as a list and joined once: appending would be quadratic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from streamrec import kernels
from streamrec.errors import CorruptRecordError, StreamrecError, TruncatedShardError
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, Frames, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MAX_RECORD_BYTES", "Framer"]

MAX_RECORD_BYTES = 1 << 30
"""Default limit of a record's length: 1 GiB. Protobuf itself ends at 2 GiB."""

NO_SPANS = np.empty((0, 2), np.int64)
NO_SPANS.flags.writeable = False


class Framer:
    """Frames the records of one stream.

    Args:
        verify: Check each payload's CRC32C. The lengths' are always checked.
        max_record_bytes: A longer record is taken for corruption.
        path: The shard's URL, for errors.
        position: Offset of the stream's first byte, where reading starts within a shard.
        record: Index of the first record, where reading starts within a shard.

    Examples:
        >>> framer = Framer()
        >>> data = bytes.fromhex("0300000000000000a47fb3b8") + b"cat" + bytes.fromhex("e68f93a6")
        >>> len(framer.feed(data[:5])), framer.wants
        (0, 12)
        >>> list(framer.feed(data[5:]))
        [b'cat']
    """

    def __init__(
        self,
        *,
        verify: bool = True,
        max_record_bytes: int = MAX_RECORD_BYTES,
        path: str | None = None,
        position: int = 0,
        record: int = 0,
    ) -> None:
        self._verify = verify
        self._max_record_bytes = max_record_bytes
        self._path = path
        self._position = position
        self._record = record
        self._wants = HEADER_BYTES
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._reserved: memoryview | None = None
        self._error: StreamrecError | None = None

    @property
    def position(self) -> int:
        """Offset in the stream of the next unread record's header."""
        return self._position

    @property
    def record(self) -> int:
        """Index of the next unread record."""
        return self._record

    @property
    def wants(self) -> int:
        """Bytes from `position` on that must be there before the next record can be returned."""
        return self._wants

    @property
    def held(self) -> int:
        """Bytes from `position` on that are here already."""
        return self._held_bytes

    def feed(self, data: Buffer) -> Frames:
        """Takes the next bytes of the stream; returns the records that they complete.

        `data` becomes the returned frames' buffer where nothing is held over from before, so it must not be
        written to afterwards.

        Raises:
            CorruptRecordError: An earlier call met a bad record. Its good predecessors were returned then.
        """
        if self._error is not None:
            raise self._error
        size = memoryview(data).nbytes
        if not self._held:
            return self._scan(data, size)
        self._held.append(data)
        self._held_bytes += size
        if self._held_bytes < self._wants:
            return self._nothing()
        return self._scan(b"".join(self._held), self._held_bytes)

    def reserve(self, size: int) -> memoryview:
        """Room for the next `size` bytes of the stream, to be filled from its start and then `commit`ted.

        What is held over stands right before it, so bytes that land here are framed without another copy.

        Raises:
            CorruptRecordError: An earlier call met a bad record.
        """
        if self._error is not None:
            raise self._error
        block = memoryview(kernels.allocate(self._held_bytes + size))
        end = 0
        for piece in self._held:
            part = memoryview(piece).cast("B")
            block[end : end + len(part)] = part
            end += len(part)
        self._reserved = block
        return block[end:]

    def commit(self, size: int) -> Frames:
        """The first `size` reserved bytes are filled: returns the records that they complete, as `feed`."""
        if self._reserved is None:
            raise ValueError("commit without reserve: call reserve(size) and fill its start first")
        block, self._reserved = self._reserved, None
        filled = self._held_bytes + size
        if filled > len(block):
            raise ValueError(f"commit({size}) of {len(block) - self._held_bytes} reserved bytes")
        return self._scan(block[:filled], filled)

    def close(self) -> None:
        """Says that the stream ended.

        Raises:
            TruncatedShardError: It ended within a record.
            CorruptRecordError: An earlier call met a bad record.
        """
        if self._error is not None:
            raise self._error
        if self._held_bytes:
            self._error = TruncatedShardError(
                f"the shard ends after {self._held_bytes:,} of at least {self._wants:,} bytes of this record: "
                "its writer did not finish, or the copy is incomplete; write or copy it again",
                self._path,
                self._position,
                self._record,
            )
            raise self._error

    def _nothing(self) -> Frames:
        return Frames(b"", NO_SPANS, self._position)

    def _scan(self, data: Buffer, size: int) -> Frames:
        """Frames all of `data`, which begins at `position`; holds over what follows the last whole record."""
        spans, end, code, wants = kernels.scan_frames(data, 0, self._verify, self._max_record_bytes)
        frames = Frames(data, as_spans(spans), self._position)
        self._position += end
        self._record += len(frames)
        self._wants = wants
        if code != kernels.OK:
            self._error = self._corruption(code, memoryview(data).cast("B")[end:])
            end = size
        self._hold(data, end, size)
        return frames if len(frames) else self._nothing()

    def _hold(self, data: Buffer, end: int, size: int) -> None:
        """Keeps the unfinished record's bytes: a copy where they would pin the frames' buffer."""
        self._held_bytes = size - end
        if not self._held_bytes:
            self._held = []
        elif end == 0:
            self._held = [data]
        else:
            self._held = [bytes(memoryview(data).cast("B")[end:size])]

    def _corruption(self, code: int, rest: memoryview) -> CorruptRecordError:
        length = int.from_bytes(rest[:8], "little")
        if code == kernels.BAD_LENGTH_CRC:
            reason = (
                f"the CRC32C of the record's length is wrong (bytes {rest[:HEADER_BYTES].hex()}): the shard is damaged "
                "here, is compressed in another way than was said, or is no TFRecord file"
            )
        elif code == kernels.TOO_LONG:
            reason = (
                f"the record says to be {length:,} bytes long, above max_record_bytes={self._max_record_bytes:,}; "
                "pass a higher max_record_bytes if it really is"
            )
        else:
            stored = rest[HEADER_BYTES + length : HEADER_BYTES + length + FOOTER_BYTES]
            actual = kernels.masked_crc32c(rest[HEADER_BYTES : HEADER_BYTES + length])
            reason = (
                f"the CRC32C of the record's {length:,} bytes is {actual:#010x}, but the shard says "
                f"{int.from_bytes(stored, 'little'):#010x}: the data is damaged; fetch or write the shard again"
            )
        return CorruptRecordError(reason, self._path, self._position, self._record)
