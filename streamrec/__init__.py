"""streamrec: TFRecord shards from remote storage, streamed, verified, without TensorFlow.

    >>> import streamrec
    >>> dataset = streamrec.TFRecordDataset("gs://bucket/train-*.tfrecord", num_parallel_reads=16)
    >>> batches = dataset.batch(1024)

Then `for frames in batches` in a training loop, or `async for` in a service.

`import streamrec` is cheap: a public name is imported when it is first asked for. What it is to a type checker stands
in `__init__.pyi`.
"""

from typing import Final

from streamrec.lazy import lazy_names

_NAMES_OF: Final[dict[str, tuple[str, ...]]] = {
    "bridge": (),
    "kernels": (),
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

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES_OF)
__version__ = "0.1.0"
