"""The protobuf messages of TensorFlow's TFRecord files, without TensorFlow.

`Example`, `SequenceExample` and their parts are real protobuf messages: `FromString`,
`SerializeToString`, `WhichOneof`, the text form, the JSON form and pickling work as for
TensorFlow's own classes. `serialize_tensor` writes a `TensorProto`.

Rules of this file:
- The descriptors are in a private pool. The default pool has one file of each name per process, and
  TensorFlow (and other packages) register `tensorflow/core/example/example.proto`, too: the second
  registration fails at import if one option differs. A private pool never conflicts, in any import
  order.
- Field numbers, names and types are TensorFlow's (`tensorflow/core/example/{feature,example}.proto`
  and `tensorflow/core/framework/{types,tensor_shape,tensor}.proto`), so bytes, text and JSON are
  equal.
- `messages.pyi` has the static types of the classes.

    >>> example = Example()
    >>> example.features.feature["label"].int64_list.value.append(3)
    >>> Example.FromString(example.SerializeToString()).features.feature["label"].WhichOneof("kind")
    'int64_list'
"""

from __future__ import annotations

import copyreg
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
]

_PACKAGE: Final = "tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}

# One line a field: name, number, type. A leading "*" repeats it (numbers are packed, as proto3
# packs them), "map:T" is map<string, T>, "oneof:T" joins the oneof `kind`; other types are messages
# of the package.
_MESSAGES: Final = {
    "BytesList": [("value", 1, "*bytes")],
    "FloatList": [("value", 1, "*float")],
    "Int64List": [("value", 1, "*int64")],
    "Feature": [
        ("bytes_list", 1, "oneof:BytesList"),
        ("float_list", 2, "oneof:FloatList"),
        ("int64_list", 3, "oneof:Int64List"),
    ],
    "Features": [("feature", 1, "map:Feature")],
    "FeatureList": [("feature", 1, "*Feature")],
    "FeatureLists": [("feature_list", 1, "map:FeatureList")],
    "Example": [("features", 1, "Features")],
    "SequenceExample": [("context", 1, "Features"), ("feature_lists", 2, "FeatureLists")],
    # From TensorFlow Serving's `input.proto`: TF-Ranking writes a query and its documents in it.
    "ExampleListWithContext": [("examples", 1, "*Example"), ("context", 2, "Example")],
    # The same bytes as a SequenceExample and an ExampleListWithContext, for `kinds.py`: maps are
    # lists of entries, keys are repeated, and a feature may have several kinds. So a message keeps
    # what the real ones drop without a trace.
    "ExactFeature": [
        ("bytes_list", 1, "BytesList"),
        ("float_list", 2, "FloatList"),
        ("int64_list", 3, "Int64List"),
    ],
    "ExactEntry": [("key", 1, "*string"), ("value", 2, "ExactFeature")],
    "ExactFeatures": [("feature", 1, "*ExactEntry")],
    "ExactFeatureList": [("feature", 1, "*ExactFeature")],
    "ExactListEntry": [("key", 1, "*string"), ("value", 2, "ExactFeatureList")],
    "ExactFeatureLists": [("feature_list", 1, "*ExactListEntry")],
    "ExactExample": [("features", 1, "ExactFeatures")],
    "ExactSequenceExample": [
        ("context", 1, "ExactFeatures"),
        ("feature_lists", 2, "ExactFeatureLists"),
    ],
    "ExactExampleList": [("examples", 1, "*ExactExample"), ("context", 2, "ExactExample")],
    "AnyMessage": [],
    "TensorShapeProto": [("dim", 2, "*TensorShapeProto.Dim"), ("unknown_rank", 3, "bool")],
    "TensorShapeProto.Dim": [("size", 1, "int64"), ("name", 2, "string")],
    # `dtype` is an enum in TensorFlow's file; an int32 has the same bytes and keeps unknown
    # numbers. Resource handles (14) and variants (15) contain no array; they stay unknown fields.
    "TensorProto": [
        ("dtype", 1, "int32"),
        ("tensor_shape", 2, "TensorShapeProto"),
        ("version_number", 3, "int32"),
        ("tensor_content", 4, "bytes"),
        ("float_val", 5, "*float"),
        ("double_val", 6, "*double"),
        ("int_val", 7, "*int32"),
        ("string_val", 8, "*bytes"),
        ("scomplex_val", 9, "*float"),
        ("int64_val", 10, "*int64"),
        ("bool_val", 11, "*bool"),
        ("dcomplex_val", 12, "*double"),
        ("half_val", 13, "*int32"),
        ("uint32_val", 16, "*uint32"),
        ("uint64_val", 17, "*uint64"),
        ("float8_val", 18, "bytes"),
    ],
}


def _add_map(message: descriptor_pb2.DescriptorProto, name: str, value: str) -> str:
    """Adds the entry message of a map<string, value>; returns its type name."""
    entry = message.nested_type.add(
        name="".join(word.title() for word in name.split("_")) + "Entry"
    )
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "string")
    _add_field(entry, "value", 2, value)
    return f"*{message.name}.{entry.name}"


def _add_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> None:
    if kind.startswith("map:"):
        kind = _add_map(message, name, kind.removeprefix("map:"))
    field = message.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("*"):
        field.label = _Field.LABEL_REPEATED
        kind = kind.removeprefix("*")
    if kind.startswith("oneof:"):
        if not message.oneof_decl:
            message.oneof_decl.add(name="kind")
        field.oneof_index = 0
        kind = kind.removeprefix("oneof:")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="streamrec.proto", package=_PACKAGE, syntax="proto3"
    )
    for path, fields in _MESSAGES.items():
        outer, _, inner = path.partition(".")
        siblings = file.message_type[-1].nested_type if inner else file.message_type
        message = siblings.add(name=inner or outer)
        for field in fields:
            _add_field(message, *field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def _message_class(name: str) -> Any:
    """The class of one message, with this module as its `__module__`, so that pickle finds it."""
    message = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
    message.__module__ = __name__
    return message


_POOL: Final = _pool()
BytesList = _message_class("BytesList")
FloatList = _message_class("FloatList")
Int64List = _message_class("Int64List")
Feature = _message_class("Feature")
Features = _message_class("Features")
FeatureList = _message_class("FeatureList")
FeatureLists = _message_class("FeatureLists")
Example = _message_class("Example")
SequenceExample = _message_class("SequenceExample")
ExampleListWithContext = _message_class("ExampleListWithContext")
ExactSequenceExample = _message_class("ExactSequenceExample")
ExactExampleList = _message_class("ExactExampleList")
AnyMessage = _message_class("AnyMessage")
TensorShapeProto = _message_class("TensorShapeProto")
TensorProto = _message_class("TensorProto")


def _parse_dim(data: bytes) -> Any:
    return TensorShapeProto.Dim.FromString(data)


def _pickle_dim(dim: Any) -> tuple[Any, ...]:
    """Pickles a nested message.

    protobuf's own unpickling searches the default pool, which does not have it.
    """
    return _parse_dim, (dim.SerializeToString(),)


copyreg.pickle(TensorShapeProto.Dim, _pickle_dim)
