"""streamrec: TFRecord shards from remote storage, streamed, verified, without TensorFlow.

    >>> import streamrec
    >>> dataset = streamrec.TFRecordDataset("gs://bucket/train-*.tfrecord", num_parallel_reads=16)
    >>> batches = dataset.batch(1024)

Then `for frames in batches` in a training loop, or `async for` in a service.
"""

from streamrec.errors import (
    ClosedError,
    CorruptRecordError,
    FeatureError,
    MissingExtraError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    PositionMismatchError,
    StorageError,
    StorageTimeoutError,
    StreamrecError,
    ThrottledError,
    TruncatedShardError,
    UnsupportedOperationError,
)
from streamrec.pipeline import AsyncDatasetIterator, Dataset, DatasetIterator, TFRecordDataset
from streamrec.shards import ShardInfo, ShardReader, ShardWriter, TFRecordWriter, open_shard
from streamrec.storage import RetryPolicy
from streamrec.tfrecord import Framer, Frames, TFRecordOptions, encode_record, encode_records

__all__ = [
    "AsyncDatasetIterator",
    "ClosedError",
    "CorruptRecordError",
    "Dataset",
    "DatasetIterator",
    "FeatureError",
    "Framer",
    "Frames",
    "MissingExtraError",
    "NotFoundError",
    "ObjectChangedError",
    "PermissionDeniedError",
    "PositionMismatchError",
    "RetryPolicy",
    "ShardInfo",
    "ShardReader",
    "ShardWriter",
    "StorageError",
    "StorageTimeoutError",
    "StreamrecError",
    "TFRecordDataset",
    "TFRecordOptions",
    "TFRecordWriter",
    "ThrottledError",
    "TruncatedShardError",
    "UnsupportedOperationError",
    "encode_record",
    "encode_records",
    "open_shard",
]

__version__ = "0.1.0"
