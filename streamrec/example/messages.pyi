from collections.abc import Iterable, Mapping
from typing import Literal

from google.protobuf.internal.containers import (
    MessageMap,
    RepeatedCompositeFieldContainer,
    RepeatedScalarFieldContainer,
)
from google.protobuf.message import Message

__all__ = [
    "BytesList",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "TensorProto",
    "TensorShapeProto",
]

class BytesList(Message):
    def __init__(self, *, value: Iterable[bytes] | None = ...) -> None: ...
    @property
    def value(self) -> RepeatedScalarFieldContainer[bytes]: ...

class FloatList(Message):
    def __init__(self, *, value: Iterable[float] | None = ...) -> None: ...
    @property
    def value(self) -> RepeatedScalarFieldContainer[float]: ...

class Int64List(Message):
    def __init__(self, *, value: Iterable[int] | None = ...) -> None: ...
    @property
    def value(self) -> RepeatedScalarFieldContainer[int]: ...

class Feature(Message):
    def __init__(
        self,
        *,
        bytes_list: BytesList | None = ...,
        float_list: FloatList | None = ...,
        int64_list: Int64List | None = ...,
    ) -> None: ...
    @property
    def bytes_list(self) -> BytesList: ...
    @property
    def float_list(self) -> FloatList: ...
    @property
    def int64_list(self) -> Int64List: ...
    def WhichOneof(self, oneof_group: str) -> Literal["bytes_list", "float_list", "int64_list"] | None: ...  # noqa: N802

class Features(Message):
    def __init__(self, *, feature: Mapping[str, Feature] | None = ...) -> None: ...
    @property
    def feature(self) -> MessageMap[str, Feature]: ...

class FeatureList(Message):
    def __init__(self, *, feature: Iterable[Feature] | None = ...) -> None: ...
    @property
    def feature(self) -> RepeatedCompositeFieldContainer[Feature]: ...

class FeatureLists(Message):
    def __init__(self, *, feature_list: Mapping[str, FeatureList] | None = ...) -> None: ...
    @property
    def feature_list(self) -> MessageMap[str, FeatureList]: ...

class Example(Message):
    def __init__(self, *, features: Features | None = ...) -> None: ...
    @property
    def features(self) -> Features: ...

class SequenceExample(Message):
    def __init__(self, *, context: Features | None = ..., feature_lists: FeatureLists | None = ...) -> None: ...
    @property
    def context(self) -> Features: ...
    @property
    def feature_lists(self) -> FeatureLists: ...

class TensorShapeProto(Message):
    class Dim(Message):
        size: int
        name: str
        def __init__(self, *, size: int = ..., name: str = ...) -> None: ...

    unknown_rank: bool
    def __init__(self, *, dim: Iterable[TensorShapeProto.Dim] | None = ..., unknown_rank: bool = ...) -> None: ...
    @property
    def dim(self) -> RepeatedCompositeFieldContainer[TensorShapeProto.Dim]: ...

class TensorProto(Message):
    dtype: int
    version_number: int
    tensor_content: bytes
    float8_val: bytes
    def __init__(
        self,
        *,
        dtype: int = ...,
        tensor_shape: TensorShapeProto | None = ...,
        version_number: int = ...,
        tensor_content: bytes = ...,
        float_val: Iterable[float] | None = ...,
        double_val: Iterable[float] | None = ...,
        int_val: Iterable[int] | None = ...,
        string_val: Iterable[bytes] | None = ...,
        scomplex_val: Iterable[float] | None = ...,
        int64_val: Iterable[int] | None = ...,
        bool_val: Iterable[bool] | None = ...,
        dcomplex_val: Iterable[float] | None = ...,
        half_val: Iterable[int] | None = ...,
        uint32_val: Iterable[int] | None = ...,
        uint64_val: Iterable[int] | None = ...,
        float8_val: bytes = ...,
    ) -> None: ...
    @property
    def tensor_shape(self) -> TensorShapeProto: ...
    @property
    def float_val(self) -> RepeatedScalarFieldContainer[float]: ...
    @property
    def double_val(self) -> RepeatedScalarFieldContainer[float]: ...
    @property
    def int_val(self) -> RepeatedScalarFieldContainer[int]: ...
    @property
    def string_val(self) -> RepeatedScalarFieldContainer[bytes]: ...
    @property
    def scomplex_val(self) -> RepeatedScalarFieldContainer[float]: ...
    @property
    def int64_val(self) -> RepeatedScalarFieldContainer[int]: ...
    @property
    def bool_val(self) -> RepeatedScalarFieldContainer[bool]: ...
    @property
    def dcomplex_val(self) -> RepeatedScalarFieldContainer[float]: ...
    @property
    def half_val(self) -> RepeatedScalarFieldContainer[int]: ...
    @property
    def uint32_val(self) -> RepeatedScalarFieldContainer[int]: ...
    @property
    def uint64_val(self) -> RepeatedScalarFieldContainer[int]: ...
