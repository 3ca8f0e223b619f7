"""The kernels in plain Python, written to be read: this is the specification of the native ones.

Rules of every kernel, here and in C:

- Bytes come as any C-contiguous object of the buffer protocol, and are held for the call only.
- Spans are int64 arrays of shape [n, 2]: start and end of a payload, in bytes from the start of a buffer.
  Results hold spans as `bytes`; `np.frombuffer(spans, np.int64).reshape(-1, 2)` reads them without a copy.
- Bad data is reported as a code and an offset. Only wrong arguments raise: TypeError for what is no buffer or
  not int64, ValueError for a wrong shape or value, BufferError for what is not contiguous.
- No length that is read is believed before its CRC was checked, and none leads to an allocation.
"""

from streamrec.kernels.reference.arrow import arrow_array, arrow_binary, arrow_stream
from streamrec.kernels.reference.block import allocate
from streamrec.kernels.reference.checksum import crc32c, crc32c_implementations, crc32c_with, masked_crc32c
from streamrec.kernels.reference.frames import encode_block, encode_frames, encode_objects, scan_frames
from streamrec.kernels.reference.gathering import gather, objects
from streamrec.kernels.reference.interleaving import interleave
from streamrec.kernels.reference.pad import pad_rows
from streamrec.kernels.reference.permute import permute
from streamrec.kernels.reference.resync import find_header
from streamrec.kernels.reference.rows_in_turn import rows_in_turn
from streamrec.kernels.reference.shuffle import exchange, pick

__all__ = [
    "allocate",
    "arrow_array",
    "arrow_binary",
    "arrow_stream",
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
