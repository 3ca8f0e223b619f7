"""TFRecordOptions: how a shard is compressed, with TensorFlow's names, arguments and defaults."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, get_args

from streamrec.arguments import integer

__all__ = ["MAGIC", "CompressionType", "TFRecordOptions", "check_compression_type"]

CompressionType = Literal["", "GZIP", "ZLIB", "ZSTD"]
COMPRESSION_TYPES: Final[tuple[CompressionType, ...]] = get_args(CompressionType)

_ZLIB_HEADERS = [(cmf << 8 | flg).to_bytes(2) for cmf in range(8, 128, 16) for flg in range(256)]

MAGIC: Final[dict[CompressionType, re.Pattern[bytes]]] = {
    "GZIP": re.compile(rb"\x1f\x8b"),
    "ZSTD": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "ZLIB": re.compile(b"|".join(re.escape(header) for header in _ZLIB_HEADERS if int.from_bytes(header) % 31 == 0)),
}
"""What a compressed stream begins with. zstd (RFC 8878, 3.1): a frame, or one to be skipped. zlib (RFC 1950, 2.2):
method 8, a window of up to 32 KiB, and two bytes that are a multiple of 31."""


def check_compression_type(name: str | None) -> CompressionType | None:
    """The compression type by its exact name; None stays None.

    Raises:
        ValueError: It is not one of them; the message lists them.
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
        library: What compresses GZIP and ZLIB. "zlib" writes the bytes that TensorFlow writes. "isal" (an extra) is
            many times as fast, for files of about the same size that every reader takes; it takes only `flush_mode`,
            `window_bits` and `compression_level` (0 to 3, default 2).
        compression_threads: How many threads of the zstd library compress one shard, 1 or more; None for the thread
            that writes. Each holds some 5 MB, at high levels a window and more. The bytes are the same for any number
            of threads, others than for None, and every zstd reads them. Only ZSTD has threads: of other compressions,
            write several shards at a time.

    Raises:
        ValueError: The type, the library or its level does not exist, or the library has no threads.
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
    library: Literal["zlib", "isal"] = "zlib"
    compression_threads: int | None = None

    @classmethod
    def of(cls, options: Any) -> TFRecordOptions:
        """Options from what callers pass: ours, `tf.io.TFRecordOptions`, or a compression type."""
        if isinstance(options, cls):
            return options
        if not hasattr(options, "get_compression_type_string"):
            return cls(options)
        same = {field.name: getattr(options, field.name) for field in fields(cls) if hasattr(options, field.name)}
        return cls(**{**same, "compression_type": options.get_compression_type_string(options)})

    def __post_init__(self) -> None:
        check_compression_type(self.compression_type)
        if self.library not in ("zlib", "isal"):
            raise ValueError(f"library={self.library!r} is neither 'zlib' nor 'isal'")
        if self.library == "isal":
            self._check_isal()
        if self.compression_threads is not None:
            integer("compression_threads", self.compression_threads, 1)
            if self.compression_type != "ZSTD":
                raise ValueError(f"compression_threads are for ZSTD, not {self.compression_type!r}")

    def _check_isal(self) -> None:
        if self.compression_type not in ("GZIP", "ZLIB"):
            raise ValueError(f"library='isal' compresses GZIP and ZLIB, not {self.compression_type!r}")
        if self.compression_level not in (None, *range(-1, 4)):
            raise ValueError(f"compression_level={self.compression_level!r}: with library='isal' it is 0 to 3")

    @property
    def zlib_window_bits(self) -> int:
        """What zlib is told: the window, and the container that the compression type asks for."""
        bits = zlib.MAX_WBITS if self.window_bits is None else self.window_bits
        return bits + 16 if self.compression_type == "GZIP" and 0 < bits <= zlib.MAX_WBITS else bits
