"""Values of records and columns as cells: numbers, text, images as images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.display import text_of
from streamrec.html.elements import element, fragment, table, text

__all__ = ["ROWS", "Budget", "payloads", "rows_of", "shown"]

ROWS: Final = 8
"""So many rows of a batch are shown."""

IMAGE_BYTES: Final = 1 << 20
ALL_IMAGES_BYTES: Final = 4 << 20
"""Images above these are named, and not shown: a notebook keeps what it shows in its file."""

CHARACTERS: Final = 120
NUMBERS: Final = 8
SIDE: Final = 256
"""Arrays of pixels with a longer side are thinned out to it."""

MAGIC: Final = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}


class Budget:
    """How many bytes of images may still be shown."""

    def __init__(self, nbytes: int = ALL_IMAGES_BYTES) -> None:
        self.left = nbytes

    def take(self, nbytes: int) -> bool:
        """Whether an image of so many bytes is shown."""
        if nbytes > min(IMAGE_BYTES, self.left):
            return False
        self.left -= nbytes
        return True


def payloads(title: str, lengths: Iterable[int], strings: Iterable[Any]) -> str:
    """The first of many byte strings, each with its number and length: what a `_repr_html_` returns."""
    budget = Budget()
    cells = zip(range(ROWS), lengths, strings, strict=False)
    rows = [(str(number), f"{int(size):,}", shown(value, budget)) for number, size, value in cells]
    return fragment(element("b", text(title)), table(("", "bytes", ""), rows))


def rows_of(column: Iterable[Any]) -> Iterator[Any]:
    """The first rows of a column."""
    return islice(column, ROWS)


def shown(value: Any, budget: Budget) -> str:
    r"""A value as HTML.

    >>> shown(b"cat <3", Budget()), shown(np.arange(3), Budget()), shown(b"\xff\x00", Budget())
    ('cat &lt;3', '[0, 1, 2]', '<small>2 bytes: ff 00</small>')
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value), budget)
    if isinstance(value, np.ndarray) and value.ndim:
        return _image(_png(value), budget, "pixels") if _is_image(value) else _array(value, budget)
    return text(f"{value:.6g}" if isinstance(value, float | np.floating) else value, CHARACTERS)


def _bytes(value: bytes, budget: Budget) -> str:
    kind = next((name for magic, name in MAGIC.items() if value.startswith(magic)), None)
    if kind is not None:
        return _image(value, budget, kind)
    told = text_of(value)
    if told is not None:
        return text(told, CHARACTERS)
    return element("small", text(f"{len(value):,} bytes: {value[:12].hex(' ')}{'…' if len(value) > 12 else ''}"))


def _image(data: bytes, budget: Budget, kind: str) -> str:
    told = f"{kind.upper()}, {len(data):,} bytes"
    if not budget.take(len(data)):
        return element("small", text(told))
    source = f"data:image/{'jpeg' if kind == 'jpeg' else 'png'};base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" alt="{told}" title="{told}">'


def _array(value: npt.NDArray[Any], budget: Budget) -> str:
    if value.ndim > 1:
        return element("small", text(f"{value.dtype} {list(value.shape)}"))
    cells = [shown(one, budget) for one in value[:NUMBERS].tolist()]
    more = f", … {len(value):,} values" if len(value) > NUMBERS else ""
    return f"[{', '.join(cells)}{more}]"


def _is_image(value: npt.NDArray[Any]) -> bool:
    """Whether it is [height, width, 1 or 3] of bytes, and no mere row."""
    return value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3) and min(value.shape[:2]) >= 4


def _png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Pixels as a PNG file (ISO/IEC 15948), thinned out where there are many."""
    step = max(1, -(-max(pixels.shape[:2]) // SIDE))
    kept = np.ascontiguousarray(pixels[::step, ::step])
    height, width, channels = kept.shape
    lines = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with its filter: 0, none
    lines[:, 1:] = kept.reshape(height, -1)
    head = struct.pack(">2I5B", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
