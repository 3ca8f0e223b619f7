"""The lengths of a local shard's records, from their headers alone: payloads are passed over, not read.

Where records are short, reading all bytes costs less than a call for each header: READ_BYTES are read at a time then.
Blocking: it is called in a thread.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from streamrec import kernels
from streamrec.errors import CorruptRecordError, TruncatedShardError
from streamrec.tfrecord import HEADER_BYTES, MAX_RECORD_BYTES, Framer, LengthPacker, PackedLengths, as_spans

__all__ = ["lengths_of_file"]

READ_BYTES: Final = 1 << 20
LONG_BYTES: Final = 16 << 10
"""Records that are longer than this on average are passed over one by one. A call costs as much as reading this."""


def lengths_of_file(path: Path, url: str) -> PackedLengths:
    """Goes through the headers of an uncompressed shard.

    Args:
        path: The file.
        url: What it is called in errors.

    Raises:
        CorruptRecordError: A header is damaged.
        TruncatedShardError: The file ends within a record.
        OSError: It cannot be read.
    """
    packer = LengthPacker()
    file = os.open(path, os.O_RDONLY)
    try:
        _go_through(file, os.fstat(file).st_size, packer, url)
    finally:
        os.close(file)
    return packer.finish()


def _go_through(file: int, size: int, packer: LengthPacker, url: str) -> None:
    position = records = 0
    alone: list[int] = []
    while position < size:
        skips = bool(records) and position > LONG_BYTES * records
        data = os.pread(file, HEADER_BYTES if skips else READ_BYTES, position)
        packed, end, code, wants = kernels.scan_frames(data, 0, False, MAX_RECORD_BYTES)
        spans = as_spans(packed)
        if len(spans):
            packer.add(np.array(alone + (spans[:, 1] - spans[:, 0]).tolist(), np.int64))
            alone = []
        elif code == kernels.OK and wants > HEADER_BYTES and position + wants <= size:
            alone.append(wants - (HEADER_BYTES + 4))
            end = wants
        else:
            raise _damage(data, position, records, url, size)
        position += end
        records += max(len(spans), 1)
        if len(alone) >= LONG_BYTES:
            packer.add(np.array(alone, np.int64))
            alone = []
    packer.add(np.array(alone, np.int64))


def _damage(data: bytes, position: int, record: int, url: str, size: int) -> CorruptRecordError | TruncatedShardError:
    """What the framer says of bytes that hold no whole record."""
    framer = Framer(verify=False, path=url, position=position, record=record, size=size)
    try:
        framer.feed(data)
        framer.close()
    except (CorruptRecordError, TruncatedShardError) as error:
        return error
    return TruncatedShardError("the shard ends within a record: it was cut off; write it again", url, position, record)
