"""The chart at the head of docs/benchmarks.md: a bar for each row of the table, the worst first.

The bars are left of their names, so that a narrow window shows them first. A bar begins at 1, where
both sides are equal. It goes to the right where streamrec is better, and to the left where the
other side is. The upper half of a bar is the speed, the lower half the processor time. The scale is
logarithmic. `benchmarks.table` draws the chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Protocol

WIDTH = 860
AXIS = (12, 330)
"""Where the axis begins and ends."""

LABELS = 346
"""Where the names of the rows begin."""

ROW = 19
HEAD = 50
FOOT = 24
TICKS = (0.1, 0.3, 1, 3, 10, 30)
LEAST, MOST = 0.06, 64
"""The ends of the axis. A longer bar is cut there; its figure stands in the table."""

SPEED, PROCESSOR = "#d9480f", "#1971c2"
THEMES = {"light": ("#212529", "#ced4da"), "dark": ("#e6edf3", "#495057")}
"""The colors of text and lines; the background is that of the page."""


class Compared(Protocol):
    """What the chart shows of a row: how many times as fast, and as much processor time."""

    @property
    def work(self) -> str: ...

    @property
    def peer(self) -> str: ...

    @property
    def speed(self) -> float | None: ...

    @property
    def cpu(self) -> float | None: ...


def place(ratio: float) -> float:
    """Where a ratio stands on the axis, in pixels.

    >>> place(LEAST), place(1000) == place(MOST)
    (12.0, True)
    >>> place(0.5) < place(1) < place(2)
    True
    """
    inside = min(max(ratio, LEAST), MOST)
    share = math.log(inside / LEAST) / math.log(MOST / LEAST)
    return AXIS[0] + share * (AXIS[1] - AXIS[0])


def draw(rows: Sequence[Compared], theme: str) -> str:
    """The chart as SVG, for a light or a dark page."""
    text, line = THEMES[theme]
    height = HEAD + ROW * len(rows) + FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{text}" role="img" '
        f'aria-label="Speed and processor time of each row of the table">',
        *legend(),
        *axis(height, line),
    ]
    for number, row in enumerate(rows):
        parts += bars(row, HEAD + ROW * number)
    return "\n".join([*parts, "</svg>", ""])


def legend() -> Iterator[str]:
    """The meaning of colors and directions."""
    yield f'<rect x="{LABELS}" y="6" width="12" height="8" fill="{SPEED}"/>'
    yield f'<text x="{LABELS + 18}" y="14">speed</text>'
    yield f'<rect x="{LABELS + 70}" y="6" width="12" height="8" fill="{PROCESSOR}"/>'
    yield f'<text x="{LABELS + 88}" y="14">processor time</text>'
    yield f'<text x="{place(1) - 8}" y="14" text-anchor="end">← other is better</text>'
    yield f'<text x="{place(1) + 8}" y="14">streamrec is better →</text>'


def axis(height: int, line: str) -> Iterator[str]:
    """The ticks, with a stronger line at 1."""
    for tick in TICKS:
        x = f"{place(tick):.1f}"
        width = 1.5 if tick == 1 else 0.5
        yield (
            f'<line x1="{x}" x2="{x}" y1="{HEAD - 6}" y2="{height - FOOT + 4}" '
            f'stroke="{line}" stroke-width="{width}"/>'
        )
        for y in (HEAD - 12, height - 6):
            yield f'<text x="{x}" y="{y}" text-anchor="middle">{tick:g}</text>'


def bars(row: Compared, top: int) -> Iterator[str]:
    """The name of a row, and its two bars."""
    name = f"{row.work} · {row.peer}".replace("`", "")
    yield f'<text x="{LABELS}" y="{top + 12}"{squeezed(name)}>{escape(name)}</text>'
    for ratio, color, y in (
        (row.speed, SPEED, top + 3),
        (None if row.cpu is None else 1 / row.cpu, PROCESSOR, top + 9),
    ):
        if ratio is None:
            continue
        start, end = sorted((place(1), place(ratio)))
        yield (
            f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" height="5" '
            f'fill="{color}"><title>{ratio:.2g}</title></rect>'
        )


def squeezed(name: str) -> str:
    """The attribute that keeps a long name in the picture, whatever font the browser has.

    >>> squeezed("short"), squeezed("long " * 30)
    ('', ' textLength="510" lengthAdjust="spacingAndGlyphs"')
    """
    room = WIDTH - LABELS - 4
    if 6.2 * len(name) < room:
        return ""
    return f' textLength="{room}" lengthAdjust="spacingAndGlyphs"'


def files(rows: Iterable[Compared]) -> dict[str, str]:
    """The names of the files in docs/assets, and their content."""
    listed = list(rows)
    return {f"bars-{theme}.svg": draw(listed, theme) for theme in THEMES}
