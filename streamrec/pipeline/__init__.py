"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.figures import ChainStats, StageStats
from streamrec.pipeline.iterators import AsyncDatasetIterator, DatasetIterator
from streamrec.pipeline.options import AUTOTUNE
from streamrec.pipeline.stats import Stats
from streamrec.pipeline.tfrecords import TFRecordDataset

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
