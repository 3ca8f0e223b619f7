"""The curves of `streamrec bench`, as text and as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from streamrec.cli.sweep import SIZES, Sweep

LEFT: Final = 52
RIGHT: Final = 452
BASE: Final = 206
HEIGHT: Final = 180
"""Of the plot, in pixels: names of sizes stand right of it, MB/s left of it."""


def curve(sweep: Sweep) -> list[str]:
    """Lines of text: a bar for each number of connections, with requests of the best size."""
    rates = sweep.rates(sweep.best[1])
    most = sweep.cells[sweep.best].rate or 1.0
    width = len(f"{most:,.0f}")
    marks = {sweep.knee: "  still growing" if sweep.grows else "  the knee"}
    lines = [
        f"{connections:>11}  {rate:>{width},.0f} MB/s  "
        f"{bar(rate / most, 40)}{marks.get(connections, '')}"
        for connections, rate in rates.items()
    ]
    return [f"requests of {sweep.best[1]}", *lines]


def bar(share: float, width: int) -> str:
    """A bar of text that fills this share of `width` characters, to an eighth of a character.

    Examples:
        >>> bar(1.0, 4), bar(0.4, 4), bar(0.0, 4)
        ('████', '█▋', '')
    """
    whole, eighths = divmod(round(share * width * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def curves_svg(sweep: Sweep) -> str:
    """An SVG image: for each size of requests, a curve of MB/s by the number of connections.

    A vertical line marks the knee.
    """
    best = sweep.cells[sweep.best].rate or 1.0
    numbers = sweep.connections
    step = (RIGHT - LEFT) / max(1, len(numbers) - 1)
    at = {number: LEFT + step * index for index, number in enumerate(numbers)}
    parts = [*axes(at, best), *knee_line(at[sweep.knee])]
    below = float(BASE)
    # From below, so that no name is written over another.
    for name in sorted(SIZES, key=lambda name: sweep.rates(name)[numbers[-1]]):
        points = [
            (at[number], BASE - HEIGHT * rate / best, number, rate)
            for number, rate in sweep.rates(name).items()
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in points)
        parts.append(f'<polyline class="curve" points="{line}"/>')
        for x, y, number, rate in points:
            tip = f"{name}, {number} connections: {rate:,.0f} MB/s"
            parts.append(
                f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{tip}</title></circle>'
            )
        below = min(points[-1][1], below - 12)
        parts.append(f'<text x="{RIGHT + 8}" y="{below + 4:.1f}">{name}</text>')
    label = "MB/s by connections, a curve for each size of requests"
    return "\n".join(
        [f'<svg viewBox="0 0 520 240" role="img" aria-label="{label}">', *parts, "</svg>"]
    )


def axes(at: dict[int, float], best: float) -> Iterator[str]:
    """The axes with their numbers: connections below, MB/s at the left."""
    yield f'<line class="axis" x1="{LEFT}" y1="{BASE}" x2="{RIGHT}" y2="{BASE}"/>'
    yield f'<line class="axis" x1="{LEFT}" y1="{BASE}" x2="{LEFT}" y2="{BASE - HEIGHT}"/>'
    for number, x in at.items():
        yield f'<text x="{x:.1f}" y="{BASE + 14}" text-anchor="middle">{number}</text>'
    yield f'<text x="{RIGHT}" y="{BASE + 30}" text-anchor="end">connections</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = BASE - HEIGHT * share
        yield f'<line class="axis" x1="{LEFT - 3}" y1="{y}" x2="{LEFT}" y2="{y}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{share * best:,.0f}</text>'
    yield f'<text x="{LEFT - 6}" y="{BASE - HEIGHT - 10}" text-anchor="end">MB/s</text>'


def knee_line(x: float) -> Iterator[str]:
    """The line at the knee, and its name."""
    top = BASE - HEIGHT
    yield (
        f'<line class="axis" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{BASE}" '
        'stroke-dasharray="3 3"/>'
    )
    # Right of its line, so that it is never written over the name of the axis.
    yield f'<text x="{x + 4:.1f}" y="{top - 6}">knee</text>'
