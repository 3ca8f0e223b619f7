"""Compression without I/O: options, detection, the libraries' streams, and deflating.

A compressed shard is one compressed stream of framed records, as TensorFlow writes it: GZIP (RFC
1952, any number of members one after the other), ZLIB (RFC 1950), or ZSTD (RFC 8878, any number of
frames), which TensorFlow does not support.

`inflater.py` reads such a stream in bounded memory. Rules:
- ISA-L reads GZIP and ZLIB if it is installed (the `isal` extra), about twice as fast as zlib. zlib
  writes them, with the same bytes as TensorFlow, unless the options ask for ISA-L.
- To add a compression: its name in `CompressionType`, its first bytes in MAGIC (no longer in
  `_KINDS`), its library in `open_decompressor` and `open_compressor` (imported where it is used, as
  in `zstd_module`), its name and endings in `cli/writing.py`. Its streams must end with a checksum,
  and several may follow each other. The tests of all compressions then run over it, too.
"""

from __future__ import annotations

import re
import sys
import zlib
from codecs import getincrementaldecoder
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from streamrec import kernels
from streamrec.arguments import check_choice, check_integer, describe_value
from streamrec.display import text_of
from streamrec.errors import MissingExtraError, install_command
from streamrec.lazy import lazy_pattern
from streamrec.tfrecord.frames import HEADER_BYTES
from streamrec.tracebacks import border_methods

if TYPE_CHECKING:
    from typing_extensions import Buffer

CompressionType = Literal["", "GZIP", "ZLIB", "ZSTD"]
COMPRESSION_TYPES: Final[tuple[CompressionType, ...]] = get_args(CompressionType)

_ZLIB_HEADERS = [
    bytes((method, flags))
    for method in range(8, 128, 16)
    for flags in range(-(method << 8) % 31, 256, 31)
]

MAGIC: Final[dict[CompressionType, re.Pattern[bytes]]] = {
    "GZIP": lazy_pattern(rb"\x1f\x8b"),
    "ZSTD": lazy_pattern(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "ZLIB": lazy_pattern(b"|".join(map(re.escape, _ZLIB_HEADERS))),
}
"""The first bytes of a compressed stream.

zstd (RFC 8878, 3.1): a frame or a skippable frame. zlib (RFC 1950, 2.2): method 8, a window of up
to 32 KiB, and two bytes that are a multiple of 31.
"""

DETECT_BYTES = HEADER_BYTES
"""How many of a file's first bytes the detection needs."""

_COMPRESSED: Final = (
    "a file compressed with {}, which shards never are: unpack it, or write it with GZIP or ZSTD"
)
_KINDS: Final = (
    (rb"\xff\xd8\xff", "a JPEG image"),
    (rb"\x89PNG", "a PNG image"),
    (
        rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype|html|head|body)",
        "an HTML page, such as a login page or a server's error",
    ),
    (rb"(\xef\xbb\xbf)?\s*<\?xml", "an XML document, such as a store's error"),
    (
        rb"\s*[{\[]\s*[\"{\[}\]]",
        "JSON, which `streamrec convert` makes shards of if each line is a record",
    ),
    (rb"version http", "a pointer of Git LFS: run git lfs pull"),
    (rb"PK\x03\x04", "a ZIP archive: unpack it, or read zip://NAME::URL"),
    (rb"PAR1", "a Parquet file, which `streamrec convert` makes shards of"),
    (rb"ARROW1", "an Arrow file"),
    (rb"\xff\xff\xff\xff..\x00\x00", "an Arrow stream"),
    (rb"\x89HDF", "an HDF5 file"),
    (rb"\x93NUMPY", "a NumPy array"),
    (
        rb"(\./\./@PaxHead|[!-~]{3,11}\0+\Z)",
        "a tar archive: `streamrec convert` makes shards of a WebDataset",
    ),
    (
        rb"\x80([\x02\x03][]}(c]|[\x04\x05]\x95)",
        "a pickle of Python: write its objects with encode_example",
    ),
    (
        rb"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f",
        "a Riegeli or ArrayRecord file: read it with Grain or array_record",
    ),
    (rb"BZh\d", _COMPRESSED.format("bz2")),
    (rb"\xfd7zXZ\x00", _COMPRESSED.format("xz")),
    (rb"\x04\x22\x4d\x18", _COMPRESSED.format("lz4")),
    (rb"\xff\x06\x00\x00sNaPpY", _COMPRESSED.format("snappy")),
)
"""The first bytes of files that users pass by mistake, and descriptions of them for messages."""
TEXT_BYTES: Final = 4
"""The fewest bytes that are called text. Fewer may be the beginning of a record's length."""

