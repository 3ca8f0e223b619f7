"""The parts of an upload that S3 has, and what its answers prove of the object. Pure.

The checksum of a multipart upload is that of the whole (`FULL_OBJECT`), or that of its parts'
checksums (`COMPOSITE`, ends in "-" and the number of parts). Its etag is the MD5 of its parts' MD5s
if the store's etags are MD5s. Those of objects encrypted with other keys than the store's own are
not, and some stores make them up. So etags are used only if the first part's etag was found to be
its MD5. Source: "Checking object integrity in Amazon S3", Amazon S3 User Guide.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c

from streamrec.storage.backend import ContentDigest, encode_crc32c

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The store's answer for one part, with the CRC32C of the bytes sent, and whether the store
    compared it.

    `md5` says whether the etag is the MD5 of the bytes; checked for the first part only.
    """

    etag: str
    crc32c: int
    checked: bool
    md5: bool = False


class StoredParts:
    """The parts of one upload, as far as the store has confirmed them.

    Examples:
        >>> parts = StoredParts()
        >>> parts.begin(1), parts.begin(1)
        (False, True)
        >>> parts.add(1, StoredPart("b", 2, checked=False))
        >>> parts.add(0, StoredPart("a", 1, checked=True))
        >>> [part.etag for part in parts.in_order()]
        ['a', 'b']
        >>> for entry in parts.entries():
        ...     print(entry)
        {'PartNumber': 1, 'ETag': 'a', 'ChecksumCRC32C': 'AAAAAQ=='}
        {'PartNumber': 2, 'ETag': 'b'}
    """

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._parts: dict[int, StoredPart] = {}

    def begin(self, index: int) -> bool:
        """Marks a part as sent; returns whether it was sent before."""
        again = index in self._begun
        self._begun.add(index)
        return again

    def add(self, index: int, part: StoredPart) -> None:
        """Adds the store's answer for a part, whose number is `index` + 1."""
        self._parts[index] = part

    def in_order(self) -> list[StoredPart]:
        """The parts in the order of their numbers."""
        return [self._parts[index] for index in sorted(self._parts)]

    def entries(self) -> list[dict[str, Any]]:
        """The list of parts in the request that completes an upload.

        A part has its checksum there only if the store compared it, because other stores refuse it.
        """
        entries: list[dict[str, Any]] = []
        for index, part in sorted(self._parts.items()):
            checksum = {"ChecksumCRC32C": encode_crc32c(part.crc32c)} if part.checked else {}
            entries.append({"PartNumber": index + 1, "ETag": part.etag, **checksum})
        return entries


def difference(
    sent: ContentDigest, parts: Sequence[StoredPart], head: Mapping[str, Any]
) -> str | None:
    """Describes how the object in the store differs from what was sent; None if it does not.

    An object that was sent in one request has no parts. `head` is the answer to HEAD, with the
    checksum if the store has one.
    """
    if head["ContentLength"] != sent.size:
        return f"it has {head['ContentLength']:,} bytes where {sent.size:,} were sent"
    found = head.get("ChecksumCRC32C")
    if found is not None:
        wanted = _compose(parts) if "-" in found else encode_crc32c(sent.crc32c)
        return None if found == wanted else f"its CRC32C is {found} where {wanted} was sent"
    etag = str(head.get("ETag", "")).strip('"')
    made = _etag(parts)
    own = head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head
    if made is None or own or not re.fullmatch(rf"[0-9a-f]{{32}}-{len(parts)}", etag):
        return None
    return None if etag == made else f"its etag is {etag} where the parts make {made}"


def _compose(parts: Sequence[StoredPart]) -> str:
    crc32c = google_crc32c.value(b"".join(part.crc32c.to_bytes(4, "big") for part in parts))
    return f"{encode_crc32c(crc32c)}-{len(parts)}"


def _etag(parts: Sequence[StoredPart]) -> str | None:
    """Returns the etag computed from the parts' etags; None if these are not known to be MD5s."""
    digests = [_MD5.fullmatch(part.etag) for part in parts]
    if not digests or not parts[0].md5 or None in digests:
        return None
    joined = b"".join(bytes.fromhex(digest[1]) for digest in digests if digest)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"


def is_md5(etag: str, pieces: Sequence[memoryview]) -> bool:
    """Whether an etag is the MD5 of the bytes."""
    found = _MD5.fullmatch(etag)
    made = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        made.update(piece)
    return found is not None and found[1] == made.hexdigest()
