"""What a reader does about damage: the policies, what was lost, and the walk through damaged bytes. No I/O.

The policies of `on_error`:

- "raise": the first damage is an error; the records before it come first.
- "skip_record": a payload with a wrong CRC32C under a good length is left out: exactly that record is lost. All else
  raises, because what is lost then is not known to be one record: a damaged length, an end within a record.
- "resync": the same; and after a length that cannot be believed, the reader searches for the next record: the first
  offset from the next byte on whose length and payload both have a right CRC32C.
- "skip_shard": the first damage ends the shard. The reader gives the records before it; all after it are lost.

The framer calls `Walk` for what its quick path cannot finish, and takes back the records, the losses, and the bytes to
hold. The rules of the search:

- Twelve bytes that are a header by chance pass once in 2^66 places, and a payload's CRC is 32 bits more. So what the
  search finds was written as a record, though not always as a record of this shard. Where the damaged record holds a
  TFRecord file in its payload, the search finds the records of that file first, and then the shard's own: nothing in
  the format tells one from the other.
- The search waits up to WINDOW bytes for the payload of a header. Where a header claims more, the search prefers a
  whole record within the bytes that are there. So a stale length does not hold it up for a gigabyte; and it finds a
  record of more than WINDOW bytes after damage only if that record does not hold whole records itself.
- The search allocates nothing for a length. Searching again while bytes arrive costs twice the work of one search.
- A payload with a wrong CRC whose end does not lead to another header (or to the end of the shard) may have lost bytes
  or gained some: then its length does not tell where the next record begins, and "resync" searches from its second
  byte on. It also does so where whole records fill the payload up to its very end: as many bytes were lost as those
  have. (Records that belong in a payload end before its own CRC.)
- A byte range ends before the first record whose header begins at or after its `end`. That header is still checked:
  a reader that starts there by searching would pass a damaged one over silently. A loss counts up to the range's end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.arguments import choice
from streamrec.display import display_name, display_repr, display_text
from streamrec.errors import CorruptRecordError, StreamrecError, TruncatedShardError
from streamrec.tfrecord.compression import is_record_header, looks_like
from streamrec.tfrecord.frames import FOOTER_BYTES, HEADER_BYTES, as_spans

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "MAX_RECORD_BYTES",
    "Loss",
    "OnError",
    "Rules",
    "Walk",
    "check_on_error",
]

OnError = Literal["raise", "skip_record", "resync", "skip_shard"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)

TRUNCATED = -1
"""In addition to the codes of `scan_frames`: the bytes end within a record, or its length leads beyond their end."""

MAX_RECORD_BYTES = 1 << 46
"""Default limit of a record's length: 64 TiB, more than an object of any store holds. A shard's size limits it too."""

WINDOW = 16 << 20
"""Bytes that a search waits for a record before it looks for another one within it."""


@display_repr
@dataclass(frozen=True, slots=True)
class Loss:
    """A byte range of a shard that was left out because it is damaged.

    Args:
        path: The shard's URL, or None where only bytes are known.
        offset: Where it begins in the (decompressed) shard: at the header of the damaged record.
        nbytes: How long it is; None where that is unknown (the rest of a compressed shard).
        reason: What was found where what was wanted.
        record: How many records were read before it. Where nothing was lost before, that is the damaged record's index;
            after a search the number is unknown, so lost records are never counted.
    """

    path: str | None
    offset: int
    nbytes: int | None
    reason: str
    record: int

    def __str__(self) -> str:
        size = "the rest of it" if self.nbytes is None else f"{self.nbytes:,} bytes"
        where = f"{display_name(self.path)}, " if self.path else ""
        return f"{where}byte {self.offset:,}, after {self.record:,} records: lost {size}: {display_text(self.reason)}"


def check_on_error(on_error: str, max_skipped: int | None) -> OnError:
    """The policy by its exact name.

    Raises:
        ValueError: The policy does not exist, or the limit is negative.
    """
    if max_skipped is not None and max_skipped < 0:
        raise ValueError(f"max_skipped={max_skipped}: wanted None for no limit, or 0 or more losses")
    return choice("on_error", on_error, ON_ERROR)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a stream is read by; the framer's arguments."""

    verify: bool
    max_record_bytes: int
    path: str | None
    on_error: OnError
    max_skipped: int | None
    end: int = sys.maxsize
    size: int = sys.maxsize

    @property
    def search_limit(self) -> int:
        """The longest record that a search believes: a shorter limit lets fewer headers pass by chance."""
        return min(self.max_record_bytes, self.size)

    def error_for(self, code: int, damage: Loss, losses: int) -> StreamrecError | None:
        """What ends the stream at this damage, after that many losses; None where the damage is left out."""
        forgiven = self.on_error == "resync" or (self.on_error == "skip_record" and code == kernels.BAD_PAYLOAD_CRC)
        reason = damage.reason
        if forgiven and self.max_skipped is not None and losses >= self.max_skipped:
            forgiven, reason = False, f"{reason} (one loss more than max_skipped={self.max_skipped})"
        kind = TruncatedShardError if code == TRUNCATED else CorruptRecordError
        return None if forgiven else kind(reason, self.path, damage.offset, damage.record)


