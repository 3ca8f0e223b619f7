"""Arrow's C structs, which only C can make; see decode_arrow.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamrec.errors import StreamrecError
from streamrec.kernels.codes import Int64s

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["arrow_binary"]


def arrow_binary(buffer: Buffer, spans: Int64s, /) -> tuple[object, object]:
    """Refuses: Arrow's C structs are made in C only."""
    raise StreamrecError("Arrow's interface is part of the C extension, which STREAMREC_PURE=1 left out")
