"""Making and reading TFRecord bytes without the kernels: what the tests compare them with."""

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.oracle.kernels import masked_crc32c

GOLDEN = Path(__file__).parent.parent / "golden"
NO_LIMIT = 2**62


def header(length: int) -> bytes:
    """A header with a good CRC that claims `length` payload bytes."""
    claim = struct.pack("<Q", length)
    return claim + struct.pack("<I", masked_crc32c(claim))


def frame(payload: bytes) -> bytes:
    return header(len(payload)) + payload + struct.pack("<I", masked_crc32c(payload))


def stream(payloads: list[bytes]) -> bytes:
    return b"".join(map(frame, payloads))


def spans_of(spans: bytes) -> npt.NDArray[np.int64]:
    """The int64 [n, 2] array in what the kernels return, without a copy."""
    return np.frombuffer(spans, np.int64).reshape(-1, 2)


def payloads_of(data: bytes, spans: bytes) -> list[bytes]:
    view = memoryview(data)
    return [bytes(view[start:end]) for start, end in spans_of(spans).tolist()]
