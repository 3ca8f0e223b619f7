"""The kernels in plain Python: the specification of those in C.

Rules of every kernel, here and in C:

- Bytes come as any C-contiguous object of the buffer protocol, and are held for the call only.
- Spans are int64 arrays of shape [n, 2]: start and end of a payload, in bytes from the start of a buffer.
  Results hold spans as `bytes`; `np.frombuffer(spans, np.int64).reshape(-1, 2)` reads them without a copy.
- Bad data is reported as a code and an offset. Only wrong arguments raise: TypeError for what is no buffer or
  not int64, ValueError for a wrong shape or value, BufferError for what is not contiguous.
- No length that is read is believed before its CRC was checked, and none leads to an allocation.
"""

from tests.oracle.kernels.block import allocate
from tests.oracle.kernels.checksum import crc32c, crc32c_implementations, crc32c_with, masked_crc32c
from tests.oracle.kernels.frames import encode_block, encode_frames, encode_objects, scan_frames
from tests.oracle.kernels.gathering import gather, objects
from tests.oracle.kernels.interleaving import interleave
from tests.oracle.kernels.pad import pad_rows
from tests.oracle.kernels.permute import permute
from tests.oracle.kernels.resync import find_header
from tests.oracle.kernels.rows_in_turn import rows_in_turn
from tests.oracle.kernels.shuffle import exchange, pick

__all__ = [
    "allocate",
    "crc32c",
    "crc32c_implementations",
    "crc32c_with",
    "encode_block",
    "encode_frames",
    "encode_objects",
    "exchange",
    "find_header",
    "gather",
    "interleave",
    "masked_crc32c",
    "objects",
    "pad_rows",
    "permute",
    "pick",
    "rows_in_turn",
    "scan_frames",
]
