"""Functions over buffers in C: the only code that touches every byte.

They release the GIL, and create no Python object per record. `_native.pyi` documents them;
tests/oracle specifies the larger ones in plain Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BAD_LENGTH_CRC",
    "BAD_PAYLOAD_CRC",
    "OK",
    "TOO_LONG",
    "BytesLike",
    "Int64s",
    "Scan",
    "allocate",
    "copy_bytes",
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

OK: Final = 0
"""The bytes ended, between two records or within one, without damage."""
BAD_LENGTH_CRC: Final = 1
"""The CRC of a length is wrong, so the offset of the next record is unknown."""
BAD_PAYLOAD_CRC: Final = 2
"""The CRC of a payload is wrong.

Its length is good, so the next record begins at position + wants.
"""
TOO_LONG: Final = 3
"""A length with a good CRC is above max_record_bytes."""

BytesLike: TypeAlias = "Buffer | npt.NDArray[Any]"
"""A C-contiguous object of the buffer protocol.

Type checkers know this of arrays from Python 3.12 on.
"""
Int64s: TypeAlias = npt.NDArray[np.int64] | memoryview
"""A C-contiguous buffer of int64 elements, in the shape that the function names."""
Scan: TypeAlias = "tuple[Buffer, int, int, int]"
"""(spans, position, code, wants): see `scan_frames`."""

_MISSING = """streamrec's C extension, streamrec.kernels._native, does not load: {error}

Install it again with a C compiler and the headers of this Python (Debian: gcc python3-dev):
    {command}"""
_NOT_BUILT = """streamrec's C extension, streamrec.kernels._native, does not load: {error}

This is the streamrec of the checkout {checkout}, which Python finds before an installed one.
Run the program in another directory, or build the extension in the checkout:
    pip install -e ."""

try:
    from streamrec.kernels._native import (
        allocate,
        copy_bytes,
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
    # Only here: kernels load nothing else.
    from os import path

    from streamrec.errors import install_command

    # `pip install .` leaves the checkout without the extension, and Python looks there first.
    checkout = path.dirname(path.dirname(path.dirname(path.abspath(__file__))))
    if path.exists(path.join(checkout, "setup.py")):
        raise ImportError(_NOT_BUILT.format(error=error, checkout=checkout)) from error
    command = install_command(options="--force-reinstall --no-deps --no-cache-dir")
    raise ImportError(_MISSING.format(error=error, command=command)) from error
