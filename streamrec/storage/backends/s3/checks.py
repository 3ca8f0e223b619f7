"""What S3 tells of an object, compared with what was sent. Pure.

The checksum of a multipart upload is that of the whole (`FULL_OBJECT`), or that of its parts' checksums
(`COMPOSITE`, ends in "-" and the number of parts); its etag is the MD5 of its parts' MD5s where the store's etags
are MD5s. They need not be: they are not where the store encrypts with other keys than its own, and some stores
make them up. So etags are believed only where the first part's was seen to be its MD5.

Source: "Checking object integrity in Amazon S3", Amazon S3 User Guide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c

from streamrec.storage.backend import Sent
from streamrec.storage.uploads.part import encoded

__all__ = ["StoredPart", "difference", "is_md5"]

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What is known of one part.

    Attributes:
        etag: As the store gave it.
        crc32c: Of the bytes that were sent.
        checked: Whether the store compared it.
        md5: Whether the etag was found to be the MD5 of the bytes; looked at for the first part only.
    """

    etag: str
    crc32c: int
    checked: bool
    md5: bool = False


def difference(sent: Sent, parts: Sequence[StoredPart], head: Mapping[str, Any]) -> str | None:
    """What tells the object in the store from what was sent; None where nothing does.

    Args:
        sent: What was sent.
        parts: Its parts, in order; none where it went in one request.
        head: The answer to HEAD, with the checksum where the store has one.
    """
    if head["ContentLength"] != sent.size:
        return f"it has {head['ContentLength']:,} bytes where {sent.size:,} were sent"
    found = head.get("ChecksumCRC32C")
    if found is not None:
        wanted = _composed(parts) if "-" in found else encoded(sent.crc32c)
        return None if found == wanted else f"its CRC32C is {found} where {wanted} was sent"
    etag, made = str(head.get("ETag", "")).strip('"'), _etag(parts)
    own = head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head
    if made is None or own or not re.fullmatch(rf"[0-9a-f]{{32}}-{len(parts)}", etag):
        return None
    return None if etag == made else f"its etag is {etag} where the parts make {made}"


def _composed(parts: Sequence[StoredPart]) -> str:
    crc32c = google_crc32c.value(b"".join(part.crc32c.to_bytes(4, "big") for part in parts))
    return f"{encoded(crc32c)}-{len(parts)}"


def _etag(parts: Sequence[StoredPart]) -> str | None:
    """The etag that the parts make, where they are known to be MD5s."""
    digests = [_MD5.fullmatch(part.etag) for part in parts]
    if not digests or not parts[0].md5 or None in digests:
        return None
    joined = b"".join(bytes.fromhex(digest[1]) for digest in digests if digest)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"


def is_md5(etag: str, pieces: Sequence[memoryview]) -> bool:
    """Whether an etag is the MD5 of the bytes."""
    found, made = _MD5.fullmatch(etag), hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        made.update(piece)
    return found is not None and found[1] == made.hexdigest()
