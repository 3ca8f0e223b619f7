"""The contract between bytes and columns: what a walk over the records' wire bytes is asked for and gives back.

Two walkers keep this contract: the native one (native.py, in C) and the readable one (tests/oracle/parsing.py).
All that can be done on whole columns (sparse positions, ragged partitions, padding of strings and feature lists) is
done above, once, in NumPy.

Contract of a walk:
  - each record is looked at once, in order; the first failure ends the walk with a `WalkError`;
  - which bytes are accepted, and what they mean, is TensorFlow's reading of the wire format (the docstring of
    tests/oracle/parsing.py has the rules), for damaged bytes too;
  - a dense slot gives `size` values for each record, where the record has none its default;
  - a padded slot gives rows of one length, that of the longest: each record's values, and what fills them up;
  - any other slot gives all values joined, and where each record's values end;
  - bytes are `bytes` objects in object arrays, or, on request, spans over the records' buffer: int64 of shape
    `[n, 2]`, start and end, -1 and -1 for a default; over several buffers `[n, 4]`, as in `Records`.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example.features import Dtype

Array: TypeAlias = npt.NDArray[Any]
Offsets: TypeAlias = npt.NDArray[np.int64]


class Records(NamedTuple):
    """The serialized messages: bytes objects, or spans over one buffer or several. Exactly one of the two is not None.

    Args:
        items: A tuple of bytes.
        buffer: A C-contiguous buffer of bytes, or a tuple of such.
        spans: int64 of shape `[n, 2]`, start and end of each message in `buffer`; of several buffers `[n, 4]`: start,
            end, the number of the buffer times 2**32, and a number that is not looked at.
    """

    items: tuple[bytes, ...] | None
    buffer: Any = None
    spans: Offsets | None = None

    def __len__(self) -> int:
        """The number of messages."""
        return len(self.items if self.items is not None else self.spans)  # type: ignore[arg-type]

    @property
    def scattered(self) -> bool:
        """Whether they are in several buffers."""
        return isinstance(self.buffer, tuple)

    @property
    def nbytes(self) -> int:
        """Bytes of all messages together."""
        assert self.spans is not None
        return int((self.spans[:, 1] - self.spans[:, 0]).sum())

    def owned(self, counts: Any) -> Array:
        """Rows for strings of these messages in several buffers; the walk fills in all but the buffers.

        Args:
            counts: How many strings each message has; or one number, if they all have as many.
        """
        assert self.spans is not None
        owners = np.repeat(self.spans[:, 2], counts)
        rows = np.zeros((len(owners), 4), np.int64)
        rows[:, 2] = owners
        return rows


@dataclass(frozen=True, eq=False)
class Slot:
    """One key to look for.

    Args:
        name: The key.
        dtype: The kind of values wanted.
        dense: Whether each record has exactly `size` values. If not, any multiple of `size`.
        size: Values of one record (dense), or of one step (a feature list, a padded feature).
        default: What a dense slot gets where the record has none, `size` values; None makes it required.
        required: Whether a record without the key is a failure.
        empty_counts: Whether a Feature without any kind hides an earlier one of the same key. Among duplicate
            keys the last one counts; TensorFlow passes over empty ones for dense features, and for all
            features of a single example.
        shape: The shape of one record or step, for messages.
        pad: What the records' values are filled up with to the number of the longest: one number. None where they are
            not; only numbers of Examples are, and not if dense.
    """

    name: str
    dtype: Dtype
    dense: bool = False
    size: int = 1
    default: Array | None = None
    required: bool = False
    empty_counts: bool = False
    shape: tuple[int, ...] = ()
    pad: np.int64 | np.float32 | None = None

    @property
    def kind(self) -> int:
        """The number of the wanted list's field in a Feature message: 1 bytes, 2 float, 3 int64."""
        return {bytes: 1, np.float32: 2, np.int64: 3}[self.dtype]


class Raw(NamedTuple):
    """The values of a slot that is neither dense nor padded, as the walk found them.

    Args:
        values: All values joined: int64, float32, or bytes (see the contract).
        splits: int64, one more than there are records: where each record's values (in a feature list, its
            steps) start and end.
        inner: int64, one more than there are steps: where each step's values start and end. None except in
            feature lists.
    """

    values: Array
    splits: Offsets
    inner: Offsets | None = None


Found: TypeAlias = "Array | Raw"
"""What a slot of an Example or a context gave: the values alone where it is dense or padded."""


class Code(enum.IntEnum):
    """Why a walk ended. The numbers are those of decode_core.h."""

    MESSAGE = 1  # the record is not an Example
    KIND = 2  # a Feature that holds another kind than the one wanted
    LIST = 3  # a Feature whose list of values is damaged
    COUNT = 4  # another number of values than the shape wants
    MISSING = 5  # no such key, and no default


_KINDS = {1: ("bytes", "bytes"), 2: ("float32", "np.float32"), 3: ("int64", "np.int64")}
"""What the kinds' field numbers mean: for a person, and as code."""


class WalkError(Exception):
    """The first thing that a walk could not accept; parse.py turns it into a FeatureError.

    Args:
        code: What is wrong.
        record: Index of the record.
        slot: The slot, or None where no feature is to blame.
        found: The kind's field number (KIND; 0 is none of the three) or the number of values (COUNT).
    """

    def __init__(self, code: Code, record: int, slot: Slot | None = None, found: int = 0) -> None:
        super().__init__(code, record, slot, found)
        self.code = code
        self.record = record
        self.slot = slot
        self.found = found

    def reason(self) -> str:
        """What was found where what was wanted, and what to do."""
        slot = self.slot
        if self.code is Code.MESSAGE or slot is None:
            return "the bytes are not a serialized message; was the record read whole, and is it the right type?"
        wanted = slot.dtype.__name__
        if self.code is Code.KIND:
            if self.found not in _KINDS:
                return f"found an unknown kind of values where {wanted} is wanted; write the record again"
            found, dtype = _KINDS[self.found]
            return f"found {found} values where {wanted} is wanted: write {dtype} as the feature's dtype"
        if self.code is Code.LIST:
            return f"the {wanted} values are damaged; write the record again"
        if self.code is Code.COUNT:
            multiple = "" if slot.dense else "a multiple of "
            shape = list(slot.shape)
            return f"found {self.found:,} values where the shape {shape} wants {multiple}{slot.size:,}"
        advice = "give a default_value, or allow_missing=True in a feature list"
        return f"found nothing where {slot.size:,} {wanted} values are wanted; {advice}"

    def error(self, names: Sequence[str | bytes] | None, single: bool = False) -> FeatureError:
        """The error for the user; `names` are the examples' names, if there are any. A single message has no number."""
        name = names[self.record] if names is not None else None
        text = name.decode(errors="replace") if isinstance(name, bytes) else name
        return FeatureError(self.reason(), self.slot.name if self.slot else None, None if single else self.record, text)
