"""HTML for notebooks and pages: self-contained, escaped, readable on light and dark backgrounds.

Rules:
- All data is escaped, except JPEG and PNG images, which become data URIs.
- Everything in a notebook is limited: rows, characters, images and their bytes.
- Passwords in URLs are masked, as in `repr`.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.display import display_text, image_type, text_of

__all__ = [
    "ROWS",
    "Budget",
    "bar",
    "box",
    "element",
    "format_value",
    "fragment",
    "image",
    "page",
    "payloads",
    "png",
    "table",
    "text",
    "whole_text",
]

ROWS: Final = 8
"""How many rows of a batch a notebook displays."""

IMAGE_BYTES: Final = 1 << 20
ALL_IMAGES_BYTES: Final = 4 << 20
"""Larger images are described instead of displayed.

A notebook stores everything that it displays in its file.
"""

CHARACTERS: Final = 120
NUMBERS: Final = 8
SIDE: Final = 256
"""Images with a longer side are downsampled to it."""

STYLE: Final = """<style>
.streamrec { font: 13px/1.45 system-ui, sans-serif; color: inherit; overflow-x: auto; }
.streamrec table { border-collapse: collapse; margin: 4px 0; color: inherit; font: inherit; }
.streamrec td, .streamrec th { border: 0; border-bottom: 1px solid rgba(128,128,128,.35);
  padding: 3px 10px;
  text-align: left; vertical-align: top; background: none; color: inherit; }
.streamrec th { font-weight: 600; }
.streamrec small { opacity: .7; font-weight: 400; }
.streamrec code { font: 12px ui-monospace, monospace; background: none; color: inherit;
  overflow-wrap: anywhere; }
.streamrec img { max-width: 128px; max-height: 96px; display: block; image-rendering: auto; }
.streamrec .box { border: 1px solid rgba(128,128,128,.6); border-radius: 6px; padding: 4px 10px;
  max-width: 56em;
  background: rgba(128,128,128,.08); display: inline-block; }
.streamrec .inner { border-left: 2px solid rgba(128,128,128,.4); margin: 4px 0 4px 8px;
  padding-left: 12px; }
.streamrec .arrow { opacity: .6; padding-left: 16px; line-height: 1.2; }
.streamrec .bar { display: inline-flex; width: 220px; height: 12px;
  background: rgba(128,128,128,.18);
  border-radius: 3px; overflow: hidden; vertical-align: middle; }
