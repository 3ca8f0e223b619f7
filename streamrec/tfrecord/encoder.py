"""Records in, TFRecord bytes out, no I/O: the counterpart of the framer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.tfrecord.frames import Frames

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RecordBatch", "encode_record", "encode_records"]


@runtime_checkable
class RecordBatch(Protocol):
    """Records over one buffer: Frames, or what `encode_examples` returns."""

    @property
    def buffer(self) -> Buffer:
        """The bytes that hold all payloads."""

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """Where each payload starts and ends, shape [n, 2]."""


def encode_record(record: Buffer) -> bytes:
    """One record as it stands in a shard: length, its CRC, payload, its CRC.

    Examples:
        >>> encode_record(b"cat").hex()
        '0300000000000000b099490e63617486fdd16f'
    """
    return encode_records([record])


def encode_records(records: Iterable[Buffer] | RecordBatch) -> bytes:
    """Many records as they stand in a shard, one after the other; b"" for none."""
    if not isinstance(records, RecordBatch):
        records = Frames.of(bytes(record) for record in records)
    return kernels.encode_frames(records.buffer, np.ascontiguousarray(records.spans))
