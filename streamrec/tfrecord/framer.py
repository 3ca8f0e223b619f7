"""The framer turns a stream of chunks into records, without I/O: bytes in, Frames out.

The format (TensorFlow's `record_writer.h`): each record is a little-endian uint64 length, the
masked CRC32C of those eight bytes, the payload, and the payload's masked CRC32C.

Rules, each tested with whole streams, byte by byte and with trailing data:
- `feed` returns every record that the data completes, possibly none.
- The length's CRC is checked before the length is used. A length above `max_record_bytes`, or
  beyond the stream's `size`, is damage, never an allocation.
- The records before a bad record are returned; the next call, and every call after it, raises the
  error. If `on_error` allows it, the bad record becomes a loss instead, and the records after it
  are returned too.
- `position` is the offset of the next unread record: where a resume starts. Within damage it is the
  damage's offset.
- `wants` is how many bytes must be held before the next record is complete: a reader sizes its
  request with it.
- The chunks of an incomplete record are kept in a list and joined once: appending would be
  quadratic.
- Undamaged bytes have no extra cost: `damage.Walk` scans a block again only if the scan found
  damage.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from streamrec import kernels
from streamrec.arguments import check_choice
from streamrec.errors import StreamrecError
from streamrec.kernels import copy_bytes
from streamrec.tfrecord.damage import (
    MAX_RECORD_BYTES,
    ON_ERROR,
    Loss,
    OnError,
    Rules,
    Walk,
)
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, NO_SPANS, Frames, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer


def check_on_error(on_error: str, max_skipped: int | None) -> OnError:
    """Checks a policy for damage and its limit of losses; a ValueError for others."""
    if max_skipped is not None and max_skipped < 0:
        raise ValueError(
            f"max_skipped is {max_skipped}: it must be 0 or more losses, or None for no limit"
        )
    return check_choice("on_error", on_error, ON_ERROR)


class UnfinishedRecord:
    """The bytes of a record that is not complete yet, in the pieces in which they came.

    Attributes:
        size: How many bytes the pieces have.

    >>> unfinished = UnfinishedRecord()
    >>> unfinished.keep(b"records, and", 9, 12)
    >>> unfinished.add(b" more", 5)
    >>> unfinished.size, unfinished.join()
    (8, b'and more')
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Buffer] = []

    def add(self, data: Buffer, size: int) -> None:
        """Appends the next piece, of `size` bytes; it is not copied."""
        self._pieces.append(data)
        self.size += size

    def join(self) -> bytes:
        """All bytes in one buffer; they stay here until `keep` replaces them."""
        return b"".join(self._pieces)

    def copy_into(self, block: memoryview) -> int:
        """Copies all bytes to the start of a block; returns their number."""
        end = 0
        for piece in self._pieces:
            chunk = memoryview(piece).cast("B")
            copy_bytes(block[end : end + len(chunk)], chunk)
            end += len(chunk)
        return end

    def keep(self, data: Buffer, start: int, size: int) -> None:
        """Replaces the bytes by those of `data` from `start` to `size`, its length.

        They are copied unless they are all of `data`: they would pin the whole buffer.
        """
        self.size = size - start
        if not self.size:
            self._pieces = []
        elif start == 0:
            self._pieces = [data]
        else:
            self._pieces = [bytes(memoryview(data).cast("B")[start:size])]


class DamageState:
    """What the walks through one stream leave behind: the next walk, and each call, begins with it.

    Attributes:
        search: The damage after which a search for the next record goes on; None without one.
        skipped: How many losses there were, also those that were taken.
    """

    def __init__(self) -> None:
        self.search: Loss | None = None
        self.skipped = 0
        self._losses: list[Loss] = []
        self._error: StreamrecError | None = None

    def take(self, walk: Walk) -> None:
        """Adds what a walk found."""
        self.search = walk.search
        self.skipped += len(walk.losses)
        self._losses += walk.losses
        self._error = walk.error

    def take_losses(self) -> list[Loss]:
        """The losses since the last call, in order."""
        losses = self._losses
        self._losses = []
        return losses

    def check(self) -> None:
        """Raises the error that ended the stream, each time."""
        if self._error is not None:
            raise self._error


