"""CRC32C as the stores write it."""

from __future__ import annotations

import base64

__all__ = ["encoded"]


def encoded(crc32c: int) -> str:
    """A CRC32C as S3 and GCS write it: base64 of its four bytes, the highest first.

    >>> encoded(0xE3069283)
    '4waSgw=='
    """
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()
