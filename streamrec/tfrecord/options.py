"""TFRecordOptions: how a shard is compressed, with TensorFlow's names, arguments and defaults."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

__all__ = ["COMPRESSION_TYPES", "CompressionType", "TFRecordOptions", "check_compression_type"]

CompressionType = Literal["", "GZIP", "ZLIB", "ZSTD"]
COMPRESSION_TYPES: tuple[CompressionType, ...] = ("", "GZIP", "ZLIB", "ZSTD")


def check_compression_type(name: str | None) -> CompressionType | None:
    """The compression type by its exact name; None stays None.

    Raises:
        ValueError: There is no such compression type; the message lists them.
    """
    if name is None:
        return None
    for known in COMPRESSION_TYPES:
        if name == known:
            return known
    raise ValueError(f"compression_type={name!r} is none of {', '.join(map(repr, COMPRESSION_TYPES))} and None")


@dataclass(frozen=True, slots=True)
class TFRecordOptions:
    """How a shard is written. The fields are those of `tf.io.TFRecordOptions`, which mirror zlib's own.

    Args:
        compression_type: `""` or None for none, `"GZIP"`, `"ZLIB"`, or `"ZSTD"` (which TensorFlow cannot read).
        flush_mode: zlib flush mode of `flush()`; None for Z_FULL_FLUSH, after which a reader sees all so far.
        input_buffer_size: Accepted for compatibility; records are compressed in blocks of about 1 MiB.
        output_buffer_size: Accepted for compatibility, likewise.
        window_bits: zlib window (9 to 15, or as TensorFlow 31 for a gzip header, -15 for raw); None for 15.
        compression_level: 0 to 9, or -1 for zlib's default of 6 (zstd: 1 to 22, default 3).
        compression_method: zlib's method; None for deflate, the only one there is.
        mem_level: 1 to 9; None for 9, TensorFlow's default.
        compression_strategy: zlib's strategy; None for Z_DEFAULT_STRATEGY.
    """

    compression_type: str | None = None
    flush_mode: int | None = None
    input_buffer_size: int | None = None
    output_buffer_size: int | None = None
    window_bits: int | None = None
    compression_level: int | None = None
    compression_method: int | None = None
    mem_level: int | None = None
    compression_strategy: int | None = None

    def __post_init__(self) -> None:
        check_compression_type(self.compression_type)

    @property
    def zlib_window_bits(self) -> int:
        """What zlib is told: the window, and the container that the compression type asks for."""
        bits = zlib.MAX_WBITS if self.window_bits is None else self.window_bits
        return bits + 16 if self.compression_type == "GZIP" and 0 < bits <= zlib.MAX_WBITS else bits
