"""The `.idx` and `.index` files that DALI's and vahidk's `tfrecord2idx` write: a line "offset size" a record. Pure.

Offset and size count the frame: 16 bytes more than the payload. Every record has its line, in the order of the shard.
"""

from __future__ import annotations

import numpy as np

from streamrec.errors import ManifestError
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, LengthPacker, PackedLengths

__all__ = ["lengths_of_idx"]


def lengths_of_idx(data: bytes, path: str, shard: str, size: int) -> PackedLengths:
    r"""The lengths of the records of a shard.

    Args:
        data: The file.
        path: Its URL, for errors.
        shard: The URL of its shard, for errors.
        size: The size of the shard in bytes.

    Raises:
        ManifestError: It is no such file, or it is not that of this shard.

    Examples:
        >>> packed = lengths_of_idx(b"0 116\n116 117\n", "a.idx", "a", 233)
        >>> packed.records, packed.end
        (2, 233)
    """
    try:
        rows = np.array(data.split(), np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise ManifestError(f"{path}: this is no file of tfrecord2idx: two numbers a line were wanted") from error
    ends = np.concatenate([[0], np.cumsum(rows[:, 1])])
    wrong = np.flatnonzero((rows[:, 0] != ends[:-1]) | (rows[:, 1] < HEADER_BYTES + FOOTER_BYTES) | (rows[:, 1] > size))
    if len(wrong):
        line = int(wrong[0])
        raise ManifestError(
            f"{path}, line {line + 1}: a frame at byte {rows[line, 0]:,} of {rows[line, 1]:,} bytes, where the one "
            f"before ends at byte {ends[line]:,}: make this file again with tfrecord2idx, or index the shard itself"
        )
    if ends[-1] != size:
        raise ManifestError(
            f"{path}: it says that the last record ends at byte {ends[-1]:,}, and {shard} has {size:,} bytes: this is "
            "the file of another shard, or the shard was written since; make it again, or index the shard itself"
        )
    packer = LengthPacker()
    packer.add(rows[:, 1] - (HEADER_BYTES + FOOTER_BYTES))
    return packer.finish()
