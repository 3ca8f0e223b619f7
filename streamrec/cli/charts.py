"""Figures as characters in a terminal, and as inline SVG in a page, which needs no script, font or other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from streamrec.cli.feature_stats import Bin
from streamrec.cli.output import format_number

EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
STEPS: Final = "▁▂▃▄▅▆▇█"
WIDTH: Final = 520
CURVES_HEIGHT: Final = 240
LEFT: Final = 10
RIGHT: Final = 60
TOP: Final = 18
BOTTOM: Final = 34
LINE: Final = 12
HEIGHT: Final = 144
AXIS: Final = 18
CAPTION: Final = 14


def bar(share: float, width: int) -> str:
    """A bar that takes this share of `width` characters, to an eighth of one.

    Examples:
        >>> bar(1.0, 4), bar(0.4, 4), bar(0.0, 4)
        ('████', '█▋', '')
    """
    whole, eighths = divmod(round(share * width * 8), 8)
    return EIGHTHS[8] * whole + (EIGHTHS[eighths] if eighths else "")


def curves_svg(connections: Sequence[int], curves: Mapping[str, Sequence[float]], knee: int) -> str:
    """Draws a curve for each size of requests; the numbers of connections are at equal distances.

    Args:
        connections: The numbers of connections, in ascending order.
        curves: For each size the MB/s with each number of connections, which a point shows under the pointer.
        knee: The number of connections that a line marks.
    """
    best = max((rate for rates in curves.values() for rate in rates), default=0.0) or 1.0
    step = (WIDTH - LEFT - RIGHT) / max(1, len(connections) - 1)
    base = CURVES_HEIGHT - BOTTOM
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
        f'<text x="{WIDTH}" y="{CURVES_HEIGHT - 4}" text-anchor="end">connections; the highest point: '
        f"{best:,.0f} MB/s</text>",
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
    return "\n".join([f'<svg viewBox="0 0 {WIDTH} {CURVES_HEIGHT}" role="img" aria-label="{label}">', *parts, "</svg>"])


def sparkline(counts: Sequence[int]) -> str:
    """A character for each count; a space for none, the highest bar for the most.

    Examples:
        >>> sparkline([0, 1, 4, 8])
        ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(" " if not count else STEPS[-(-count * len(STEPS) // most) - 1] for count in counts)


def histogram_svg(bins: Sequence[Bin], title: str) -> str:
    """Draws bins as bars; each shows its range and count under the pointer.

    Args:
        bins: The bins, side by side.
        title: What the figure shows, for screen readers.
    """
    most = max((bin.count for bin in bins), default=0)
    if not most:
        return ""
    width = WIDTH / len(bins)
    bars = []
    for number, bin in enumerate(bins):
        height = (HEIGHT - AXIS - CAPTION) * bin.count / most
        place = f'x="{number * width:.1f}" y="{HEIGHT - AXIS - height:.1f}" width="{width:.1f}" height="{height:.1f}"'
        tip = f"{format_number(bin.start)} to {format_number(bin.end)}: {bin.count:,}"
        bars.append(f'<rect class="bar" {place}><title>{tip}</title></rect>')
    base = HEIGHT - AXIS
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
            *bars,
            f'<line class="axis" x1="0" y1="{base}" x2="{WIDTH}" y2="{base}"/>',
            f'<text x="0" y="{HEIGHT - 4}">{format_number(bins[0].start)}</text>',
            f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">{format_number(bins[-1].end)}</text>',
            f'<text x="{WIDTH}" y="11" text-anchor="end">highest bar: {most:,}</text>',
            "</svg>",
        ]
    )
