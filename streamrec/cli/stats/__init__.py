"""What is counted of features while their records go by; its memory does not grow with their number."""

from streamrec.cli.stats.dataset import DatasetStats
from streamrec.cli.stats.feature import FeatureStats
from streamrec.cli.stats.frequent_values import FrequentValues
from streamrec.cli.stats.histogram import Bin, Histogram
from streamrec.cli.stats.moments import Moments

__all__ = ["Bin", "DatasetStats", "FeatureStats", "FrequentValues", "Histogram", "Moments"]
