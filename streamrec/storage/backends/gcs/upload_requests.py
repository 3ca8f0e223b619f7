"""The heads and bodies of requests that write to GCS, and what their answers prove. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from streamrec.storage.backend import (
    ContentDigest,
    Pieces,
    Precondition,
    Replaced,
    encode_crc32c,
)


def condition_of(replaces: Replaced) -> dict[str, str]:
    """Returns the condition of a request that replaces an object; generation 0 is none.

    >>> condition_of(Precondition.ABSENT), condition_of("7"), condition_of(Precondition.ANY)
    ({'ifGenerationMatch': '0'}, {'ifGenerationMatch': '7'}, {})
    """
    if isinstance(replaces, str):
        return {"ifGenerationMatch": replaces}
    return {"ifGenerationMatch": "0"} if replaces is Precondition.ABSENT else {}


def range_of_part(there: int, stop: int, whole: ContentDigest | None) -> dict[str, str]:
    """Returns headers for the bytes from `there` on; with the last ones, the whole object's size
    and checksum.

    >>> range_of_part(0, 10, None), range_of_part(10, 10, None)
    ({'Content-Range': 'bytes 0-9/*'}, {'Content-Range': 'bytes */*'})
    >>> range_of_part(10, 12, ContentDigest(12, 0))
    {'Content-Range': 'bytes 10-11/12', 'X-Goog-Hash': 'crc32c=AAAAAA=='}
    """
    total = "*" if whole is None else str(whole.size)
    span = f"bytes {there}-{stop - 1}/{total}" if there < stop else f"bytes */{total}"
    checksum = {} if whole is None else {"X-Goog-Hash": f"crc32c={encode_crc32c(whole.crc32c)}"}
    return {"Content-Range": span, **checksum}


def multipart_body(boundary: str, metadata: Mapping[str, Any], pieces: Pieces) -> Pieces:
    """Returns the body of a request that holds an object's metadata and its bytes."""
    head = (
        f"--{boundary}\r\nContent-Type: application/json; "
        f"charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
        f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    return [memoryview(head.encode()), *pieces, memoryview(f"\r\n--{boundary}--\r\n".encode())]


def difference(sent: ContentDigest, item: Mapping[str, Any]) -> str | None:
    """Describes how an object's resource differs from what was sent; None if it does not.

    >>> difference(ContentDigest(3, 1), {"size": "2"})
    'it has 2 bytes where 3 were sent'
    """
    size = int(item["size"])
    crc32c = item.get("crc32c")
    if size != sent.size:
        return f"it has {size:,} bytes where {sent.size:,} were sent"
    wanted = encode_crc32c(sent.crc32c)
    return None if crc32c in (None, wanted) else f"its CRC32C is {crc32c} where {wanted} was sent"
