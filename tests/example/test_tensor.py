"""Tensors and raw values as TensorFlow writes them: against its own bytes, and against what damage
may do.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example.dtypes import tensor_dtype
from streamrec.example.encode import encode_example
from streamrec.example.features import FixedLenFeature
from streamrec.example.messages import Example, TensorProto, TensorShapeProto
from streamrec.example.parse import parse_single_example
from streamrec.example.tensor import decode_json_example, decode_raw, parse_tensor, serialize_tensor

GOLDEN = Path(__file__).parent.parent / "golden" / "tensors"
NUMBERS = [path.stem for path in sorted(GOLDEN.glob("*.npy")) if not path.stem.endswith(".bits")]
EXTENSIONS = [
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.int4,
    ml_dtypes.uint4,
]


def tensor_message(dtype: int, shape: list[int], **fields: Any) -> bytes:
    dims = [TensorShapeProto.Dim(size=size) for size in shape]
    return TensorProto(
        dtype=dtype, tensor_shape=TensorShapeProto(dim=dims), **fields
    ).SerializeToString()


@pytest.mark.parametrize("name", NUMBERS)
def test_golden_numbers(name: str) -> None:
    array, serialized = np.load(GOLDEN / f"{name}.npy"), (GOLDEN / f"{name}.pb").read_bytes()
    assert serialize_tensor(array) == serialized
    parsed = parse_tensor(serialized, array.dtype)
    assert parsed.dtype == array.dtype
    np.testing.assert_array_equal(parsed, array, strict=True)


def test_golden_bfloat16() -> None:
    array = np.load(GOLDEN / "bfloat16_4x2.bits.npy").view(ml_dtypes.bfloat16)
    serialized = (GOLDEN / "bfloat16_4x2.pb").read_bytes()
    assert serialize_tensor(array) == serialized
    assert parse_tensor(serialized, "bfloat16").tobytes() == array.tobytes()


def test_golden_strings() -> None:
    serialized = (GOLDEN / "string_3.pb").read_bytes()
    strings: list[str | bytes] = [b"", b"a\x00b", "snö"]
    assert serialize_tensor(strings) == serialize_tensor(np.array(strings, object)) == serialized
    assert parse_tensor(serialized, bytes).tolist() == [b"", b"a\x00b", "snö".encode()]


def test_byte_order_and_layout_do_not_matter() -> None:
    array = np.arange(6, dtype=">i4").reshape(2, 3)
    native = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert serialize_tensor(array) == serialize_tensor(native)
    assert serialize_tensor(native.T) == serialize_tensor(np.ascontiguousarray(native.T))


@pytest.mark.parametrize("dtype", EXTENSIONS)
def test_extension_dtypes_round_trip(dtype: Any) -> None:
    array = np.array([[1, 2], [3, 0]]).astype(dtype)
    parsed = parse_tensor(serialize_tensor(array), dtype)
    assert parsed.dtype == array.dtype
    assert parsed.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("out_type", "serialized", "values"),
    [
        ("int32", tensor_message(3, [5], int_val=[1, 2]), [1, 2, 2, 2, 2]),
        ("int32", tensor_message(3, [1], tensor_content=b"\x01\0\0\0", int_val=[9]), [1]),
        ("int16", tensor_message(5, [2], int64_val=[1]), [0, 0]),
        ("uint32", tensor_message(22, [3], uint32_val=[1, 2**32 - 1]), [1, 2**32 - 1, 2**32 - 1]),
        ("uint64", tensor_message(23, [1], uint64_val=[2**64 - 1]), [2**64 - 1]),
        ("int64", tensor_message(9, [2], int64_val=[-5]), [-5, -5]),
        ("float16", tensor_message(19, [3], half_val=[0x3C00, 0x4000]), [1, 2, 2]),
        ("bfloat16", tensor_message(14, [2], half_val=[0x3F80]), [1, 1]),
        ("float64", tensor_message(2, [2], double_val=[0.1]), [0.1, 0.1]),
        ("complex64", tensor_message(8, [2], scomplex_val=[1, 2, 3]), [1 + 2j, 1 + 2j]),
        ("complex128", tensor_message(18, [1], dcomplex_val=[1]), [0]),
        ("float8_e5m2", tensor_message(24, [3], float8_val=b"\x3c\x40"), [1, 2, 2]),
        ("int4", tensor_message(29, [3], int_val=[1, -2]), [1, -2, -2]),
        (bytes, tensor_message(7, [2], tensor_content=b"\x01\x02abc"), [b"a", b"bc"]),
        (bytes, tensor_message(7, [1], tensor_content=b"\x80\x01" + bytes(128)), [bytes(128)]),
    ],
)
def test_typed_values_fill_the_shape(out_type: Any, serialized: bytes, values: list[Any]) -> None:
    assert parse_tensor(serialized, out_type).ravel().tolist() == values


def test_shapes_and_unknown_fields() -> None:
    assert parse_tensor(tensor_message(3, [], int_val=[1]), np.int32).shape == ()
    assert parse_tensor(b"\x08\x03", np.int32).shape == ()
    unknown = TensorProto(dtype=3, tensor_shape=TensorShapeProto(unknown_rank=True), int_val=[1])
    assert parse_tensor(unknown.SerializeToString(), np.int32) == 1
    assert parse_tensor(
        tensor_message(3, [1], int_val=[1], version_number=99) + b"\xaa\x06\x01x", "int32"
    ).tolist() == [1]
    assert parse_tensor(np.array(tensor_message(3, [0]), dtype=object), np.int32).shape == (0,)


@pytest.mark.parametrize(
    ("out_type", "serialized", "words"),
    [
        (
            "int32",
            tensor_message(1, [1], float_val=[1]),
            "a float32 tensor where int32 is expected",
        ),
        ("int32", tensor_message(7, [1]), "a string tensor where int32"),
        (bytes, tensor_message(3, [1]), "an int32 tensor where string"),
        ("int32", tensor_message(103, [1]), "a dtype 103 tensor where int32"),
        ("int32", b"", "a dtype 0 tensor"),
        ("int32", b"\xff", "1 bytes that are not a TensorProto"),
        (
            "int32",
            tensor_message(3, [3], tensor_content=b"\x01\0\0\0"),
            r"4 bytes of content where .* \[3\] .*needs 12",
        ),
        ("int32", tensor_message(3, [1], tensor_content=bytes(8)), "8 bytes of content where"),
        ("bool", tensor_message(10, [2], tensor_content=b"\x02\x00"), "bytes over 1 where bool"),
        (
            "bool",
            tensor_message(10, [3], tensor_content=b"\x00\x02\x00"),
            "bytes over 1 where bool",
        ),
        ("int32", tensor_message(3, [-1], int_val=[1]), "negative size"),
        (
            "int8",
            tensor_message(6, [2**40], int_val=[1]),
            "1 values where the shape needs 1099511627776.*max_fill_bytes",
        ),
        (bytes, tensor_message(7, [2**40]), "0 values where the shape needs"),
        ("int32", tensor_message(3, [2**40, 2**40]), "0 values where the shape needs"),
        ("int32", tensor_message(3, [0, 2**62, 2**62]), "beyond what an array can have"),
        (
            "int32",
            tensor_message(3, [1] * 300, int_val=[1]),
            r"and 292 more sizes is beyond what an array can have",
        ),
        (
            bytes,
            tensor_message(7, [3], tensor_content=b"\x01\x01ab"),
            "does not consist of 3 strings",
        ),
        (
            bytes,
            tensor_message(7, [2], tensor_content=b"\x01\x02ab"),
            "does not consist of 2 strings",
        ),
        (bytes, tensor_message(7, [2], tensor_content=b"\x80"), "does not consist of 2 strings"),
        (bytes, tensor_message(7, [2**60], tensor_content=b"\x80\x01"), "does not consist of"),
    ],
)
def test_a_damaged_tensor_message_is_an_error(out_type: Any, serialized: bytes, words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        parse_tensor(serialized, out_type)


def test_fill_limit_is_the_callers() -> None:
    serialized = tensor_message(6, [100], int_val=[7])
    assert parse_tensor(serialized, np.int8, max_fill_bytes=100).sum() == 700
    with pytest.raises(FeatureError, match="at most 99 are filled"):
        parse_tensor(serialized, np.int8, max_fill_bytes=99)


def check_bytes(data: bytes, out_type: str) -> None:
    """They are a tensor of no more bytes than they may fill, or an error."""
    with suppress(FeatureError):
        assert parse_tensor(data, out_type, max_fill_bytes=2**16).nbytes <= 2**16 + len(data) * 16


@given(
    st.binary(max_size=60),
    st.sampled_from(["int32", "bool", "bfloat16", "complex64", "string", "float8_e5m2"]),
)
def test_any_bytes_parse_or_raise(data: bytes, out_type: str) -> None:
    check_bytes(data, out_type)


@given(st.data(), st.sampled_from(NUMBERS))
def test_damaged_tensors_parse_or_raise(draw: st.DataObject, name: str) -> None:
    good = bytearray((GOLDEN / f"{name}.pb").read_bytes())
    good[draw.draw(st.integers(0, len(good) - 1))] = draw.draw(st.integers(0, 255))
    for data in (good, good[: draw.draw(st.integers(0, len(good)))]):
        check_bytes(bytes(data), name.partition("_")[0])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array(["2020"], "M8[D]"), r"datetime64\[D\] values"),
        (np.array([1], np.longdouble), "values where a dtype of TensorFlow's"),
        (np.array([1, "a"], object), "an int in an object array"),
        ([[1], [1, 2]], "a list cannot become an array of one dtype"),
        (object(), "an object in an object array"),
        (None, "None in an object array"),
    ],
)
def test_serialize_refusals(value: Any, words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        serialize_tensor(value)


def test_dtypes() -> None:
    assert (
        tensor_dtype(bytes)
        == tensor_dtype("string")
        == tensor_dtype(np.dtype("S3"))
        == np.dtype(object)
    )
    assert tensor_dtype(float) == np.float64
    assert tensor_dtype(np.dtype(">f4")) == np.float32
    for bad in ("datetime64", "nonsense", 3):
        with pytest.raises(FeatureError):
            tensor_dtype(bad)
    with pytest.raises(FeatureError, match="an int where the bytes"):
        parse_tensor(3, np.int32)


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ((b"\1\0\2\0", "int16", False), np.array([256, 512], np.int16)),
        (([[b"\1\0", b"\2\0"]], np.int16), np.array([[[1], [2]]], np.int16)),
        (([b"\1\0", b"\2\0\3\0\4"], np.int16, True, 4), np.array([[1, 0], [2, 3]], np.int16)),
        ((b"\1\0\2", bool), np.array([True, False, True])),
        (("abc", np.uint8), np.array([97, 98, 99], np.uint8)),
        ((b"\x3f\x80\0\0\x40\0\0\0", np.complex64, False), np.array([1 + 2j], np.complex64)),
    ],
)
def test_raw_values(args: tuple[Any, ...], wanted: np.ndarray[Any, Any]) -> None:
    found = decode_raw(*args)
    np.testing.assert_array_equal(found, wanted, strict=True)
    assert found.flags.writeable


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (([b"\1\0", b"\2\0\3\0"], np.int16), "string 1 has 4 bytes where 2 are expected"),
        (([b"", b"\1\0"], np.int16), "string 1 has 2 bytes where 0"),
        ((b"\1\0\3", np.int16), "strings of 3 bytes where a multiple of 2, the size of int16"),
        ((b"\1\0", np.int16, True, 3), "a fixed_length of 3 bytes where a multiple of 2"),
        ((b"\1\0", np.int16, True, 0), "fixed_length is 0"),
        ((b"\1\0", np.int16, True, -2), "fixed_length is -2"),
        ((b"a", bytes), "strings where numbers"),
        ((3, np.int16), "an int where bytes"),
        (([[b"a"], [b"a", b"b"]], np.uint8), "ragged|a list where bytes"),
    ],
)
def test_decode_raw_refusals(args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        decode_raw(*args)


def test_json_examples() -> None:
    values = '"b": {"floatList": {"value": [0.5, "NaN"]}}, "a": {"bytesList": {"value": ["AP8="]}}'
    one = '{"features": {"feature": {%s}}}' % values  # noqa: UP031
    found = decode_json_example(one)
    assert found == encode_example({"a": b"\x00\xff", "b": [0.5, float("nan")]})
    batch = decode_json_example([["{}", one.encode()]])
    assert batch.shape == (1, 2)
    assert batch.tolist() == [[b"", found]]
    assert decode_json_example([]).shape == (0,)
    snake = decode_json_example(
        '{"features": {"feature": {"a": {"int64_list": {"value": [1, "2"]}}}}}'
    )
    assert list(Example.FromString(snake).features.feature["a"].int64_list.value) == [1, 2]
    null = decode_json_example(
        '{"features": {"feature": {"b": {"int64List": {"value": [1]}}, "a": null}}}'
    )
    assert null == encode_example({"a": [], "b": 1})
    assert parse_single_example(null, {"a": FixedLenFeature([], "int64", 7)})["a"] == 7
    for_urls = decode_json_example(
        '{"features": {"feature": {"a": {"bytes_list": {"value": ["_-8="]}}}}}'
    )
    assert for_urls == encode_example({"a": b"\xff\xef"})
    assert decode_json_example('{"features": {}}') == encode_example({})


REFUSED = [
    "",
    "{",
    '{"x": 1}',
    "null",
    "[]",
    '{"features": {"feature": {"a": {}, "a": {}}}}',
    b"\xff",
]
REFUSED += ["[" * 100_000, '{"features": ' + "[" * 100_000, '{"features":' * 100_000]
REFUSED += ['{"features": {"feature": {"a": {"int64List": {"value": [1.5]}}}}}']


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: str(text[:40]))
def test_decode_json_refusals(text: Any) -> None:
    with pytest.raises(FeatureError, match="record 1: not an Example in JSON"):
        decode_json_example(["{}", text])


def test_json_that_has_no_bytes_is_refused() -> None:
    with pytest.raises(FeatureError, match="a str without a UTF-8 form"):
        decode_json_example('{"\ud800": 1}')
