"""A histogram as inline SVG: it needs no script, no font and no other file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streamrec.cli.output import format_number
from streamrec.cli.stats import Bin

__all__ = ["histogram_svg"]

WIDTH: Final = 520
HEIGHT: Final = 144
AXIS: Final = 18
CAPTION: Final = 14


def histogram_svg(bins: Sequence[Bin], title: str) -> str:
    """Draws bins as bars; each tells its range and count when the pointer is on it.

    Args:
        bins: The bins, side by side.
        title: What is drawn, for who cannot see it.
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