class Framer:
    """Frames the records of one stream.

    Args:
        verify: Check each payload's CRC32C. The CRCs of lengths are always checked.
        max_record_bytes: A longer length is damage. The default is above the size of any object in
            a store.
        path: The shard's URL, for errors.
        position: Offset of the stream's first byte in the shard.
        record: How many records precede `position` in the shard.
        on_error: "raise", "skip_record" or "resync": see `damage`. "skip_shard" raises here; the
            reader handles it.
        max_skipped: How many losses are allowed; the next one is an error. None for no limit.
        end: Records whose headers begin at this offset or later are not returned; None for no end.
        size: The offset at which the stream ends: a record that exceeds it is damage at once. None
            if unknown.

    Attributes:
        record: How many records were returned or precede `position`: the index of the next one if
            nothing was lost.
        wants: How many bytes must be `held` before the next record is complete.
        done: Whether `end` is reached: nothing more is returned.

    Examples:
        >>> framer = Framer()
        >>> data = bytes.fromhex("0300000000000000b099490e") + b"cat" + bytes.fromhex("86fdd16f")
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
        on_error: str = "raise",
        max_skipped: int | None = None,
        end: int | None = None,
        size: int | None = None,
    ) -> None:
        policy = check_on_error(on_error, max_skipped)
        self._rules = Rules(
            verify=verify,
            max_record_bytes=max_record_bytes,
            path=path,
            on_error=policy,
            max_skipped=max_skipped,
            end=sys.maxsize if end is None else end,
            size=sys.maxsize if size is None else size,
        )
        self._position = position
        self.record = record
        self.wants = HEADER_BYTES
        self.done = False
        self._unfinished = UnfinishedRecord()
        self._reserved: memoryview | None = None
        self._damage = DamageState()

    @property
    def held(self) -> int:
        """Bytes of an incomplete record that are kept for the next call."""
        return self._unfinished.size

    @property
    def position(self) -> int:
        """Offset of the next unread record's header.

        During a search for the next record, it is that of the damage.
        """
        search = self._damage.search
        return self._position if search is None else search.offset

    def take_losses(self) -> list[Loss]:
        """The losses since the last call, in order."""
        return self._damage.take_losses()

    @property
    def length(self) -> int:
        """Bytes of the next record's payload if its header is held and valid; else 0."""
        searches = self._damage.search is not None
        return 0 if searches else max(0, self.wants - HEADER_BYTES - FOOTER_BYTES)

    def take_held(self) -> bytes:
        """Takes the held bytes out of the framer.

        Next comes `skip`, or a `feed` of the same bytes.
        """
        held = self._unfinished.join()
        self._unfinished.keep(b"", 0, 0)
        self.wants = HEADER_BYTES
        return held

    def skip(self, nbytes: int) -> None:
        """Advances over the next record, which the caller read and checked.

        It is `nbytes` long with header and footer.
        """
        self._position += nbytes
        self.record += 1

    def feed(self, data: Buffer) -> Frames:
        """Takes the next bytes of the stream; returns the records that they complete.

        If no bytes are held, `data` becomes the buffer of the returned frames: do not write to it
        afterwards.

        Raises:
            CorruptRecordError: An earlier call found a bad record, and returned the records before
                it.
        """
        self._damage.check()
        size = memoryview(data).nbytes
        unfinished = self._unfinished
        if not unfinished.size:
            return self._scan(data, size)
        unfinished.add(data, size)
        if unfinished.size < self.wants:
            return self._nothing()
        return self._scan(unfinished.join(), unfinished.size)

    def reserve(self, size: int) -> memoryview:
        """A buffer for the next `size` bytes of the stream.

        Fill it from its start, then call `commit`.

        It follows the held bytes in memory, so its records are framed without another copy.

        Raises:
            CorruptRecordError: An earlier call found a bad record.
        """
        self._damage.check()
        block = memoryview(kernels.allocate(self.held + size))
        self._reserved = block
        return block[self._unfinished.copy_into(block) :]

    def commit(self, size: int, multiple: int = 1) -> Frames:
        """Frames the reserved bytes that were filled.

        Returns the records that they complete, like `feed`.

        Args:
            size: How many of the reserved bytes were filled.
            multiple: If `record` passes a multiple of this, the records after the last multiple are
                kept and returned with the next bytes. Otherwise all records are returned.
        """
        if self._reserved is None:
            raise ValueError("commit without reserve: call reserve(size) and fill its start first")
        block = self._reserved
        self._reserved = None
        filled = self.held + size
        if filled > len(block):
            raise ValueError(f"commit({size}) of {len(block) - self.held} reserved bytes")
        return self._scan(block[:filled], filled, multiple)

    def close(self) -> Frames:
        """Ends the stream.

        Returns:
            Records that a search found in the held bytes; usually none.

        Raises:
            TruncatedShardError: The stream ended within a record.
            CorruptRecordError: An earlier call found a bad record.
        """
        damage = self._damage
        damage.check()
        size = self.held
        if size or damage.search:
            frames = self._walk(self._unfinished.join(), size, final=True)
        else:
            frames = self._nothing()
        if not len(frames):
            damage.check()
        return frames

    def _nothing(self) -> Frames:
        return Frames(b"", NO_SPANS, self._position)

    def _scan(self, data: Buffer, size: int, multiple: int = 1) -> Frames:
        """Frames `data`, which begins with the held bytes.

        Keeps the bytes after the last returned record.
        """
        if self._damage.search is not None or self.done:
            return self._walk(data, size)
        rules = self._rules
        spans, end, code, wants = kernels.scan_frames(data, 0, rules.verify, rules.max_record_bytes)
        # The fast path knows neither damage nor the end of a byte range; a Walk goes through the
        # same bytes a second time.
        beyond = wants > HEADER_BYTES and self._position + end + wants > rules.size
        if code != kernels.OK or beyond or self._position + end >= rules.end:
            return self._walk(data, size)
        frames = Frames(data, as_spans(spans), self._position)
        count = len(frames)
        excess = (self.record + count) % multiple
        if 0 < excess < count:
            count -= excess
            frames = frames.window(0, count)
            end = frames.offset(count) - self._position
            wants = HEADER_BYTES
        self._position += end
        self.record += count
        self.wants = wants
        self._unfinished.keep(data, end, size)
        return frames if count else self._nothing()

    def _walk(self, data: Buffer, size: int, final: bool = False) -> Frames:
        """Frames `data` like `_scan`, across damage and up to the end of a byte range."""
        if self.done:
            return self._nothing()
        origin = self._position
        walk = Walk(
            rules=self._rules,
            data=memoryview(data).cast("B"),
            base=origin,
            record=self.record,
            skipped=self._damage.skipped,
            final=final,
            search=self._damage.search,
        )
        walk.run()
        self._position += walk.at
        self.record = walk.record
        self.wants = walk.wants
        self.done = walk.done
        self._damage.take(walk)
        # Nothing is kept at the end of the stream or of the range; nor after an error, since each
        # further call raises it.
        end = size if final or walk.done or walk.error else walk.at
        self._unfinished.keep(data, end, size)
        if not walk.spans:
            return self._nothing()
        spans = walk.spans[0] if len(walk.spans) == 1 else np.concatenate(walk.spans)
        return Frames(data, spans, origin)
