from streamrec.example.arrow import ArrowBatch
from streamrec.example.columns import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.encode import (
    bytes_feature,
    encode_example,
    encode_examples,
    encode_sequence_example,
    float_feature,
    int64_feature,
)
from streamrec.example.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.messages import (
    BytesList,
    Example,
    ExampleListWithContext,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
    is_example_list,
)
from streamrec.example.parse import (
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from streamrec.example.schema import FeatureSummary, Schema, infer_features
from streamrec.example.tensor import decode_json_example, decode_raw, parse_tensor, serialize_tensor

__all__ = [
    "ArrowBatch",
    "BytesColumn",
    "BytesList",
    "Example",
    "ExampleListWithContext",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "FeatureSummary",
    "Features",
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
    "is_example_list",
    "parse_example",
    "parse_sequence_example",
    "parse_single_example",
    "parse_single_sequence_example",
    "parse_tensor",
    "serialize_tensor",
]
