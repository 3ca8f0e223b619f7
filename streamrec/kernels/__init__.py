"""Functions over buffers: the only code that touches every byte.

`_native` holds them in C (GIL released, no Python object per record); `reference` holds the same functions
in plain Python, written to be read: it is the specification, and one test suite runs over both.

The native module runs unless `STREAMREC_PURE=1` is set in the environment; `NATIVE` tells which one does.
A missing extension is an error, never a silent fall-back: it would be hundreds of times slower.
"""

import os
from typing import Final

from streamrec.kernels.codes import BAD_LENGTH_CRC, BAD_PAYLOAD_CRC, OK, TOO_LONG, Scan

__all__ = [
    "BAD_LENGTH_CRC",
    "BAD_PAYLOAD_CRC",
    "NATIVE",
    "OK",
    "TOO_LONG",
    "Scan",
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

NATIVE: Final = os.environ.get("STREAMREC_PURE") != "1"

_MISSING = """streamrec's C extension, streamrec.kernels._native, does not load: {error}

Install streamrec again where a C compiler and the headers of this Python are (Debian: gcc python3-dev):
    pip install --force-reinstall --no-deps --no-cache-dir streamrec      (in a checkout: pip install -e .)
To run on kernels in plain Python that are hundreds of times slower, for reading code and for debugging, set
STREAMREC_PURE=1."""

if NATIVE:
    try:
        from streamrec.kernels._native import (
            allocate,
            arrow_array,
            arrow_binary,
            arrow_stream,
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
else:
    from streamrec.kernels.reference import (
        allocate,
        arrow_array,
        arrow_binary,
        arrow_stream,
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
