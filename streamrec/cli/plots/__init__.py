"""How figures are drawn: as characters in a terminal, as SVG in a page."""

from streamrec.cli.plots.page import page
from streamrec.cli.plots.sparkline import sparkline

__all__ = ["page", "sparkline"]
