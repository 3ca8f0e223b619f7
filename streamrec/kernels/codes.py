"""What the native kernels and their twin share: the codes that a scan ends with, and types."""

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

OK: Final = 0
"""The bytes ended, between two records or within one; nothing was wrong with them."""
BAD_LENGTH_CRC: Final = 1
"""The CRC of a length is wrong, so where the next record begins is unknown."""
BAD_PAYLOAD_CRC: Final = 2
"""The CRC of a payload is wrong; its length is good, so the next record begins at position + wants."""
TOO_LONG: Final = 3
"""A length with a good CRC is above max_record_bytes."""

BytesLike: TypeAlias = "Buffer | npt.NDArray[Any]"
"""A C-contiguous object of the buffer protocol (type checkers know this of arrays from Python 3.12 on)."""
Int64s: TypeAlias = npt.NDArray[np.int64] | memoryview
"""A C-contiguous buffer of int64 elements, in the shape that the function names."""
Scan: TypeAlias = "tuple[Buffer, int, int, int]"
"""(spans, position, code, wants): see `scan_frames`."""
