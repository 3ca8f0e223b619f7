"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.iterators import AsyncDatasetIterator, DatasetIterator
from streamrec.pipeline.options import AUTOTUNE
from streamrec.pipeline.sink.write import WriteProgress
from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.tfrecord_dataset import TFRecordDataset

__all__ = [
    "AUTOTUNE",
    "AsyncDatasetIterator",
    "ChainStats",
    "Dataset",
    "DatasetIterator",
    "StageStats",
    "Stats",
    "TFRecordDataset",
    "WriteProgress",
]