ZSTD_PACKAGE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
"""Part of Python since 3.14; the `zstd` extra installs its backport."""

ZSTD_JOB_BYTES = 2 << 20
"""How much a thread of zstd compresses at a time, at least one window.

Its default of four windows needs four times the memory for files of the same size.
"""

ISAL_LEVEL = 2
"""Of 0 to 3: nearly as fast as 1, and files as small as zlib's.

Level 3 takes twice as long and saves nothing.
"""


def check_compression_type(name: str | None) -> CompressionType | None:
    """Checks the name of a compression type.

    None stays None, and any other name is a ValueError.
    """
    return check_choice("compression_type", name, (*COMPRESSION_TYPES, None))


@border_methods
@dataclass(frozen=True, slots=True)
class TFRecordOptions:
    """How a shard is compressed.

    The fields are those of `tf.io.TFRecordOptions`, which are zlib's parameters.

    Args:
        compression_type: `""` or None for none, `"GZIP"`, `"ZLIB"`, or `"ZSTD"` (which TensorFlow
            cannot read).
        flush_mode: zlib flush mode of `flush()`; None for Z_FULL_FLUSH, after which readers see all
            earlier records.
        input_buffer_size: Accepted for compatibility; records are compressed in blocks of about 1
            MiB.
        output_buffer_size: Accepted for compatibility, likewise.
        window_bits: zlib window (9 to 15, or as TensorFlow 31 for a gzip header, -15 for raw); None
            for 15.
        compression_level: 0 to 9, or -1 for zlib's default of 6 (zstd: 1 to 22, default 3).
        compression_method: zlib's method; None for deflate, the only one.
        mem_level: 1 to 9; None for 9, TensorFlow's default.
        compression_strategy: zlib's strategy; None for Z_DEFAULT_STRATEGY.
        library: The library for GZIP and ZLIB. "zlib" writes the same bytes as TensorFlow. "isal"
            (an extra) is many times as fast, and writes files of about the same size that every
            reader accepts; it supports only `flush_mode`, `window_bits` and `compression_level` (0
            to 3, default 2).
        compression_threads: How many threads of the zstd library compress one shard, 1 or more;
            None compresses in the writing thread. Each thread needs about 5 MB, at high levels a
            window and more. The bytes are the same for any number of threads; those of None differ,
            and every zstd reads both. Only ZSTD has threads: with other compressions, write several
            shards at a time.

    Raises:
        ValueError: The type, the library or its level does not exist, or the library has no
            threads.
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
        """Converts an `options` argument.

        It may be ours, a `tf.io.TFRecordOptions`, or a compression type.
        """
        if isinstance(options, cls):
            return options
        if not hasattr(options, "get_compression_type_string"):
            return cls(options)
        same = {
            field.name: getattr(options, field.name)
            for field in fields(cls)
            if hasattr(options, field.name)
        }
        return cls(**{**same, "compression_type": options.get_compression_type_string(options)})

    def __post_init__(self) -> None:
        check_compression_type(self.compression_type)
        if check_choice("library", self.library, ("zlib", "isal")) == "isal":
            self._check_isal()
        if self.compression_threads is not None:
            check_integer("compression_threads", self.compression_threads, 1)
            if self.compression_type != "ZSTD":
                raise ValueError(
                    f"compression_threads applies to ZSTD only, not to {self.compression_type!r}"
                )

    def _check_isal(self) -> None:
        if self.compression_type not in ("GZIP", "ZLIB"):
            raise ValueError(
                f"library='isal' compresses GZIP and ZLIB, not {self.compression_type!r}"
            )
        if self.compression_level not in (None, *range(-1, 4)):
            raise ValueError(
                f"compression_level is {describe_value(self.compression_level)}: with "
                "library='isal' it is 0 to 3"
            )

    @property
    def zlib_window_bits(self) -> int:
        """The `wbits` of zlib: the size of the window, plus 16 for a gzip container."""
        bits = zlib.MAX_WBITS if self.window_bits is None else self.window_bits
        return bits + 16 if self.compression_type == "GZIP" and 0 < bits <= zlib.MAX_WBITS else bits


def detect_compression(head: bytes) -> CompressionType:
    """Detects the compression of a shard from its first `DETECT_BYTES` bytes.

    A shorter shard has fewer.

    A length with a right CRC means no compression; otherwise the magic bytes of gzip, zstd and zlib
    decide. Any other bytes count as not compressed, and the framer describes the damage.
    """
    if is_record_header(head):
        return ""
    return next((kind for kind, magic in MAGIC.items() if magic.match(head)), "")


def is_record_header(head: bytes) -> bool:
    """Whether the bytes begin with a complete header, whose CRC is right."""
    crc = int.from_bytes(head[8:HEADER_BYTES], "little")
    return len(head) >= HEADER_BYTES and kernels.masked_crc32c(head[:8]) == crc


def looks_like(head: bytes) -> str | None:
    """Describes a file that is not a plain TFRecord file, and what to do, for a message.

    None if it is unknown.

    >>> looks_like(b"<!DOCTYPE html>"), looks_like(bytes(12))
    ("an HTML page, such as a login page or a server's error", None)
    """
    head = head[:DETECT_BYTES]
    for pattern, name in _KINDS:
        if re.match(pattern, head, re.DOTALL):
            return name
    if kind := detect_compression(head):
        return f"a {kind} stream: pass compression_type={kind!r}, or leave it out"
    text = text_at_start(head)
    return None if text is None else f"text, or a name in a tar archive ({text!r})"


def text_at_start(head: bytes) -> str | None:
    """The text that some bytes begin with, up to a letter that they cut; None if they are not text.

    >>> text_at_start("día, día".encode()[:2]), text_at_start("día, día".encode())
    (None, 'día, día')
    """
    if len(head) < TEXT_BYTES:
        return None
    try:
        text = getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return None
    return text if text_of(text.encode()) is not None else None


class Decompressor(Protocol):
    """Decompresses one gzip member, zlib stream, or zstd frame; several may follow each other.

    This is the interface of most libraries' decompressors: of zstd, ISA-L, lz4 and bz2 as they are.
    """

    @property
    def eof(self) -> bool:
        """Whether its end was reached: another one begins with `unused_data`."""

    @property
    def needs_input(self) -> bool:
        """Whether `decompress` returns nothing more without further input."""

    @property
    def unused_data(self) -> bytes | None:
        """The input after its end; before the end it has no meaning. lz4 has None for nothing."""

    def decompress(self, data: Buffer, max_length: int, /) -> bytes:
        """Takes input, or b"" for the rest of earlier input; returns up to `max_length` bytes.

        Input that is left over is copied and kept. Damage is the error that `open_decompressor`
        returns with it.
        """


class Compressor(Protocol):
    """Compresses a stream."""

    def compress(self, data: Buffer, /) -> bytes:
        """Takes plain bytes; returns the compressed ones that are ready, often b""."""

    def flush(self, mode: int, /) -> bytes:
        """Returns what is held back, in one of the modes that `open_compressor` returns with it.

        After the mode "so far", a reader gets all that was written until then, and more follows in
        the same frame: if a flush ended it, a shard that is cut there would look complete. The mode
        "end" ends the stream.
        """


class _ZlibStream:
    """zlib's decompressor with the interface of ISA-L's and zstd's."""

    def __init__(self, window_bits: int) -> None:
        self._stream = zlib.decompressobj(window_bits)
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: Buffer, limit: int) -> bytes:
        plain = self._stream.decompress(data or self._stream.unconsumed_tail, limit)
        self.eof = self._stream.eof
        self.unused_data = self._stream.unused_data
        self.needs_input = not self._stream.unconsumed_tail
        return plain


