"""tf.train.Example messages: parsed and written in columns, without TensorFlow."""

from streamrec.example.columns import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)

__all__ = [
    "BytesColumn",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "RaggedFeature",
    "RaggedTensor",
    "SparseFeature",
    "SparseTensor",
    "VarLenFeature",
]
