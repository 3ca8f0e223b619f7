"""Functions over buffers in C: the only code that touches every byte.

The GIL is released, and no Python object is made per record. `tests/oracle/kernels` has the same functions in plain
Python: it is their specification, and one test suite runs over both.
"""

from streamrec.kernels.codes import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG, Scan

__all__ = [
    "BAD_LENGTH_CRC",
    "BAD_PAYLOAD_CRC",
    "OK",
    "TOO_LONG",
    "Scan",
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

_MISSING = """streamrec's C extension, streamrec.kernels._native, does not load: {error}

Install streamrec again where a C compiler and the headers of this Python are (Debian: gcc python3-dev):
    pip install --force-reinstall --no-deps --no-cache-dir streamrec      (in a checkout: pip install -e .)"""

try:
    from streamrec.kernels._native import (
        allocate,
        crc32c,
        crc32c_implementations,
        crc32c_with,
        encode_block,
        encode_frames,
        encode_objects,
        exchange,
        find_header,
        gather,
        interleave,
        masked_crc32c,
        objects,
        pad_rows,
        permute,
        pick,
        rows_in_turn,
        scan_frames,
    )
except ImportError as error:
    raise ImportError(_MISSING.format(error=error)) from error
