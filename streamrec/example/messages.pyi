from collections.abc import Iterable, Mapping
from typing import Any, Literal

from google.protobuf.internal.containers import (
    MessageMap,
    RepeatedCompositeFieldContainer,
    RepeatedScalarFieldContainer,
)
from google.protobuf.message import Message

__all__ = [
    "BytesList",
    "Example",
    "ExampleListWithContext",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "TensorProto",
    "TensorShapeProto",
    "is_example_list",
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

class ExampleListWithContext(Message):
    def __init__(self, *, examples: Iterable[Example] | None = ..., context: Example | None = ...) -> None: ...
    @property
    def examples(self) -> RepeatedCompositeFieldContainer[Example]: ...
    @property
    def context(self) -> Example: ...

def is_example_list(record: bytes) -> bool: ...

class TensorShapeProto(Message):
    class Dim(Message):
        def __init__(self, *, size: int = ..., name: str = ...) -> None: ...

    def __init__(self, **fields: Any) -> None: ...
    def __getattr__(self, field: str) -> Any: ...

class TensorProto(Message):
    def __init__(self, **fields: Any) -> None: ...
    def __getattr__(self, field: str) -> Any: ...
