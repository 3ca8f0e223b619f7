"""Rates by the number of connections: bars in a terminal, curves in a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["bar", "curves_svg"]

EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
WIDTH: Final = 520
HEIGHT: Final = 240
LEFT: Final = 10
RIGHT: Final = 60
TOP: Final = 18
BOTTOM: Final = 34
LINE: Final = 12


def bar(share: float, width: int) -> str:
    """A bar of so much of `width` characters, to an eighth of one.

    Examples:
        >>> bar(1.0, 4), bar(0.4, 4), bar(0.0, 4)
        ('████', '█▋', '')
    """
    whole, eighths = divmod(round(share * width * 8), 8)
    return EIGHTHS[8] * whole + (EIGHTHS[eighths] if eighths else "")


def curves_svg(connections: Sequence[int], curves: Mapping[str, Sequence[float]], knee: int) -> str:
    """Draws a curve for each size of requests; the numbers of connections lie at equal distances.

    Args:
        connections: How many there were, from few to many.
        curves: For each size the MB/s with so many connections; each point tells its rate under the pointer.
        knee: The number of connections that a line marks.
    """
    best = max((rate for rates in curves.values() for rate in rates), default=0.0) or 1.0
    step = (WIDTH - LEFT - RIGHT) / max(1, len(connections) - 1)
    base = HEIGHT - BOTTOM
    places = [LEFT + number * step for number in range(len(connections))]
    at = places[connections.index(knee)]
    parts = [
        f'<line class="axis" x1="0" y1="{base}" x2="{WIDTH}" y2="{base}"/>',
        f'<line class="axis" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{base}" stroke-dasharray="3 3"/>',
        f'<text x="{at:.1f}" y="{TOP - 6}" text-anchor="middle">knee</text>',
        *(
            f'<text x="{x:.1f}" y="{base + 14}" text-anchor="middle">{number}</text>'
            for x, number in zip(places, connections, strict=True)
        ),
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">connections; the highest point: {best:,.0f} MB/s</text>',
    ]
    for name, rates in curves.items():
        points = [(x, base - (base - TOP) * rate / best) for x, rate in zip(places, rates, strict=True)]
        parts.append(f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>')
        for (x, y), number, rate in zip(points, connections, rates, strict=True):
            tip = f"{name}, {number} connections: {rate:,.0f} MB/s"
            parts.append(f'<circle class="bar" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{tip}</title></circle>')
    below = float(base)
    for name, rates in sorted(curves.items(), key=lambda curve: curve[1][-1]):  # from below, none over another
        below = min(base - (base - TOP) * rates[-1] / best, below - LINE)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{below + 4:.1f}">{name}</text>')
    label = "MB/s by connections, a curve for each size of requests"
    return "\n".join([f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">', *parts, "</svg>"])
