"""What a scan ends with: the codes and the result that the native kernels and their twin share."""

from typing import Final, TypeAlias

OK: Final = 0
"""The bytes ended, between two records or within one; nothing was wrong with them."""
BAD_LENGTH_CRC: Final = 1
"""The CRC of a length is wrong, so where the next record begins is unknown."""
BAD_PAYLOAD_CRC: Final = 2
"""The CRC of a payload is wrong; its length is good, so the next record begins at position + wants."""
TOO_LONG: Final = 3
"""A length with a good CRC is above max_record_bytes."""

Scan: TypeAlias = tuple[bytes, int, int, int]
"""(spans, position, code, wants): see `scan_frames`."""
