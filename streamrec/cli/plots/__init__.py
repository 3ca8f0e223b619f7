"""How figures are drawn: as characters in a terminal, as SVG in a page."""

from streamrec.cli.plots.curves import bar, curves_svg
from streamrec.cli.plots.document import document, table
from streamrec.cli.plots.page import page
from streamrec.cli.plots.sparkline import sparkline

__all__ = ["bar", "curves_svg", "document", "page", "sparkline", "table"]
