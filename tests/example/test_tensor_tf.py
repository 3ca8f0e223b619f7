"""serialize_tensor, parse_tensor and decode_raw beside TensorFlow's own."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamrec.errors import FeatureError
from streamrec.example.messages import TensorProto, TensorShapeProto
from streamrec.example.tensor import decode_raw, parse_tensor, serialize_tensor
from tests.effort import drawn_examples

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16"]
RAW = ["bool", *INTEGERS, "float16", "float32", "float64", "complex64", "complex128", "bfloat16"]
DTYPES = [*RAW, "uint32", "uint64"]
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    if dtype == "bfloat16":
        return draw(hnp.arrays(np.uint16, shape)).view(ml_dtypes.bfloat16)
    return draw(hnp.arrays(dtype, shape))


@drawn_examples(200)
@given(arrays())
def test_tensors_of_numbers_equal_those_of_tensorflow(array: np.ndarray[Any, Any]) -> None:
    serialized = serialize_tensor(array)
    assert serialized == tf.io.serialize_tensor(array).numpy()
    ours, theirs = (
        parse_tensor(serialized, array.dtype),
        tf.io.parse_tensor(serialized, array.dtype).numpy(),
    )
    assert (ours.dtype, ours.shape, ours.tobytes()) == (
        theirs.dtype,
        theirs.shape,
        theirs.tobytes(),
    )


@drawn_examples(50)
@given(hnp.arrays(object, shapes, elements=st.binary(max_size=5)))
def test_tensors_of_strings_equal_those_of_tensorflow(array: np.ndarray[Any, Any]) -> None:
    serialized = serialize_tensor(array)
    assert serialized == tf.io.serialize_tensor(tf.constant(array, tf.string)).numpy()
    assert parse_tensor(serialized, tf.string).tolist() == array.tolist()


@pytest.mark.parametrize(
    "value",
    [3, 0.5, True, [1, 2], [[0.5], [1.0]], 2**31 - 1, "a", [b"a\x00", b"b"], 1j, [True, False]],
)
def test_python_values(value: Any) -> None:
    assert serialize_tensor(value) == tf.io.serialize_tensor(value).numpy()


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, str]:
    """A TensorProto of few values, in any field, and often damaged."""
    numbers = {
        "int32": 3,
        "uint8": 4,
        "float16": 19,
        "float32": 1,
        "complex64": 8,
        "bool": 10,
        "string": 7,
    }
    name = draw(st.sampled_from(list(numbers)))
    small = st.lists(st.integers(0, 300), max_size=4)
    size = draw(st.lists(st.integers(-1, 3), max_size=3))
    message = TensorProto(
        dtype=draw(st.sampled_from([numbers[name], numbers[name], 9])),
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=dim) for dim in size]),
        tensor_content=draw(st.just(b"") | st.binary(max_size=9)),
        int_val=draw(small),
        float_val=draw(small),
        half_val=draw(small),
        scomplex_val=draw(small),
        bool_val=draw(st.lists(st.booleans(), max_size=3)),
        string_val=draw(st.lists(st.binary(max_size=3), max_size=3)),
    )
    data = message.SerializeToString()
    cut = draw(st.integers(0, len(data)) | st.just(len(data)))
    return data[:cut], name


@drawn_examples(300)
@given(messages())
def test_messages_that_tensorflow_refuses_are_refused_and_others_parse_alike(
    case: tuple[bytes, str],
) -> None:
    data, name = case
    try:
        theirs = tf.io.parse_tensor(data, getattr(tf, name)).numpy()
    except tf.errors.InvalidArgumentError:
        with pytest.raises(FeatureError):
            parse_tensor(data, name)
        return
    ours = parse_tensor(data, name)
    if name == "string":
        assert ours.tolist() == (theirs.tolist() if isinstance(theirs, np.ndarray) else theirs)
    else:
        assert (ours.shape, ours.tobytes()) == (theirs.shape, theirs.tobytes())


@drawn_examples(200)
@given(
    hnp.arrays(object, shapes, elements=st.binary(max_size=4) | st.just(b"12345678")),
    st.sampled_from(RAW),
    st.booleans(),
    st.none() | st.integers(0, 16),
)
def test_decode_raw(strings: Any, name: str, little: bool, fixed: int | None) -> None:
    if name in ("bool", "float16", "complex64", "complex128"):
        fixed = None  # which TensorFlow has no kernel for
    try:
        theirs = tf.io.decode_raw(
            tf.constant(strings, tf.string), getattr(tf, name), little, fixed
        ).numpy()
    except tf.errors.InvalidArgumentError:
        with pytest.raises(FeatureError):
            decode_raw(strings, name, little, fixed)
        return
    ours = decode_raw(strings, name, little, fixed)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if name != "bool":
        assert ours.tobytes() == theirs.tobytes()
