"""What a reader does about damage, and what it reports. Pure descriptions.

The policies of `on_error`:

- "raise": the first damage is an error; the records before it come first.
- "skip_record": a payload with a wrong CRC32C under a good length is left out: exactly that record is lost. All else
  raises, because what is lost then is not known to be one record: a damaged length, an end within a record.
- "resync": the same; and after a length that cannot be believed, the reader searches for the next record: the first
  offset from the next byte on whose length and payload both have a right CRC32C. `recovery` says what that finds.
- "skip_shard": the first damage ends the shard. The reader gives the records before it; all after it are lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamrec.display import display_name, display_repr, display_text

__all__ = ["ON_ERROR", "Loss", "OnError", "check_on_error"]

OnError = Literal["raise", "skip_record", "resync", "skip_shard"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip_record", "resync", "skip_shard")


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
        ValueError: There is no such policy, or the limit is negative.
    """
    if max_skipped is not None and max_skipped < 0:
        raise ValueError(f"max_skipped={max_skipped}: wanted None for no limit, or 0 or more losses")
    for known in ON_ERROR:
        if on_error == known:
            return known
    raise ValueError(f"on_error={on_error!r} is none of {', '.join(map(repr, ON_ERROR))}")