@dataclass(slots=True)
class Walk:
    """Goes through consecutive bytes of a stream as far as they go.

    Args:
        rules: What the stream is read by.
        data: The bytes.
        base: Offset in the stream of its first byte.
        record: How many records came before it.
        skipped: How many losses.
        final: Nothing follows it.
        search: The damage after which the next record is still searched for, if any.

    Attributes:
        spans: Of the records, int64 [n, 2] each.
        losses: What was left out.
        at: Where in `data` begins what must be held until more comes.
        wants: How many bytes from there on are wanted.
        error: What ends the stream here.
        done: The byte range is at its end.
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
        """Goes on until more bytes are wanted, the byte range ends, or there is an error."""
        going = True
        while going:
            going = self._frame() if self.search is None else self._search()

    @property
    def _limit(self) -> int:
        """Where in `data` the byte range ends."""
        return self.rules.end - self.base

    def _frame(self) -> bool:
        """Takes the records from `at` on; True where the walk goes on after them."""
        rules = self.rules
        found, self.at, code, self.wants = kernels.scan_frames(self.data, self.at, rules.verify, rules.max_record_bytes)
        self._take(as_spans(found))
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
        """Keeps the records whose headers begin before the byte range's end."""
        if self.at > self._limit and len(spans):
            ours = int(np.searchsorted(spans[:, 0], self._limit + HEADER_BYTES))
            if ours < len(spans):
                self.done, self.at = True, int(spans[ours, 0]) - HEADER_BYTES
                spans = spans[:ours]
        if len(spans):
            self.spans.append(spans)
            self.record += len(spans)

    def _handle_damage(self, code: int) -> bool:
        """The record at `at` is bad: what the rules say about that."""
        offset = self.base + self.at
        damage = Loss(self.rules.path, offset, None, self._reason(code), self.record)
        self.error = self.rules.error_for(code, damage, self.skipped + len(self.losses))
        if self.error is not None:
            return False
        if code == kernels.BAD_PAYLOAD_CRC and (leads := self._leads_on(self.at, self.at + self.wants)) is not True:
            if leads is None:
                self.wants += HEADER_BYTES
                return False
            code = kernels.BAD_LENGTH_CRC
        if code == kernels.BAD_PAYLOAD_CRC:
            self.losses.append(replace(damage, nbytes=self.wants))
            self.at += self.wants
        else:
            self.search = damage
            self.at += 1
        return True

    def _leads_on(self, start: int, end: int) -> bool | None:
        """Whether a damaged record from `start` to `end` leads on to another, or to the end; None: not yet known."""
        if self.rules.on_error == "skip_record":
            return True
        left = len(self.data) - end
        if left < HEADER_BYTES:
            return not left and not self._covers(start, end) if self.final else None
        leads = is_record_header(bytes(self.data[end : end + HEADER_BYTES]))
        return leads and not self._covers(start, end)

    def _covers(self, start: int, end: int) -> bool:
        """Whether whole records after `start` end at `end`."""
        within, limit = self.data[:end], self.rules.search_limit
        position, wants = kernels.find_header(within, start + 1, True, limit)
        while wants != HEADER_BYTES:
            _, position, _, _ = kernels.scan_frames(within, position, True, limit)
            if position == end:
                return True
            position, wants = kernels.find_header(within, position + 1, True, limit)
        return False

    def _search(self) -> bool:
        """Looks for the next record; True where one was found."""
        assert self.search is not None
        self.at, self.wants = search(self.data, self.at, self.rules.search_limit, self.final)
        whole = self.at + self.wants <= len(self.data)
        if self.at >= self._limit:
            self.done = True
            stop = min(max(self.rules.end, self.search.offset + HEADER_BYTES), self.base + len(self.data))
        elif whole or self.final:
            stop = self.base + self.at
        else:
            return False
        self.losses.append(replace(self.search, nbytes=stop - self.search.offset))
        self.search = None
        return whole and not self.done

    def _reason(self, code: int) -> str:
        """What is wrong with the record at `at`, and what to do."""
        rest = self.data[self.at :]
        length = int.from_bytes(rest[:8], "little")
        if code == TRUNCATED:
            left = len(rest) if self.final else self.rules.size - self.base - self.at
            return (
                f"the shard ends after {left:,} of at least {self.wants:,} bytes of this record: "
                "its writer did not finish, or the copy is incomplete; write or copy it again"
            )
        if code == kernels.BAD_LENGTH_CRC:
            looks = looks_like(bytes(rest[:HEADER_BYTES])) if self.base + self.at == 0 else None
            if looks is not None:
                twice = "; if that was done, it is compressed twice: unpack it once" * looks.endswith("leave it out")
                return f"this is not a TFRecord file: it begins like {looks}{twice}"
            return (
                f"the CRC32C of the record's length is wrong (bytes {rest[:HEADER_BYTES].hex()}): the shard is damaged "
                "here, is compressed in another way than was said, or is not a TFRecord file"
            )
        if code == kernels.TOO_LONG:
            if self.rules.max_record_bytes == MAX_RECORD_BYTES:
                return (
                    f"the record says that it is {length:,} bytes long, more than any store holds: the shard is "
                    "damaged here; fetch or write it again"
                )
            return (
                f"the record says that it is {length:,} bytes long, above "
                f"max_record_bytes={self.rules.max_record_bytes:,}; pass a higher max_record_bytes if it really is"
            )
        stored = rest[HEADER_BYTES + length : HEADER_BYTES + length + FOOTER_BYTES]
        actual = kernels.masked_crc32c(rest[HEADER_BYTES : HEADER_BYTES + length])
        return (
            f"the CRC32C of the record's {length:,} bytes is {actual:#010x}, but the shard says "
            f"{int.from_bytes(stored, 'little'):#010x}: the data is damaged; fetch or write the shard again"
        )


def search(data: Buffer, start: int, max_record_bytes: int, final: bool) -> tuple[int, int]:
    """The next record at or after `start`.

    Args:
        data: All bytes that are there.
        start: The first place that is looked at.
        max_record_bytes: A longer length is not believed.
        final: No more bytes come: a record that is not whole does not count.

    Returns:
        position: Of the record, or of the first byte that must be kept until more come.
        wants: How many bytes from there on must be there. If they are, `position` is a whole good record; else this is
            when to search again. At the end of all bytes with `final`, where there is none.
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
