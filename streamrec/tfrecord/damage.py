"""Handling of damage: the policies, the losses, and the walk through damaged bytes. No I/O.

The policies of `on_error`:

- "raise": the first damage is an error, after the records before it.
- "skip_record": a record with a good length and a wrong payload CRC32C is left out: exactly that
  record is lost. A damaged length, or an end within a record, is an error, because more than one
  record may be lost.
- "resync": as "skip_record"; and after a damaged length the reader searches for the next record:
  the first offset after it where the CRC32Cs of the length and of the payload are right.
- "skip_shard": the first damage ends the shard: the reader returns the records before it, and all
  others are lost.

The framer calls `Walk` for data that its fast path cannot finish, and gets the records, the losses,
and the bytes to hold. The rules of the search:

- Random bytes pass as a header at one offset in 2^66, and the payload's CRC adds 32 bits. So the
  search only finds records that were written, though not always as records of this shard: if the
  damaged record's payload is a TFRecord file, the search finds the records of that file first, and
  then the shard's. The format cannot distinguish the two.
- The search waits for at most WINDOW bytes of a header's payload. If a header claims more, the
  search prefers a whole record within the available bytes. So a stale length does not delay it for
  a gigabyte; and it finds a record of more than WINDOW bytes after damage only if that record
  contains no whole records.
- The search never allocates by a length. Repeating it while bytes arrive costs twice the work of
  one search.
- If a payload has a wrong CRC and no header (or the shard's end) follows it, bytes may have been
  lost or added: its length then does not give the offset of the next record, and "resync" searches
  from its second byte on. So it does if whole records fill the payload up to its end: that many
  bytes were lost. (Records that a payload contains end before the payload's CRC.)
- A byte range ends before the first record whose header begins at or after its `end`. That header
  is still checked, because a reader that starts there with a search would skip a damaged one
  silently. A loss ends at the range's end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.display import display_name, display_repr, display_text
from streamrec.errors import CorruptRecordError, StreamrecError, TruncatedShardError
from streamrec.tfrecord.compression import TEXT_BYTES, is_record_header, looks_like
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer

OnError = Literal["raise", "skip_record", "resync", "skip_shard"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)

TRUNCATED = -1
"""A code in addition to those of `scan_frames`: the stream ends within a record."""

NO_SHARD: Final = "this is not a TFRecord file"
"""The beginning of a reason: the file is no shard, not even an unfinished one."""

MAX_RECORD_BYTES = 1 << 46
"""Default limit of a record's length: 64 TiB, above the size of any object in a store.

A shard's size limits it too.
"""

WINDOW = 16 << 20
"""How many bytes of a record a search waits for before it searches within the record."""


@display_repr
@dataclass(frozen=True, slots=True)
class Loss:
    """A byte range of a shard that was skipped because of damage.

    Args:
        path: The shard's URL, or None if the bytes come from no file.
        offset: Offset in the (decompressed) shard of the damaged record's header, where the range
            begins.
        nbytes: Length of the range; None if unknown (the rest of a compressed shard).
        reason: What is wrong.
        record: How many records were read before it. For a shard's first loss this is the damaged
            record's index; lost records never count, because a search cannot know how many there
            were.
    """

    path: str | None
    offset: int
    nbytes: int | None
    reason: str
    record: int

    def __str__(self) -> str:
        size = "the rest of it" if self.nbytes is None else f"{self.nbytes:,} bytes"
        where = f"{display_name(self.path)}, " if self.path else ""
        return (
            f"{where}byte {self.offset:,}, after {self.record:,} records: lost {size}: "
            f"{display_text(self.reason)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a framer reads: its arguments, checked. See `Framer`."""

    verify: bool
    max_record_bytes: int
    path: str | None
    on_error: OnError
    max_skipped: int | None
    end: int = sys.maxsize
    size: int = sys.maxsize

    @property
    def search_limit(self) -> int:
        """The longest record that a search accepts: a lower limit rejects more random bytes."""
        return min(self.max_record_bytes, self.size)

    def error_for(self, code: int, damage: Loss, losses: int) -> StreamrecError | None:
        """The error for this damage, after `losses` earlier ones.

        None if the policy skips the damage.
        """
        skipped = self.on_error == "resync" or (
            self.on_error == "skip_record" and code == kernels.BAD_PAYLOAD_CRC
        )
        reason = damage.reason
        if skipped and self.max_skipped is not None and losses >= self.max_skipped:
            skipped = False
            reason = f"{reason} (one loss more than max_skipped={self.max_skipped})"
        is_cut = code == TRUNCATED and not reason.startswith(NO_SHARD)
        kind = TruncatedShardError if is_cut else CorruptRecordError
        return None if skipped else kind(reason, self.path, damage.offset, damage.record)


