"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.iterators import AsyncDatasetIterator, DatasetIterator
from streamrec.pipeline.tfrecords import TFRecordDataset

__all__ = ["AsyncDatasetIterator", "Dataset", "DatasetIterator", "TFRecordDataset"]
