"""tf.train.Example messages: parsed and written in columns, without TensorFlow."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "arrow": ("ArrowBatch",),
        "columns": (
            "BytesColumn",
            "RaggedTensor",
            "SparseTensor",
        ),
        "encoding.encode": (
            "EncodedBatch",
            "bytes_feature",
            "encode_example",
            "encode_examples",
            "encode_sequence_example",
            "float_feature",
            "int64_feature",
        ),
        "features": (
            "FixedLenFeature",
            "FixedLenSequenceFeature",
            "RaggedFeature",
            "SparseFeature",
            "VarLenFeature",
        ),
        "messages": (
            "BytesList",
            "Example",
            "Feature",
            "FeatureList",
            "FeatureLists",
            "Features",
            "FloatList",
            "Int64List",
            "SequenceExample",
        ),
        "parsing.parse": (
            "parse_example",
            "parse_sequence_example",
            "parse_single_example",
            "parse_single_sequence_example",
        ),
        "raw": (
            "decode_json_example",
            "decode_raw",
        ),
        "schema": (
            "FeatureSummary",
            "Schema",
            "infer_features",
        ),
        "tensor": (
            "parse_tensor",
            "serialize_tensor",
        ),
    },
)
