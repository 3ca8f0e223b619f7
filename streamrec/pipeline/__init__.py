"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.pipeline.dataset import Dataset, TFRecordDataset
from streamrec.pipeline.iterators import AsyncDatasetIterator, DatasetIterator

__all__ = ["AsyncDatasetIterator", "Dataset", "DatasetIterator", "TFRecordDataset"]
