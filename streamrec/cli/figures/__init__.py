"""What is counted of features while their records go by; its memory does not grow with their number."""

from streamrec.cli.figures.feature import FeatureFigures
from streamrec.cli.figures.frequent import Frequent
from streamrec.cli.figures.histogram import Bin, Histogram
from streamrec.cli.figures.moments import Moments
from streamrec.cli.figures.table import FigureTable

__all__ = ["Bin", "FeatureFigures", "FigureTable", "Frequent", "Histogram", "Moments"]
