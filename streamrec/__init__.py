"""streamrec: TFRecord shards from remote storage, streamed, verified, without TensorFlow.

    >>> import streamrec
    >>> dataset = streamrec.TFRecordDataset("gs://bucket/train-*.tfrecord", num_parallel_reads=16)
    >>> batches = dataset.batch(1024)

Then `for frames in batches` in a training loop, or `async for` in a service.

`import streamrec` is cheap: a public name is imported when it is first asked for. So are the modules `errors`,
`example`, `pipeline`, `shards`, `storage` and `tfrecord`, which have the less common names, such as
`streamrec.shards.ShardInfo`.
`__init__.pyi` says what the names are to type checkers.
"""

from typing import Final

from streamrec.lazy import lazy_names

_NAMES_OF: Final[dict[str, tuple[str, ...]]] = {
    "bridge": (),
    "kernels": (),
    "errors": (
        "CorruptRecordError",
        "FeatureError",
        "NotFoundError",
        "StorageError",
        "StreamrecError",
    ),
    "example": (
        "ArrowBatch",
        "BytesColumn",
        "Example",
        "FixedLenFeature",
        "FixedLenSequenceFeature",
        "RaggedFeature",
        "RaggedTensor",
        "SequenceExample",
        "SparseFeature",
        "SparseTensor",
        "VarLenFeature",
        "decode_json_example",
        "decode_raw",
        "encode_example",
        "encode_examples",
        "encode_sequence_example",
        "infer_features",
        "parse_example",
        "parse_sequence_example",
        "parse_single_example",
        "parse_single_sequence_example",
        "parse_tensor",
        "serialize_tensor",
    ),
    "pipeline": (
        "AUTOTUNE",
        "Dataset",
        "TFRecordDataset",
        "TensorSpec",
    ),
    "shards": (
        "RecordSource",
        "ShardWriter",
        "TFRecordWriter",
        "matching_files",
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
        "TFRecordOptions",
        "decode_compressed",
        "encode_record",
        "encode_records",
    ),
}
"""The public names at the top level, by the module they come from."""

__getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES_OF)
__version__ = "0.1.0"