.streamrec .busy { background: #2a9d8f; } .streamrec .input { background: #e9a23b; }
.streamrec .output { background: #5b8def; }
.streamrec .key { display: inline-block; width: 10px; height: 10px; border-radius: 2px;
  margin: 0 4px 0 12px; }
</style>"""
"""Half-transparent grey is grey on any background."""

PAGE_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --faint: #66727f; --line: #d8dee4;
  --bar: #2f6fb5; --page: #ffffff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --faint: #93a0ad; --line: #36414d; --bar: #6ea8e6; --page: #14191f }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 64rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2.5rem 0 .3rem;
  border-top: 1px solid var(--line);
  padding-top: 1rem }
p { margin: .3rem 0 } .faint { color: var(--faint) } code { overflow-wrap: anywhere }
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start }
.beside > * { max-width: 100% }
.plot { display: flex; align-items: flex-end; width: 520px; max-width: 100%; height: 112px;
  border-bottom: 1px solid var(--faint) } .plot span { flex: 1; background: var(--bar) }
svg { width: 520px; max-width: 100%; height: auto } .bar { fill: var(--bar) } .axis {
  stroke: var(--faint) }
text { font-size: 11px; fill: var(--faint) } .curve { fill: none; stroke: var(--bar);
  stroke-width: 2 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
.wide .number { white-space: nowrap } .wide + .wide { margin-top: 1.5rem }
th, td { text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--line) }
.number { text-align: right } th { font-weight: 600 } a { color: inherit }
.images { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: .7rem }
.images img { height: 96px; max-width: 192px; object-fit: contain; background: var(--line);
  border-radius: 3px }
"""


def whole_text(value: object) -> str:
    """Converts any value to text, escaped and without passwords."""
    return escape(display_text(str(value), lines=True))


def text(value: object, most: int = 400) -> str:
    """Converts any value to text, escaped, without passwords, and cut after `most` characters."""
    plain = display_text(str(value)[: 4 * most], lines=True)
    return escape(plain if len(plain) <= most else f"{plain[: most - 1]}…")


def element(tag: str, *children: str, kind: str = "", tip: str = "") -> str:
    """An element around children that are HTML already.

    >>> element("td", text("a<b"), kind="x")
    '<td class="x">a&lt;b</td>'
    """
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' title="{text(tip)}"' if tip else ""
    return f"<{tag}{attributes}>{''.join(children)}</{tag}>"


def fragment(*children: str) -> str:
    """The result of a `_repr_html_`: the children, with their style."""
    return f'{STYLE}<div class="streamrec">{"".join(children)}</div>'


def page(title: str, summary: Iterable[str], body: Iterable[str]) -> str:
    """A self-contained page of a title, lines of text below it, and parts of HTML.

    A title is, for example, the names of shards.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{whole_text(title)}</title><style>{PAGE_STYLE}</style></head><body>",
            f"<h1><code>{whole_text(title)}</code></h1>",
            *[f"<p>{whole_text(line)}</p>" for line in summary],
            *body,
            "</body></html>\n",
        ]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already.

    A column whose head begins with ">" is set to the right.
    """
    kinds = ["number" if cell.startswith(">") else "" for cell in head]
    first = element(
        "tr",
        *(
            element("th", cell.removeprefix(">"), kind=kind)
            for cell, kind in zip(head, kinds, strict=True)
        ),
    )
    lines = [
        element(
            "tr", *(element("td", cell, kind=kind) for cell, kind in zip(row, kinds, strict=True))
        )
        for row in rows
    ]
    return element("table", first, *lines)


def box(title: str, detail: str) -> str:
    """A box with a title and, in small print, a detail."""
    return element(
        "div",
        element("b", text(title)),
        "<br>",
        element("small", element("code", text(detail))),
        kind="box",
    )


def bar(parts: Iterable[tuple[str, float]], whole: float, tip: str) -> str:
    """A bar of parts, each with its class and its amount of the whole."""
    inner = [
        f'<span class="{kind}" style="width: {100 * min(1.0, amount / whole):.1f}%"></span>'
        for kind, amount in parts
        if whole > 0 and amount > 0
    ]
    return element("span", *inner, kind="bar", tip=tip)


def image(data: bytes, kind: str, tip: str) -> str:
    """A "jpeg" or "png" image, as a data URI."""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" alt="{tip}" title="{tip}">'


class Budget:
    """Limits the bytes of all images in an output."""

    def __init__(self, nbytes: int = ALL_IMAGES_BYTES) -> None:
        self.left = nbytes

    def take(self, nbytes: int) -> bool:
        """Whether an image of this size fits; if so, its bytes count."""
        if nbytes > min(IMAGE_BYTES, self.left):
            return False
        self.left -= nbytes
        return True


def payloads(title: str, lengths: Iterable[int], strings: Iterable[Any]) -> str:
    """The result of a `_repr_html_` for many byte strings.

    It shows the first ones, with their numbers and lengths.
    """
    budget = Budget()
    cells = zip(range(ROWS), lengths, strings, strict=False)
    rows = [
        (str(number), f"{int(size):,}", format_value(value, budget))
        for number, size, value in cells
    ]
    return fragment(element("b", text(title)), table(("", "bytes", ""), rows))


def format_value(value: Any, budget: Budget) -> str:
    r"""A value as HTML.

    >>> [format_value(value, Budget()) for value in (b"cat <3", np.arange(3), b"\xff\x00")]
    ['cat &lt;3', '[0, 1, 2]', '<small>2 bytes: ff 00</small>']
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(bytes(value), budget)
    if isinstance(value, np.ndarray) and value.ndim:
        if _is_image(value):
            return _image_within(png(value), budget, "png", "pixels")
        return _array(value, budget)
    return text(f"{value:.6g}" if isinstance(value, float | np.floating) else value, CHARACTERS)


def _bytes(value: bytes, budget: Budget) -> str:
    kind = image_type(value)
    if kind is not None:
        return _image_within(value, budget, kind, kind)
    plain = text_of(value)
    if plain is not None:
        return text(plain, CHARACTERS)
    return element(
        "small",
        text(f"{len(value):,} bytes: {value[:12].hex(' ')}{'…' if len(value) > 12 else ''}"),
    )


def _image_within(data: bytes, budget: Budget, kind: str, name: str) -> str:
    tip = f"{name.upper()}, {len(data):,} bytes"
    return image(data, kind, tip) if budget.take(len(data)) else element("small", text(tip))


def _array(value: npt.NDArray[Any], budget: Budget) -> str:
    if value.ndim > 1:
        return element("small", text(f"{value.dtype} {list(value.shape)}"))
    cells = [format_value(one, budget) for one in value[:NUMBERS].tolist()]
    more = f", … {len(value):,} values" if len(value) > NUMBERS else ""
    return f"[{', '.join(cells)}{more}]"


def _is_image(value: npt.NDArray[Any]) -> bool:
    """Whether an array is an image.

    It is uint8 of shape [height, width, 1 or 3], at least 4 pixels each way.
    """
    return (
        value.dtype == np.uint8
        and value.ndim == 3
        and value.shape[2] in (1, 3)
        and min(value.shape[:2]) >= 4
    )


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encodes pixels as a PNG file (ISO/IEC 15948); large images are downsampled."""
    step = max(1, -(-max(pixels.shape[:2]) // SIDE))
    kept = np.ascontiguousarray(pixels[::step, ::step])
    height, width, channels = kept.shape
    # Each line begins with its filter: 0, none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = kept.reshape(height, -1)
    head = struct.pack(">2I5B", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes())), (b"IEND", b""))
    parts = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