def open_decompressor(
    compression_type: CompressionType,
) -> tuple[Decompressor, type[Exception]]:
    """A decompressor for one gzip member, zlib stream or zstd frame.

    With it comes the error that it raises for damage.

    ISA-L's `igzip_lib` makes one call for a `decompress`; its copy of zlib makes one for each
    doubling of the output.
    """
    if compression_type == "ZSTD":
        zstd = zstd_module()
        most_memory = {zstd.DecompressionParameter.window_log_max: 27}
        return zstd.ZstdDecompressor(options=most_memory), zstd.ZstdError
    isal = isal_module("igzip_lib")
    if isal is not None:
        kind = isal.DECOMP_GZIP if compression_type == "GZIP" else isal.DECOMP_ZLIB
        return isal.IgzipDecompressor(kind), isal.error
    return _ZlibStream(zlib.MAX_WBITS + (16 if compression_type == "GZIP" else 0)), zlib.error


def open_compressor(options: TFRecordOptions) -> tuple[Compressor, int, int]:
    """A compressor, and the modes of its `flush`: for the bytes written so far, and for the end."""
    if options.compression_type == "ZSTD":
        stream = _zstd_compressor(options)
        return stream, stream.FLUSH_BLOCK, stream.FLUSH_FRAME
    stream = _isal_compressor(options) if options.library == "isal" else _zlib_compressor(options)
    flush_mode = zlib.Z_FULL_FLUSH if options.flush_mode is None else options.flush_mode
    return stream, flush_mode, zlib.Z_FINISH


