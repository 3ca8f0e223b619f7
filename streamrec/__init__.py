"""streamrec: TFRecord shards from remote storage, streamed, verified, without TensorFlow.

    >>> import streamrec
    >>> dataset = streamrec.TFRecordDataset("gs://bucket/train-*.tfrecord", num_parallel_reads=16)
    >>> batches = dataset.batch(1024)

Then `for frames in batches` in a training loop, or `async for` in a service.

`import streamrec` is cheap: a public name is imported when it is first asked for. What it is to a type checker stands
in `__init__.pyi`.
"""

import importlib
from typing import Any, Final

_NAMES_OF: Final[dict[str, tuple[str, ...]]] = {
    "errors": (
        "AlreadyExistsError",
        "CacheError",
        "ClosedError",
        "CorruptRecordError",
        "FeatureError",
        "IntegrityError",
        "ManifestError",
        "MissingExtraError",
        "NotFoundError",
        "ObjectChangedError",
        "PermissionDeniedError",
        "PositionMismatchError",
        "StorageError",
        "StorageTimeoutError",
        "StreamrecError",
        "ThrottledError",
        "TruncatedShardError",
        "UnsupportedOperationError",
        "UploadEndedError",
    ),
    "example": (
        "ArrowBatch",
        "BytesColumn",
        "BytesList",
        "EncodedBatch",
        "Example",
        "Feature",
        "FeatureList",
        "FeatureLists",
        "Features",
        "FeatureSummary",
        "FixedLenFeature",
        "FixedLenSequenceFeature",
        "FloatList",
        "Int64List",
        "RaggedFeature",
        "RaggedTensor",
        "Schema",
        "SequenceExample",
        "SparseFeature",
        "SparseTensor",
        "VarLenFeature",
        "bytes_feature",
        "decode_json_example",
        "decode_raw",
        "encode_example",
        "encode_examples",
        "encode_sequence_example",
        "float_feature",
        "infer_features",
        "int64_feature",
        "parse_example",
        "parse_sequence_example",
        "parse_single_example",
        "parse_single_sequence_example",
        "parse_tensor",
        "serialize_tensor",
    ),
    "pipeline": (
        "AUTOTUNE",
        "AsyncDatasetIterator",
        "Dataset",
        "DatasetIterator",
        "INFINITE_CARDINALITY",
        "RaggedTensorSpec",
        "SparseTensorSpec",
        "StageStats",
        "Stats",
        "TFRecordDataset",
        "TensorSpec",
        "UNKNOWN_CARDINALITY",
        "WriteProgress",
    ),
    "shards": (
        "Index",
        "RecordSource",
        "ShardInfo",
        "ShardReader",
        "ShardWriter",
        "TFRecordWriter",
        "matching_files",
        "VerifyProblem",
        "VerifyReport",
        "join_index",
        "join_index_sync",
        "open_shard",
        "verify",
        "verify_sync",
        "write_index",
        "write_index_sync",
        "write_manifest",
        "write_manifest_sync",
    ),
    "storage": ("RetryPolicy",),
    "tfrecord": (
        "Framer",
        "Frames",
        "Loss",
        "TFRecordOptions",
        "decode_compressed",
        "encode_record",
        "encode_records",
    ),
}
"""The public names, by the room they come from."""

_ROOM_OF: Final = {name: room for room, names in _NAMES_OF.items() for name in names}
_ROOMS: Final = {*_NAMES_OF, "bridge", "kernels"}

__all__ = list(_ROOM_OF)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports a public name, or a room (PEP 562)."""
    if name in _ROOMS:
        return importlib.import_module(f"streamrec.{name}")
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'streamrec' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"streamrec.{_ROOM_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})
