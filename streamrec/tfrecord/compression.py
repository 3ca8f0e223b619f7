"""Compressed shards, no I/O: inflate and deflate step by step, in bounded memory.

A compressed shard is one compressed stream of framed records, as TensorFlow writes it: GZIP (RFC 1952, any
number of members one after the other), ZLIB (RFC 1950), and ZSTD (RFC 8878, any number of frames), which
TensorFlow has not.

Rules:
- An Inflater never returns more than the caller asked for, whatever the stream claims about itself: a few
  kilobytes that expand to a terabyte cost no more memory than an honest shard.
- What was inflated before damage is returned, save for the last 120 KiB at most; the error comes from the next call.
- Zero bytes after the last gzip member are padding, as in gzip itself.
- GZIP and ZLIB are read by ISA-L where it is installed (the `isal` extra), which inflates about twice as fast as zlib.
  They are written by zlib, byte for byte as TensorFlow does, unless the options ask for ISA-L.
- A new compression is added to `open_decompressor` and `open_compressor`, its name and magic bytes to `options.py`.
"""

from __future__ import annotations

import sys
import zlib
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.arguments import described
from streamrec.errors import CorruptRecordError, MissingExtraError, TruncatedShardError
from streamrec.tfrecord.options import CompressionType, TFRecordOptions, check_compression_type
from streamrec.tfrecord.sniffing import DETECT_BYTES, detect_compression, is_record_header, looks_like

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Deflater", "Inflater", "decode_compressed"]

ZSTD_PACKAGE = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
"""Python's own since 3.14; its backport is the `zstd` extra."""

ZSTD_JOB_BYTES = 2 << 20
"""What one of zstd's threads compresses at a time, or a window if that is more. Four windows, its own default, hold
four times the memory for files no smaller."""

ISAL_LEVEL = 2
"""Of 0 to 3: nearly as fast as 1, and files of the size that zlib writes; 3 takes twice as long and saves nothing."""

INPUT_BYTES = 64 << 10
"""How much input is inflated at a time: a library copies the part that it does not use."""

OUTPUT_BYTES = 120 << 10
"""How much output is inflated at a time: it is still in the cache when it is copied to be framed. From 128 KiB on, the
C library may give memory back to the kernel after each use, which clears it for the next one."""


class _ZlibStream:
    """zlib's decompressor, with the interface that ISA-L's and zstd's have."""

    def __init__(self, window_bits: int) -> None:
        self._stream = zlib.decompressobj(window_bits)
        self.eof = False
        self.needs_input = True
        self.unused_data = b""

    def decompress(self, data: Buffer, limit: int) -> bytes:
        plain = self._stream.decompress(data or self._stream.unconsumed_tail, limit)
        self.eof, self.unused_data = self._stream.eof, self._stream.unused_data
        self.needs_input = not self._stream.unconsumed_tail
        return plain


