"""Encodes records as TFRecord bytes, without I/O: the counterpart of the framer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.display import shorten
from streamrec.tfrecord.frames import Frames
from streamrec.tracebacks import border

if TYPE_CHECKING:
    from typing_extensions import Buffer


@runtime_checkable
class RecordBatch(Protocol):
    """Records in one buffer: Frames, or a BytesColumn."""

    @property
    def buffer(self) -> Buffer:
        """The bytes that hold all payloads."""

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """Where each payload starts and ends, shape [n, 2]."""


def as_record(value: Buffer) -> bytes:
    """The payload of a record as bytes; anything that is not bytes-like is a TypeError."""
    if isinstance(value, bytes):
        return value
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"a record is bytes, not {_describe(value)}") from None
    if view.format == "O":
        raise TypeError("a record is bytes, not an array of objects: write its elements one by one")
    return view.tobytes()


def _describe(value: object) -> str:
    """Names a value that is not a record, and says what to write instead."""
    kind = type(value).__name__
    if isinstance(value, str):
        return f"str {shorten(repr(value), 40)}: write it with .encode()"
    if hasattr(value, "SerializeToString"):
        return f"the message {kind}: write its .SerializeToString()"
    if isinstance(value, Mapping):
        return f"{kind}: write streamrec.encode_example(...) of it"
    if isinstance(value, Iterable):
        return f"{kind}: write its elements one by one, or all of them with write_batch"
    return (
        f"{kind} {shorten(repr(value), 40)}: write it as bytes, as encode_example or "
        "serialize_tensor gives them"
    )


@border
def encode_record(record: Buffer) -> bytes:
    """Encodes one record as shards store it.

    That is the length, its CRC, the payload, and its CRC.

    Raises:
        TypeError: The record is not bytes-like.

    Examples:
        >>> encode_record(b"cat").hex()
        '0300000000000000b099490e63617486fdd16f'
    """
    return encode_records([record])


@border
def encode_records(records: Iterable[Buffer] | RecordBatch) -> bytes:
    """Encodes records as shards store them, one after the other; b"" without records."""
    # The usual types come first: asking whether something follows a protocol takes 20 us.
    if isinstance(records, list) or not isinstance(records, (Frames, RecordBatch)):
        records = Frames.of(map(as_record, records))
    return kernels.encode_frames(records.buffer, np.ascontiguousarray(records.spans))
