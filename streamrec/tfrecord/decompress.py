"""decode_compressed: byte strings inflated, as `tf.io.decode_compressed` does it. No I/O."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrec.arguments import described
from streamrec.tfrecord.compression import Inflater
from streamrec.tfrecord.options import CompressionType, check_compression_type

__all__ = ["decode_compressed"]

STEP_BYTES = 1 << 20


def decode_compressed(bytes: Any, compression_type: str = "") -> Any:
    """Inflates byte strings, each by itself.

    Args:
        bytes: One byte string, or an array or nested list of them.
        compression_type: "GZIP", "ZLIB" or "ZSTD"; "" for none: then they are returned as they are.

    Returns:
        `bytes` of one; of others an object array of their shape.

    Raises:
        TypeError: Something else than bytes.
        CorruptRecordError: A string is damaged, or of another compression.
        TruncatedShardError: A string ends before its compressed stream does.

    Example:
        >>> import gzip
        >>> decode_compressed([gzip.compress(b"a"), gzip.compress(b"b")], "GZIP").tolist()
        [b'a', b'b']
    """
    kind = check_compression_type(compression_type) or ""
    array = np.array(bytes, object)
    found = np.empty(array.size, object)
    found[:] = [inflated(string, kind) for string in array.ravel().tolist()]
    return found.reshape(array.shape) if array.ndim else found[0]


def inflated(string: Any, compression_type: CompressionType) -> bytes:
    """One byte string, inflated."""
    if not isinstance(string, bytes):
        raise TypeError(f"bytes holds {described(string)}: compressed bytes are wanted")
    if not compression_type:
        return string
    inflater, parts = Inflater(compression_type), []
    inflater.feed(string)
    while part := inflater.read(STEP_BYTES):
        parts.append(part)
    inflater.close()
    return b"".join(parts)
