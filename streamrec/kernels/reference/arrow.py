"""Arrow's C structs, which only C can make; see `src/arrow/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamrec.errors import StreamrecError
from streamrec.kernels.codes import Int64s

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["arrow_array", "arrow_binary", "arrow_stream"]


def arrow_array(description: tuple[Any, ...], /) -> tuple[object, object]:
    """Refuses: Arrow's C structs are made in C only."""
    raise _missing()


def arrow_binary(buffer: Buffer, spans: Int64s, /) -> tuple[object, object]:
    """Refuses likewise."""
    raise _missing()


def arrow_stream(description: tuple[Any, ...], next: Callable[[], tuple[Any, ...] | None], /) -> object:
    """Refuses likewise."""
    raise _missing()


def _missing() -> StreamrecError:
    return StreamrecError("Arrow's interface is part of the C extension, which STREAMREC_PURE=1 left out")
