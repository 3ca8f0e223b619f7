"""Datasets: descriptions of what to read, and the driver that runs them."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "dataset": ("Dataset",),
        "elements.specs": (
            "RaggedTensorSpec",
            "SparseTensorSpec",
            "TensorSpec",
        ),
        "iterators": (
            "AsyncDatasetIterator",
            "DatasetIterator",
        ),
        "engine.options": ("AUTOTUNE",),
        "engine.stage": ("INFINITE_CARDINALITY", "UNKNOWN_CARDINALITY"),
        "sink": ("WriteProgress",),
        "telemetry.stats": (
            "ChainStats",
            "StageStats",
            "Stats",
        ),
        "tfrecord_dataset": ("TFRecordDataset", "read_portions"),
    },
)
