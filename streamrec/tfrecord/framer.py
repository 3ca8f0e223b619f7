"""Framer: bytes in, Frames out, no I/O. The one place that turns a stream of chunks into records.

The format (TensorFlow's `record_writer.h`): each record is a little-endian uint64 length, the masked CRC32C
of those eight bytes, the payload, and the payload's masked CRC32C.

Rules, each with a test that runs whole, byte by byte and with trailing data:
- `feed` returns every record that the data completes, possibly none.
- The length's CRC is checked before the length is believed. A length above `max_record_bytes`, or beyond the stream's
  `size`, is damage, never an allocation.
- What precedes a bad record is returned; the error comes from the next call, and from every call after it. Where
  `on_error` says so, the bad record is a loss instead, and what follows it is returned too.
- `position` is the offset of the next unread record: where a resume starts. Within damage that is where it began.
- `wants` is how many bytes must be held before the next record can come: a reader sizes its request with it.
- A record that straddles chunks is held as a list and joined once: appending would be quadratic.
- Bytes without damage cost nothing more: `damage.Walk` goes again through a block that is not plain.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from streamrec import kernels
from streamrec.errors import StreamrecError
from streamrec.kernels import copy_bytes
from streamrec.tfrecord.damage import MAX_RECORD_BYTES, Loss, Rules, Walk, check_on_error
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, Frames, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Framer"]

NO_SPANS = np.empty((0, 2), np.int64)
NO_SPANS.flags.writeable = False


class Framer:
    """Frames the records of one stream.

    Args:
        verify: Check each payload's CRC32C. The lengths' are always checked.
        max_record_bytes: A longer record is taken for corruption; by default none that a store can hold.
        path: The shard's URL, for errors.
        position: Offset of the stream's first byte, where reading starts within a shard.
        record: How many records were read before it, where reading starts within a shard.
        on_error: "raise", "skip_record" or "resync": see `damage`. "skip_shard" is up to the reader: it raises here.
        max_skipped: How many losses are borne before the next one is an error; None for any number.
        end: Records whose headers begin at this offset or later are not returned; None for no end.
        size: Where the stream ends, as an offset in bytes: a length that leads beyond is damage at once. None where
            that is not known.

    Attributes:
        record: How many records were returned, and came before the first: the next one's index where nothing was lost.
        held: Bytes that are here and wait for more.
        wants: Bytes that must be `held` before the next record can be returned.
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
        stop, size = sys.maxsize if end is None else end, sys.maxsize if size is None else size
        self._rules = Rules(verify, max_record_bytes, path, policy, max_skipped, stop, size)
        self._position = position
        self.record = record
        self.wants = HEADER_BYTES
        self.held = 0
        self.done = False
        self._held: list[Buffer] = []
        self._reserved: memoryview | None = None
        self._search: Loss | None = None
        self._losses: list[Loss] = []
        self._skipped = 0
        self._error: StreamrecError | None = None

    @property
    def position(self) -> int:
        """Offset in the stream of the next unread record's header, or of the damage after which it searches."""
        return self._position if self._search is None else self._search.offset

    def take_losses(self) -> list[Loss]:
        """What was left out since the last call, in order."""
        losses, self._losses = self._losses, []
        return losses

    @property
    def length(self) -> int:
        """Bytes of the next record's payload, where its header is held, and good; else 0."""
        return max(0, self.wants - HEADER_BYTES - FOOTER_BYTES) if self._search is None else 0

    def take_held(self) -> bytes:
        """The bytes that are held, and are held no more: `skip` follows, or the same bytes once more."""
        held, self._held, self.held, self.wants = b"".join(self._held), [], 0, HEADER_BYTES
        return held

    def skip(self, nbytes: int) -> None:
        """The next record, `nbytes` long with its header and footer, was good, and comes no more."""
        self._position += nbytes
        self.record += 1

    def feed(self, data: Buffer) -> Frames:
        """Takes the next bytes of the stream; returns the records that they complete.

        `data` becomes the returned frames' buffer where nothing is held over from before, so it must not be
        written to afterwards.

        Raises:
            CorruptRecordError: An earlier call met a bad record. Its good predecessors were returned then.
        """
        self._check()
        size = memoryview(data).nbytes
        if not self._held:
            return self._scan(data, size)
        self._held.append(data)
        self.held += size
        if self.held < self.wants:
            return self._nothing()
        return self._scan(b"".join(self._held), self.held)

    def reserve(self, size: int) -> memoryview:
        """Room for the next `size` bytes of the stream, to be filled from its start and then `commit`ted.

        The bytes that are held over precede it, so bytes that are read into it are framed without another copy.

        Raises:
            CorruptRecordError: An earlier call met a bad record.
        """
        self._check()
        block = memoryview(kernels.allocate(self.held + size))
        end = 0
        for held in self._held:
            part = memoryview(held).cast("B")
            copy_bytes(block[end : end + len(part)], part)
            end += len(part)
        self._reserved = block
        return block[end:]

    def commit(self, size: int, multiple: int = 1) -> Frames:
        """The first `size` reserved bytes are filled: returns the records that they complete, as `feed`.

        Args:
            size: How many of the reserved bytes are filled.
            multiple: Where `record` reaches a multiple of this, the records after the last such place are held over,
                whole as they are, and come with the next bytes. What there is comes where no such place is passed.
        """
        if self._reserved is None:
            raise ValueError("commit without reserve: call reserve(size) and fill its start first")
        block, self._reserved = self._reserved, None
        filled = self.held + size
        if filled > len(block):
            raise ValueError(f"commit({size}) of {len(block) - self.held} reserved bytes")
        return self._scan(block[:filled], filled, multiple)

    def close(self) -> Frames:
        """Says that the stream ended.

        Returns:
            The last records: those that a search finds after one that is not whole; mostly none.

        Raises:
            TruncatedShardError: It ended within a record.
            CorruptRecordError: An earlier call met a bad record.
        """
        self._check()
        held, size = b"".join(self._held), self.held
        frames = self._walk(held, size, final=True) if size or self._search else self._nothing()
        if not len(frames):
            self._check()
        return frames

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _nothing(self) -> Frames:
        return Frames(b"", NO_SPANS, self._position)

    def _scan(self, data: Buffer, size: int, multiple: int = 1) -> Frames:
        """Frames all of `data`, held bytes and new ones; holds over what follows the last record returned."""
        if self._search is not None or self.done:
            return self._walk(data, size)
        rules = self._rules
        spans, end, code, wants = kernels.scan_frames(data, 0, rules.verify, rules.max_record_bytes)
        beyond = wants > HEADER_BYTES and self._position + end + wants > rules.size
        if code != kernels.OK or beyond or self._position + end >= rules.end:
            return self._walk(data, size)
        frames = Frames(data, as_spans(spans), self._position)
        count = len(frames)
        over = (self.record + count) % multiple
        if 0 < over < count:
            count -= over
            frames = frames.window(0, count)
            end, wants = frames.offset(count) - self._position, HEADER_BYTES
        self._position += end
        self.record += count
        self.wants = wants
        self._hold(data, end, size)
        return frames if count else self._nothing()

    def _walk(self, data: Buffer, size: int, final: bool = False) -> Frames:
        """The same through damage, or to the end of a byte range."""
        if self.done:
            return self._nothing()
        origin, view = self._position, memoryview(data).cast("B")
        walk = Walk(self._rules, view, origin, self.record, self._skipped, final, self._search)
        walk.run()
        self._position += walk.at
        self.record, self.wants, self._search = walk.record, walk.wants, walk.search
        self._losses += walk.losses
        self._skipped += len(walk.losses)
        self._error, self.done = walk.error, walk.done
        self._hold(data, size if final or walk.done or walk.error else walk.at, size)
        if not walk.spans:
            return self._nothing()
        return Frames(data, walk.spans[0] if len(walk.spans) == 1 else np.concatenate(walk.spans), origin)

    def _hold(self, data: Buffer, end: int, size: int) -> None:
        """Keeps the unfinished record's bytes: a copy where they would pin the frames' buffer."""
        self.held = size - end
        if not self.held:
            self._held = []
        elif end == 0:
            self._held = [data]
        else:
            self._held = [bytes(memoryview(data).cast("B")[end:size])]
