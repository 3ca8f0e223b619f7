from streamrec.pipeline.arrow_stream import read_batches
from streamrec.pipeline.dataset import Dataset
from streamrec.pipeline.elements.specs import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from streamrec.pipeline.engine.description import AUTOTUNE
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from streamrec.pipeline.iterators import AsyncDatasetIterator, DatasetIterator
from streamrec.pipeline.sink import WriteProgress
from streamrec.pipeline.telemetry.stats import ChainStats, StageStats, Stats
from streamrec.pipeline.tfrecord_dataset import TFRecordDataset, read_counted, read_portions

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "AsyncDatasetIterator",
    "ChainStats",
    "Dataset",
    "DatasetIterator",
    "RaggedTensorSpec",
    "SparseTensorSpec",
    "StageStats",
    "Stats",
    "TFRecordDataset",
    "TensorSpec",
    "WriteProgress",
    "read_batches",
    "read_counted",
    "read_portions",
]