@dataclass(slots=True)
class Walk:
    """A walk through consecutive bytes of a stream, the first of which is at offset `base`.

    Args:
        record, skipped: How many records and losses precede the bytes.
        final: Whether the stream ends with them.
        search: The damage after which a search for the next record goes on, if any.

    Attributes:
        spans: Arrays of the records' spans, int64 [n, 2] each.
        losses: The damage that was skipped.
        at: Offset in `data` of the first byte to hold for the next walk.
        wants: How many bytes from `at` on the next walk needs.
        error: The error that ends the stream.
        done: Whether the byte range ended.
    """

    rules: Rules
    data: memoryview
    base: int
    record: int
    skipped: int
    final: bool
    search: Loss | None = None
    spans: list[npt.NDArray[np.int64]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    at: int = 0
    wants: int = HEADER_BYTES
    error: StreamrecError | None = None
    done: bool = False

    def run(self) -> None:
        """Walks until more bytes are needed, the byte range ends, or there is an error."""
        while self._frame() if self.search is None else self._search():
            pass

    @property
    def _limit(self) -> int:
        """Offset in `data` at which the byte range ends."""
        return self.rules.end - self.base

    def _frame(self) -> bool:
        """Takes the records from `at` on; returns whether the walk continues after them."""
        rules = self.rules
        spans, self.at, code, self.wants = kernels.scan_frames(
            self.data, self.at, rules.verify, rules.max_record_bytes
        )
        self._take(as_spans(spans))
        left = len(self.data) - self.at
        beyond = self.wants > HEADER_BYTES and self.base + self.at + self.wants > rules.size
        if code == kernels.OK and (beyond or (self.final and left)):
            code = TRUNCATED
        if self.at >= self._limit:
            self.done = self.done or self.wants > HEADER_BYTES or (self.final and not left)
        if self.done or code == kernels.OK:
            return False
        return self._handle_damage(code)

    def _take(self, spans: npt.NDArray[np.int64]) -> None:
        """Keeps the records whose headers begin before the end of the byte range."""
        if self.at > self._limit and len(spans):
            count = int(np.searchsorted(spans[:, 0], self._limit + HEADER_BYTES))
            if count < len(spans):
                self.done = True
                self.at = int(spans[count, 0]) - HEADER_BYTES
                spans = spans[:count]
        if len(spans):
            self.spans.append(spans)
            self.record += len(spans)

    def _handle_damage(self, code: int) -> bool:
        """Applies the policy to the damaged record at `at`; returns whether the walk continues."""
        offset = self.base + self.at
        damage = Loss(self.rules.path, offset, None, self._reason(code), self.record)
        self.error = self.rules.error_for(code, damage, self.skipped + len(self.losses))
        if self.error is not None:
            return False
        if code == kernels.BAD_PAYLOAD_CRC:
            # Bytes that were inserted or removed in a record leave its length wrong, too: the next
            # header is elsewhere, and to step over the length would lose good records.
            has_good_length = self._has_good_length(self.at, self.at + self.wants)
            if has_good_length is None:
                self.wants += HEADER_BYTES
                return False
            if not has_good_length:
                code = kernels.BAD_LENGTH_CRC
        if code == kernels.BAD_PAYLOAD_CRC:
            self.losses.append(replace(damage, nbytes=self.wants))
            self.at += self.wants
        else:
            self.search = damage
            self.at += 1
        return True

    def _has_good_length(self, start: int, end: int) -> bool | None:
        """Whether another record, or the end, follows the damaged one from `start` to `end`.

        None if that is still unknown.
        """
        if self.rules.on_error == "skip_record":
            return True
        left = len(self.data) - end
        if left < HEADER_BYTES:
            return not left and not self._is_filled(start, end) if self.final else None
        follows = is_record_header(bytes(self.data[end : end + HEADER_BYTES]))
        return follows and not self._is_filled(start, end)

    def _is_filled(self, start: int, end: int) -> bool:
        """Whether whole records after `start` end at `end`."""
        data = self.data[:end]
        limit = self.rules.search_limit
        position, wants = kernels.find_header(data, start + 1, True, limit)
        while wants != HEADER_BYTES:
            _, position, _, _ = kernels.scan_frames(data, position, True, limit)
            if position == end:
                return True
            position, wants = kernels.find_header(data, position + 1, True, limit)
        return False

    def _search(self) -> bool:
        """Searches for the next record; returns whether it found one."""
        assert self.search is not None
        self.at, self.wants = search(self.data, self.at, self.rules.search_limit, self.final)
        whole = self.at + self.wants <= len(self.data)
        if self.at >= self._limit:
            self.done = True
            # The loss contains the damaged header, even if the range ends within it.
            end = max(self.rules.end, self.search.offset + HEADER_BYTES)
            stop = min(end, self.base + len(self.data))
        elif whole or self.final:
            stop = self.base + self.at
        else:
            return False
        self.losses.append(replace(self.search, nbytes=stop - self.search.offset))
        self.search = None
        return whole and not self.done

    def _reason(self, code: int) -> str:
        """Describes the damage of the record at `at`, and what to do."""
        rest = self.data[self.at :]
        length = int.from_bytes(rest[:8], "little")
        if code == TRUNCATED:
            left = len(rest) if self.final else self.rules.size - self.base - self.at
            looks = looks_like(bytes(rest)) if self.base + self.at == 0 else None
            if looks is not None and TEXT_BYTES <= left < HEADER_BYTES:
                return f"{NO_SHARD}: it has only {left:,} bytes, which begin like {looks}"
            return (
                f"the shard ends after {left:,} of at least {self.wants:,} bytes of this record: "
                "its writer did not finish, or the copy is incomplete; write or copy it again"
            )
        if code == kernels.BAD_LENGTH_CRC:
            # Only the first bytes of a shard show that it is another kind of file.
            looks = looks_like(bytes(rest[:HEADER_BYTES])) if self.base + self.at == 0 else None
            if looks is not None:
                twice = ""
                if looks.endswith("leave it out"):
                    twice = "; if that was done, it is compressed twice: unpack it once"
                return f"{NO_SHARD}: it begins like {looks}{twice}"
            return (
                f"the CRC32C of the record's length is wrong (bytes {rest[:HEADER_BYTES].hex()}): "
                "the shard is damaged here, has another compression_type, or is not a TFRecord "
                "file"
            )
        if code == kernels.TOO_LONG:
            if self.rules.max_record_bytes == MAX_RECORD_BYTES:
                return (
                    f"the record claims to be {length:,} bytes long, more than any store holds: "
                    "the shard is damaged here; fetch or write it again"
                )
            return (
                f"the record claims to be {length:,} bytes long, above "
                f"max_record_bytes={self.rules.max_record_bytes:,}; pass a higher max_record_bytes "
                "if that is right"
            )
        stored = rest[HEADER_BYTES + length : HEADER_BYTES + length + FOOTER_BYTES]
        actual = kernels.masked_crc32c(rest[HEADER_BYTES : HEADER_BYTES + length])
        return (
            f"the CRC32C of the record's {length:,} bytes is {actual:#010x}, but the shard says "
            f"{int.from_bytes(stored, 'little'):#010x}: the data is damaged; fetch or write the "
            "shard again"
        )


def search(data: Buffer, start: int, max_record_bytes: int, final: bool) -> tuple[int, int]:
    """Searches for the next record at or after `start`.

    If the stream ends with `data`, it accepts only a whole record.

    Returns:
        position: Offset of the record, or of the first byte to keep for the next search; the end of
            `data` if it is `final` and has no record.
        wants: How many bytes from `position` on are needed. If `data` has them, a whole good record
            begins there; if not, search again once it does.
    """
    size = memoryview(data).nbytes
    position, wants = kernels.find_header(data, start, True, max_record_bytes)
    waiting = position, min(wants, max(WINDOW, 2 * (size - position)))
    if position + wants <= size or not (final or wants > WINDOW):
        return position, wants
    while wants != HEADER_BYTES and position + wants > size:
        position, wants = kernels.find_header(data, position + 1, True, max_record_bytes)
    if wants != HEADER_BYTES:
        return position, wants
    return (size, HEADER_BYTES) if final else waiting
