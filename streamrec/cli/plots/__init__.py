"""How figures are drawn: as characters in a terminal, as SVG in a page."""

from streamrec.cli.plots.bars import sparkline
from streamrec.cli.plots.page import page

__all__ = ["page", "sparkline"]
