"""What a file is, from its first bytes: how a shard is compressed, or what it looks like if it is not a shard. Pure."""

from __future__ import annotations

import re
from typing import Final

from streamrec import kernels
from streamrec.tfrecord.frames import HEADER_BYTES
from streamrec.tfrecord.options import MAGIC, CompressionType

__all__ = ["DETECT_BYTES", "detect_compression", "is_record_header", "looks_like"]

DETECT_BYTES = HEADER_BYTES
"""How many of a file's first bytes all functions here need."""

_COMPRESSED: Final = "a compressed file of a kind that shards never are ({}): unpack it, or write it with GZIP or ZSTD"
_KINDS: Final = (
    (rb"\xff\xd8\xff", "a JPEG image"),
    (rb"\x89PNG", "a PNG image"),
    (rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype|html|head|body)", "an HTML page, such as a login page or a server's error"),
    (rb"(\xef\xbb\xbf)?\s*<\?xml", "an XML document, such as a store's error"),
    (rb"\s*[{\[]\s*[\"{\[}\]]", "JSON, which `streamrec convert` makes shards of if each line is a record"),
    (rb"version http", "a pointer of Git LFS: run git lfs pull"),
    (rb"PK\x03\x04", "a ZIP archive: unpack it, or read zip://NAME::URL"),
    (rb"PAR1", "a Parquet file, which `streamrec convert` makes shards of"),
    (rb"ARROW1", "an Arrow file"),
    (rb"\xff\xff\xff\xff..\x00\x00", "an Arrow stream"),
    (rb"\x89HDF", "an HDF5 file"),
    (rb"\x93NUMPY", "a NumPy array"),
    (rb"(\./\./@PaxHead|[!-~]{3,11}\0+\Z)", "a tar archive: `streamrec convert` makes shards of a WebDataset"),
    (
        rb"\x80([\x02\x03][]}(c]|[\x04\x05]\x95)",
        "a pickle of Python: write its objects with encode_example",
    ),
    (rb"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", "a Riegeli or ArrayRecord file: read it with Grain or array_record"),
    (rb"BZh\d", _COMPRESSED.format("bz2")),
    (rb"\xfd7zXZ\x00", _COMPRESSED.format("xz")),
    (rb"\x04\x22\x4d\x18", _COMPRESSED.format("lz4")),
    (rb"\xff\x06\x00\x00sNaPpY", _COMPRESSED.format("snappy")),
)
"""What files begin with that are taken for shards, and what to call them."""
_TEXT: Final = re.compile(rb"[\t\n\r -~]{8,}")


def detect_compression(head: bytes) -> CompressionType:
    """How a shard is compressed, from its first bytes.

    A length whose CRC is right is the surest sign, and means none; only then do the magic bytes of gzip, zstd
    and zlib count. All else is framed as it is, and the framer names the damage.

    Args:
        head: The first `DETECT_BYTES` bytes, or fewer where the shard is shorter.
    """
    if is_record_header(head):
        return ""
    return next((kind for kind, magic in MAGIC.items() if magic.match(head)), "")


def is_record_header(head: bytes) -> bool:
    """Whether the first twelve bytes are all there, and are a length and its right CRC."""
    crc = int.from_bytes(head[8:HEADER_BYTES], "little")
    return len(head) >= HEADER_BYTES and kernels.masked_crc32c(head[:8]) == crc


def looks_like(head: bytes) -> str | None:
    """What a file looks like that is not a plain TFRecord file, and what to do, for the end of a message.

    Args:
        head: Its first bytes; what follows `DETECT_BYTES` is ignored.

    Returns:
        Words for a person, such as "a PNG image"; None where it looks like nothing that is known.

    >>> looks_like(b"<!DOCTYPE html>"), looks_like(bytes(12))
    ("an HTML page, such as a login page or a server's error", None)
    """
    head = head[:DETECT_BYTES]
    for pattern, name in _KINDS:
        if re.match(pattern, head, re.DOTALL):
            return name
    if kind := detect_compression(head):
        return f"a {kind} stream: pass compression_type={kind!r}, or leave it out"
    return f"text, or a name in a tar archive ({head.decode()!r})" if _TEXT.fullmatch(head) else None
