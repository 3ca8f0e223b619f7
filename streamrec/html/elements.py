"""The pieces: escaped text, elements, tables, boxes, bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from streamrec.display import display_text

__all__ = ["bar", "boxed", "element", "fragment", "table", "text"]

STYLE: Final = """<style>
.streamrec { font: 13px/1.45 system-ui, sans-serif; color: inherit; overflow-x: auto; }
.streamrec table { border-collapse: collapse; margin: 4px 0; color: inherit; font: inherit; }
.streamrec td, .streamrec th { border: 0; border-bottom: 1px solid rgba(128,128,128,.35); padding: 3px 10px;
  text-align: left; vertical-align: top; background: none; color: inherit; }
.streamrec th { font-weight: 600; }
.streamrec small { opacity: .7; font-weight: 400; }
.streamrec code { font: 12px ui-monospace, monospace; background: none; color: inherit; overflow-wrap: anywhere; }
.streamrec img { max-width: 128px; max-height: 96px; display: block; image-rendering: auto; }
.streamrec .box { border: 1px solid rgba(128,128,128,.6); border-radius: 6px; padding: 4px 10px; max-width: 56em;
  background: rgba(128,128,128,.08); display: inline-block; }
.streamrec .inner { border-left: 2px solid rgba(128,128,128,.4); margin: 4px 0 4px 8px; padding-left: 12px; }
.streamrec .arrow { opacity: .6; padding-left: 16px; line-height: 1.2; }
.streamrec .bar { display: inline-flex; width: 220px; height: 12px; background: rgba(128,128,128,.18);
  border-radius: 3px; overflow: hidden; vertical-align: middle; }
.streamrec .busy { background: #2a9d8f; } .streamrec .input { background: #e9a23b; }
.streamrec .output { background: #5b8def; }
.streamrec .key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 12px; }
</style>"""
"""Grey that is half transparent is grey on any ground."""


def text(value: object, most: int = 400) -> str:
    """Any text, escaped, without passwords, and cut where it is long."""
    told = display_text(str(value)[: 4 * most], lines=True)
    return escape(told if len(told) <= most else f"{told[: most - 1]}…")


def element(tag: str, *children: str, kind: str = "", tip: str = "") -> str:
    """An element around children that are HTML already.

    >>> element("td", text("a<b"), kind="x")
    '<td class="x">a&lt;b</td>'
    """
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' title="{text(tip)}"' if tip else ""
    return f"<{tag}{attributes}>{''.join(children)}</{tag}>"


def fragment(*children: str) -> str:
    """What a `_repr_html_` returns: the children, with their style."""
    return f'{STYLE}<div class="streamrec">{"".join(children)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    lines = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element("table", element("tr", *(element("th", cell) for cell in head)), *lines)


def boxed(title: str, detail: str) -> str:
    """A box with a title and, smaller, what is to be said of it."""
    return element(
        "div", element("b", text(title)), "<br>", element("small", element("code", text(detail))), kind="box"
    )


def bar(parts: Iterable[tuple[str, float]], whole: float, tip: str) -> str:
    """A bar of parts, each with its class and its amount of the whole."""
    inner = [
        f'<span class="{kind}" style="width: {100 * min(1.0, amount / whole):.1f}%"></span>'
        for kind, amount in parts
        if whole > 0 and amount > 0
    ]
    return element("span", *inner, kind="bar", tip=tip)