def open_decompressor(compression_type: CompressionType) -> tuple[Any, type[Exception]]:
    """A decompressor for one gzip member, zlib stream or zstd frame, and the error that means damage.

    ISA-L's own interface makes one call for each `decompress`; its likeness of zlib makes one for each doubling.
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


def open_compressor(options: TFRecordOptions) -> tuple[Any, int, int]:
    """A compressor, and what its `flush` is called with: for what was written so far, and at the end."""
    if options.compression_type == "ZSTD":
        stream = _zstd_compressor(options)
        return stream, stream.FLUSH_BLOCK, stream.FLUSH_FRAME
    stream = _isal_compressor(options) if options.library == "isal" else _zlib_compressor(options)
    return stream, zlib.Z_FULL_FLUSH if options.flush_mode is None else options.flush_mode, zlib.Z_FINISH


def _zlib_compressor(options: TFRecordOptions) -> Any:
    return zlib.compressobj(
        zlib.Z_DEFAULT_COMPRESSION if options.compression_level is None else options.compression_level,
        zlib.DEFLATED if options.compression_method is None else options.compression_method,
        options.zlib_window_bits,
        9 if options.mem_level is None else options.mem_level,
        zlib.Z_DEFAULT_STRATEGY if options.compression_strategy is None else options.compression_strategy,
    )


def _isal_compressor(options: TFRecordOptions) -> Any:
    module = isal_module("isal_zlib")
    if module is None:
        raise MissingExtraError("library='isal' needs another package: pip install 'streamrec[isal]'")
    level = ISAL_LEVEL if options.compression_level in (None, -1) else options.compression_level
    return module.compressobj(level, wbits=options.zlib_window_bits)


def _zstd_compressor(options: TFRecordOptions) -> Any:
    module, level = zstd_module(), options.compression_level
    parameter = module.CompressionParameter
    _, most = parameter.nb_workers.bounds()  # 0 where the library was built without threads
    threads = min(options.compression_threads or 0, most)
    return module.ZstdCompressor(
        options={
            parameter.compression_level: 3 if level in (None, -1) else level,
            **({parameter.nb_workers: threads, parameter.job_size: ZSTD_JOB_BYTES} if threads else {}),
        }
    )


@cache
def isal_module(name: str) -> Any:
    """ISA-L: `igzip_lib` inflates, `isal_zlib` is its likeness of the `zlib` module; None where it is not installed."""
    try:
        return import_module(f"isal.{name}")
    except ImportError:
        return None


def zstd_module() -> Any:
    """The zstd implementation."""
    try:
        return import_module(ZSTD_PACKAGE)
    except ImportError as error:
        raise MissingExtraError("ZSTD shards need a package more: pip install 'streamrec[zstd]'") from error


class Inflater:
    """Inflates one shard's stream, member after member.

    Use: `feed` compressed bytes while `needs_input`; `read` until it returns b"", or `read_into` until it returns 0;
    and `close` at the end.

    Args:
        compression_type: "GZIP", "ZLIB" or "ZSTD".
        path: The shard's URL, for errors.
    """

    def __init__(self, compression_type: CompressionType, path: str | None = None) -> None:
        self._type = compression_type
        self._path = path
        self._stream, self._damage = open_decompressor(compression_type)  # no stream between two members
        self._has_more = False
        self._input = memoryview(b"")
        self._at = 0
        self._head = b""
        self._consumed = 0
        self._produced = 0
        self._between = False
        self._error: CorruptRecordError | None = None

    @property
    def needs_input(self) -> bool:
        """Whether `read` can return nothing more before the next `feed`."""
        return self._at == len(self._input) and (self._stream is None or self._starves()) and self._error is None

    def feed(self, data: Buffer) -> None:
        """Takes the next compressed bytes; only while `needs_input`. They are looked at until it does so again."""
        self._input, self._at = memoryview(data).cast("B"), 0
        if len(self._head) < DETECT_BYTES:
            self._head += bytes(self._input[: DETECT_BYTES - len(self._head)])
        self._consumed += len(self._input)

    def read(self, limit: int) -> bytes:
        """Up to `limit` inflated bytes; b"" where the next `feed` must come first, or the stream is at its end.

        Raises:
            CorruptRecordError: The compressed data is damaged.
        """
        if self._error is not None:
            raise self._error
        while not self.needs_input:
            if self._stream is None and not self._start_member():
                return b""
            data = self._inflate(limit)
            if data:
                self._produced += len(data)
                return data
        return b""

    def read_into(self, buffer: memoryview) -> int:
        """Fills a buffer, of one byte per item, from its start; fewer bytes, and 0, where `read` would return b"".

        Raises:
            CorruptRecordError: The compressed data is damaged, and no byte of the buffer was filled before.
        """
        filled = 0
        try:
            while filled < len(buffer):
                data = self.read(min(OUTPUT_BYTES, len(buffer) - filled))
                if not data:
                    break
                buffer[filled : filled + len(data)] = data
                filled += len(data)
        except CorruptRecordError as error:
            if not filled:
                raise
            self._error = error
        return filled

    def close(self) -> None:
        """Says that the compressed bytes ended.

        Raises:
            TruncatedShardError: They ended within a compressed stream.
        """
        if not self._between and self._consumed:
            raise TruncatedShardError(
                f"the {self._type} stream ends unfinished after {self._consumed:,} compressed bytes: its writer did "
                "not finish, or the copy is incomplete; write or copy it again",
                self._path,
                self._produced,
            )

    def _starves(self) -> bool:
        """Whether the member wants more input. After as much output as was allowed, it may hold more all the same."""
        return bool(self._stream.needs_input) and not self._has_more

    def _inflate(self, limit: int) -> bytes:
        data = self._input[:0]
        if self._starves():
            data = self._input[self._at : self._at + INPUT_BYTES]
            self._at += len(data)
        self._between = False
        try:
            if self._type == "GZIP" and self._head[:2] not in (b"", b"\x1f", b"\x1f\x8b"):
                raise self._damage("no gzip header")  # ISA-L would wait for all of the header
            inflated: bytes = self._stream.decompress(data, limit)
        except self._damage as error:
            raise CorruptRecordError(self._reason(error), self._path, self._produced) from error
        self._has_more = len(inflated) == limit
        if self._stream.eof:
            self._put_back(self._stream.unused_data)
            self._stream, self._between = None, True
        return inflated

    def _put_back(self, data: bytes) -> None:
        """What a member did not use is input again; the first bytes of it may be from the `feed` before."""
        if len(data) <= self._at:
            self._at -= len(data)
        else:
            self._input, self._at = memoryview(data + bytes(self._input[self._at :])), 0

    def _reason(self, error: Exception) -> str:
        """What is wrong with the stream: damage, or it never was one."""
        head = self._head
        if detect_compression(head) == self._type:
            return (
                f"the {self._type} stream is damaged about {self._consumed:,} compressed bytes in ({error}); "
                "fetch or write the shard again"
            )
        found = f"like {found}" if (found := looks_like(head)) else f"with {head.hex()}"
        if is_record_header(head):
            found = "as a TFRecord file without compression: pass compression_type='', or leave it out"
        return f"this is not a {self._type} stream: it begins {found}"

    def _start_member(self) -> bool:
        """Begins the next member where bytes follow the last one; skips zero padding after gzip."""
        while self._type == "GZIP" and self._at < len(self._input) and not self._input[self._at]:
            padding = bytes(self._input[self._at : self._at + INPUT_BYTES])
            self._at += len(padding) - len(padding.lstrip(b"\0"))
        if self._at == len(self._input):
            return False
        self._stream, self._damage = open_decompressor(self._type)
        self._has_more = False
        return True


class Deflater:
    """Compresses one shard's stream, or passes it through where the options ask for no compression.

    Attributes:
        compresses: Whether `write` is work enough for a thread of its own.
    """

    def __init__(self, options: TFRecordOptions) -> None:
        self.compresses = bool(options.compression_type)
        if self.compresses:
            self._stream, self._flush_mode, self._end_mode = open_compressor(options)

    def write(self, data: Buffer) -> bytes:
        """Takes plain bytes; returns the compressed ones that are ready, often b""."""
        return bytes(self._stream.compress(data) if self.compresses else memoryview(data))

    def flush(self) -> bytes:
        """The compressed bytes of all that was written so far."""
        return bytes(self._stream.flush(self._flush_mode)) if self.compresses else b""

    def close(self) -> bytes:
        """The stream's last bytes."""
        return bytes(self._stream.flush(self._end_mode)) if self.compresses else b""


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
    found[:] = [_inflate_string(string, kind) for string in array.ravel().tolist()]
    return found.reshape(array.shape) if array.ndim else found[0]


def _inflate_string(string: Any, compression_type: CompressionType) -> bytes:
    if not isinstance(string, bytes):
        raise TypeError(f"bytes holds {described(string)}: compressed bytes are wanted")
    if not compression_type:
        return string
    inflater, parts = Inflater(compression_type), []
    inflater.feed(string)
    while part := inflater.read(OUTPUT_BYTES):
        parts.append(part)
    inflater.close()
    return b"".join(parts)