def _zlib_compressor(options: TFRecordOptions) -> Any:
    def either(value: int | None, default: int) -> int:
        return default if value is None else value

    return zlib.compressobj(
        level=either(options.compression_level, zlib.Z_DEFAULT_COMPRESSION),
        method=either(options.compression_method, zlib.DEFLATED),
        wbits=options.zlib_window_bits,
        memLevel=either(options.mem_level, 9),
        strategy=either(options.compression_strategy, zlib.Z_DEFAULT_STRATEGY),
    )


def _isal_compressor(options: TFRecordOptions) -> Any:
    module = isal_module("isal_zlib")
    if module is None:
        raise MissingExtraError(f"library='isal' needs another package: {install_command('isal')}")
    level = ISAL_LEVEL if options.compression_level in (None, -1) else options.compression_level
    return module.compressobj(level, wbits=options.zlib_window_bits)


def _zstd_compressor(options: TFRecordOptions) -> Any:
    module = zstd_module()
    level = options.compression_level
    parameter = module.CompressionParameter
    parameters = {parameter.compression_level: 3 if level in (None, -1) else level}
    _, most = parameter.nb_workers.bounds()  # 0 where the library was built without threads
    threads = min(options.compression_threads or 0, most)
    if threads:
        parameters[parameter.nb_workers] = threads
        parameters[parameter.job_size] = ZSTD_JOB_BYTES
    return module.ZstdCompressor(options=parameters)


@cache
def isal_module(name: str) -> Any:
    """A module of ISA-L; None if it is not installed.

    It is `igzip_lib`, or `isal_zlib`, a copy of the `zlib` module.
    """
    try:
        return import_module(f"isal.{name}")
    except ImportError:
        return None


def zstd_module() -> Any:
    """The standard library's zstd, or its backport; a MissingExtraError if there is none."""
    try:
        return import_module(ZSTD_PACKAGE)
    except ImportError as error:
        raise MissingExtraError(
            f"ZSTD shards need another package: {install_command('zstd')}"
        ) from error


class Deflater:
    """Compresses one shard's stream, or passes it through if the options ask for no compression.

    If it `compresses`, `write` is worth a thread.
    """

    def __init__(self, options: TFRecordOptions) -> None:
        self.compresses = bool(options.compression_type)
        if self.compresses:
            self._stream, self._flush_mode, self._end_mode = open_compressor(options)

    def write(self, data: Buffer) -> bytes:
        """Takes plain bytes; returns the compressed ones that are ready, often b""."""
        return bytes(self._stream.compress(data) if self.compresses else memoryview(data))

    def flush(self) -> bytes:
        """Compresses all bytes so far, for readers of an unfinished shard; may be b""."""
        return bytes(self._stream.flush(self._flush_mode)) if self.compresses else b""

    def close(self) -> bytes:
        """Ends the stream; returns its last compressed bytes, b"" if not compressed."""
        return bytes(self._stream.flush(self._end_mode)) if self.compresses else b""
