"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.iterators import AsyncDatasetIterator, DatasetIterator
from streamrec.pipeline.options import AUTOTUNE
from streamrec.pipeline.tfrecords import TFRecordDataset
from streamrec.pipeline.watching.figures import ChainStats, StageStats
from streamrec.pipeline.watching.stats import Stats

__all__ = [
    "AUTOTUNE",
    "AsyncDatasetIterator",
    "ChainStats",
    "Dataset",
    "DatasetIterator",
    "StageStats",
    "Stats",
    "TFRecordDataset",
]
