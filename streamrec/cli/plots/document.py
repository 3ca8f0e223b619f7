"""What every HTML page of the command line has: self-contained, so that it can be mailed or put in a bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from streamrec.display import display_text

__all__ = ["document", "escape_text", "table"]

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --faint: #66727f; --line: #d8dee4; --bar: #2f6fb5; --page: #ffffff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --faint: #93a0ad; --line: #36414d; --bar: #6ea8e6; --page: #14191f }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 64rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2.5rem 0 .3rem; border-top: 1px solid var(--line);
  padding-top: 1rem }
p { margin: .3rem 0 } .faint { color: var(--faint) } code { overflow-wrap: anywhere }
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start }
svg { width: 520px; max-width: 100%; height: auto } .bar { fill: var(--bar) } .axis { stroke: var(--faint) }
text { font-size: 11px; fill: var(--faint) } .curve { fill: none; stroke: var(--bar); stroke-width: 2 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
th, td { text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--line) }
.number { text-align: right } th { font-weight: 600 } a { color: inherit }
.images { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: .7rem }
.images img { height: 96px; max-width: 192px; object-fit: contain; background: var(--line); border-radius: 3px }
"""


def document(title: str, summary: Iterable[str], body: Iterable[str]) -> str:
    """A page, as text.

    Args:
        title: What it is about: the names that were typed.
        summary: Lines below the title.
        body: Parts of HTML.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape_text(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1><code>{escape_text(title)}</code></h1>",
            *[f"<p>{escape_text(line)}</p>" for line in summary],
            *body,
            "</body></html>\n",
        ]
    )


def escape_text(text: str) -> str:
    """Any text, as text of the page."""
    return escape(display_text(text, lines=True))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of text. As in the terminal, a column whose name begins with ">" is set to the right."""
    kinds = [' class="number"' if column.startswith(">") else "" for column in columns]
    head = "".join(
        f"<th{kind}>{escape_text(column.removeprefix('>'))}</th>" for kind, column in zip(kinds, columns, strict=True)
    )
    lines = [
        "".join(f"<td{kind}>{escape_text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) for row in rows
    ]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{line}</tr>" for line in lines)}</table></div>'
