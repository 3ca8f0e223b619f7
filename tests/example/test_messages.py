"""The messages are TensorFlow's on the wire, in text and in JSON, and share a process with
anybody.
"""

import copy
import operator
import pickle

import pytest
from google.protobuf import json_format, text_format

from streamrec.example import Example, Feature, SequenceExample, messages
from tests.runs import in_new_interpreter

FOREIGN_DESCRIPTORS = """
from google.protobuf import descriptor_pb2, descriptor_pool
for name in "feature", "example":
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tensorflow/core/example/{name}.proto", package="tensorflow", syntax="proto3"
    )
    message = file.message_type.add(name={"feature": "Feature", "example": "Example"}[name])
    message.field.add(name="other", number=7, type=5, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
"""
IMPORT_TENSORFLOW = """
import tensorflow as tf
assert tf.train.Example.FromString(b'') == tf.train.Example()
"""
IMPORT_STREAMREC = """
import streamrec
from streamrec.example.messages import Example
streamrec.TFRecordDataset
example = Example()
example.features.feature["a"].int64_list.value.append(1)
assert Example.FromString(example.SerializeToString()) == example
"""
COMPARE_MESSAGES = """
example = Example()
example.features.feature["a"].bytes_list.value.append(b"x")
theirs = tf.train.Example.FromString(example.SerializeToString())
assert theirs.features.feature["a"].bytes_list.value[0] == b"x"
"""


def make_example() -> Example:
    return Example(
        features=messages.Features(
            feature={
                "label": Feature(int64_list=messages.Int64List(value=[-1, 2])),
                "name": Feature(bytes_list=messages.BytesList(value=[b"\x00\xff"])),
                "score": Feature(float_list=messages.FloatList(value=[0.5])),
                "none": Feature(),
            }
        )
    )


def make_sequence() -> SequenceExample:
    steps = [Feature(int64_list=messages.Int64List(value=[1])), Feature()]
    return SequenceExample(
        context=make_example().features,
        feature_lists=messages.FeatureLists(
            feature_list={"steps": messages.FeatureList(feature=steps)}
        ),
    )


def test_wire_format() -> None:
    example = Example(
        features=messages.Features(
            feature={"a": Feature(int64_list=messages.Int64List(value=[1, 300]))}
        )
    )
    assert example.SerializeToString() == b"\n\x0e\n\x0c\n\x01a\x12\x07\x1a\x05\n\x03\x01\xac\x02"


@pytest.mark.parametrize("message", [make_example(), make_sequence()], ids=["example", "sequence"])
def test_messages_survive_bytes_text_json_and_pickle(message: Example | SequenceExample) -> None:
    kind = type(message)
    assert kind.FromString(message.SerializeToString()) == message
    assert text_format.Parse(text_format.MessageToString(message), kind()) == message
    assert json_format.Parse(json_format.MessageToJson(message), kind()) == message
    assert pickle.loads(pickle.dumps(message)) == message


NAMES = set(messages.__all__)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", [*sorted(NAMES), "TensorShapeProto.Dim"])
def test_every_message_is_pickled_and_copied(name: str, protocol: int) -> None:
    kind = operator.attrgetter(name)(messages)
    message = kind.FromString(b"\xfa\x07\x01x")  # an unknown field, so that it is not empty
    if name == "TensorShapeProto.Dim":
        message.size, message.name = 3, "rows"
    for other in (
        pickle.loads(pickle.dumps(message, protocol)),
        copy.copy(message),
        copy.deepcopy(message),
    ):
        assert type(other) is kind
        assert other is not message
        assert other.SerializeToString() == message.SerializeToString()
    assert message.SerializeToString()


def test_names_are_tensorflows() -> None:
    names = {getattr(messages, name).DESCRIPTOR.full_name for name in NAMES}
    assert names == {f"tensorflow.{name}" for name in NAMES}


@pytest.mark.parametrize("first", ["foreign", "ours"])
def test_a_foreign_file_of_the_same_name(first: str) -> None:
    in_new_interpreter(
        FOREIGN_DESCRIPTORS + IMPORT_STREAMREC
        if first == "foreign"
        else IMPORT_STREAMREC + FOREIGN_DESCRIPTORS
    )


@pytest.mark.peer
@pytest.mark.parametrize("first", ["tensorflow", "ours"])
def test_tensorflow_in_the_same_process(first: str) -> None:
    pytest.importorskip("tensorflow")
    in_new_interpreter(
        (
            IMPORT_TENSORFLOW + IMPORT_STREAMREC
            if first == "tensorflow"
            else IMPORT_STREAMREC + IMPORT_TENSORFLOW
        )
        + COMPARE_MESSAGES
    )


@pytest.mark.peer
def test_tensorflow_has_the_same_fields() -> None:
    tf = pytest.importorskip("tensorflow")
    for name in NAMES - {"TensorProto", "TensorShapeProto", "ExampleListWithContext"}:
        ours, theirs = (getattr(home, name).DESCRIPTOR for home in (messages, tf.train))
        for field, other in zip(ours.fields, theirs.fields, strict=True):
            assert (field.name, field.number, field.type) == (other.name, other.number, other.type)
