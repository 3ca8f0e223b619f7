"""What becomes which kind, and what is refused in which words."""

import enum
import math
from typing import Any, cast

import ml_dtypes
import numpy as np
import polars
import pyarrow
import pytest

from streamrec import Dataset, FeatureError, FixedLenFeature, VarLenFeature
from streamrec.example.encode import (
    bytes_feature,
    encode_example,
    encode_examples,
    float_feature,
    int64_feature,
)
from streamrec.example.messages import Example, Feature, Features


class Color(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    BIG = 7


class Word(enum.StrEnum):
    YES = "yes"


def kind_and_values(value: Any, kinds: Any = None) -> tuple[str | None, list[Any]]:
    """The kind and the values that protobuf reads out of the feature "x"."""
    record = encode_example({"x": value}, kinds=None if kinds is None else {"x": kinds})
    feature = Example.FromString(record).features.feature["x"]
    kind = feature.WhichOneof("kind")
    return kind, [] if kind is None else list(getattr(feature, kind).value)


INT64: list[tuple[Any, list[int]]] = [
    (3, [3]),
    (True, [1]),
    (Color.RED, [1]),
    (Size.BIG, [7]),
    ([Color.RED, Size.BIG, False, 2], [1, 7, 0, 2]),
    (-(2**63), [-(2**63)]),
    (np.int8(-3), [-3]),
    (np.uint64(2**63 - 1), [2**63 - 1]),
    (np.array([2**63 - 1, 0], np.uint64), [2**63 - 1, 0]),
    (np.array(5), [5]),
    (np.array([[1, 2], [3, 4]], np.uint8), [1, 2, 3, 4]),
    (np.array([[1, 2], [3, 4]]).T, [1, 3, 2, 4]),
    (np.array([1, 2], ">i4"), [1, 2]),
    (np.array([True, False]), [1, 0]),
    (np.arange(6)[::2], [0, 2, 4]),
    (np.array([1, 2], dtype=object), [1, 2]),
    (np.array([1, -2], ml_dtypes.int4), [1, -2]),
    (np.empty((0, 3), np.int32), []),
    (range(3), [0, 1, 2]),
    ((1, np.int16(2)), [1, 2]),
    ([[1, 2], (3, 4)], [1, 2, 3, 4]),
    ([np.arange(2), np.arange(2)], [0, 1, 0, 1]),
    ([np.array(1), np.array(2)], [1, 2]),
]
FLOAT: list[tuple[Any, list[float]]] = [
    (0.5, [0.5]),
    (0.1, [float(np.float32(0.1))]),
    (1e300, [math.inf]),
    (np.array([1e300, -1e300]), [math.inf, -math.inf]),
    ([-math.inf, math.inf], [-math.inf, math.inf]),
    (np.float16(1.5), [1.5]),
    (np.array([1.5, 2], ">f8"), [1.5, 2.0]),
    (np.array([[1], [2]], np.float32), [1.0, 2.0]),
    ([0.5, np.float32(1), np.float64(2)], [0.5, 1.0, 2.0]),
    (np.array([1.5], ml_dtypes.bfloat16), [1.5]),
    ([ml_dtypes.bfloat16(2.5)], [2.5]),
    (np.array([0.5], ml_dtypes.float8_e5m2), [0.5]),
    (np.empty(0), []),
]
BYTES: list[tuple[Any, list[bytes]]] = [
    (b"a\x00", [b"a\x00"]),
    ("snö", ["snö".encode()]),
    (["a", b"b\x00"], [b"a", b"b\x00"]),
    (Word.YES, [b"yes"]),
    (bytearray(b"x"), [b"x"]),
    (memoryview(b"xy"), [b"xy"]),
    (np.str_("ü"), ["ü".encode()]),
    (np.bytes_(b"q"), [b"q"]),
    (np.array(["a", "bc"]), [b"a", b"bc"]),
    (np.array([[b"a"], [b"bc"]]), [b"a", b"bc"]),
    (np.array([b"a\x00", "b"], dtype=object), [b"a\x00", b"b"]),
    (np.array(["a"], dtype=np.dtypes.StringDType()), [b"a"]),
    (np.array([], "S3"), []),
]
KINDS = {"int64_list": INT64, "float_list": FLOAT, "bytes_list": BYTES}


@pytest.mark.parametrize(
    ("kind", "value", "values"),
    [(kind, *row) for kind, rows in KINDS.items() for row in cast(Any, rows)],
)
def test_kinds_of_values(kind: str, value: Any, values: list[Any]) -> None:
    assert kind_and_values(value) == (kind, values)


def test_an_empty_list_has_no_kind_unless_declared() -> None:
    assert kind_and_values([]) == (None, [])
    assert kind_and_values([], np.int64) == ("int64_list", [])
    assert kind_and_values([[], []], VarLenFeature(np.float32)) == ("float_list", [])
    assert kind_and_values([], bytes) == ("bytes_list", [])


def test_declared_floats_take_integers() -> None:
    assert kind_and_values(3, np.float32) == ("float_list", [3.0])
    assert kind_and_values([1.5, 2]) == ("float_list", [1.5, 2.0])
    assert kind_and_values([1, 2.5], FixedLenFeature([2], "float32")) == ("float_list", [1.0, 2.5])
    assert kind_and_values(np.array([1, 2]), "float32") == ("float_list", [1.0, 2.0])
    assert kind_and_values(2**60 + 2**35 + 1, float) == kind_and_values(
        np.array(2**60 + 2**35 + 1), float
    )


def test_feature_messages_pass() -> None:
    assert kind_and_values(int64_feature([1, 2])) == ("int64_list", [1, 2])
    assert kind_and_values(float_feature(0.5), np.float32) == ("float_list", [0.5])
    assert kind_and_values(bytes_feature("a")) == ("bytes_list", [b"a"])
    assert kind_and_values(bytes_feature([])) == ("bytes_list", [])
    assert kind_and_values(Feature()) == (None, [])


class TensorOfALibrary:
    """What a tensor library's array looks like from here."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array([[1, 2]])


class TensorOnAnotherDevice:
    dtype = "cuda.float32"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        raise RuntimeError("move it to the CPU first")


def test_tensors_by_the_array_protocol() -> None:
    assert kind_and_values(TensorOfALibrary()) == ("int64_list", [1, 2])
    with pytest.raises(
        FeatureError, match=r"'x'.*OnAnotherDevice \(cuda.float32\).*move it to the CPU"
    ):
        kind_and_values(TensorOnAnotherDevice())


@pytest.mark.parametrize(
    ("value", "kinds", "words"),
    [
        (1.5, np.int64, "'x': float where int64 is expected; round"),
        (np.array([1.5]), np.int64, "float64 where int64 is expected; round"),
        (float_feature(1), np.int64, "float32.* where int64"),
        ("a", np.int64, "str where int64"),
        (1, bytes, "int where bytes"),
        (b"a", np.float32, "bytes where float32"),
        (np.array(["a"]), np.float32, "str where float32"),
        (np.array([], "S1"), np.float32, "str where float32"),
        (2**63, None, "the int 9223372036854775808 where int64"),
        ([0, -(2**63) - 1], None, "the int -9223372036854775809 where int64"),
        (np.uint64(2**63), None, "9223372036854775808 where int64"),
        ([np.uint64(2**63)], None, "9223372036854775808 where int64"),
        (np.array([2**63], np.uint64), None, "uint64 9223372036854775808 where int64"),
        (10**400, np.float32, "too large for any float where float32"),
        (None, None, "None where bytes"),
        ([1, None], None, "None where bytes"),
        (np.array([None]), None, "None where bytes"),
        ([[1, 2], [3]], None, "ragged list"),
        ([[1, 2], 3], None, "ragged list: list next to int"),
        ([[[1], [2, 3]], [[4], [5, 6]]], None, "ragged list"),
        (["a", 1], None, "mixed types: str and int"),
        ([1.5, True], None, "mixed types: float and bool"),
        ([1.5, 2], np.int64, "mixed types: float and int"),
        (1j, None, "a complex where bytes"),
        (np.array([1j]), None, "complex128 values where"),
        (np.array(["2020-01-01"], "M8[D]"), None, r"datetime64\[D\] values where"),
        (np.zeros(2, "V3"), None, "values where bytes"),
        ({1: 2}, None, "a dict where"),
        ({1, 2}, None, "a set where"),
        (iter([1]), None, "a list_iterator where"),
        (object(), None, "an object where"),
        ("\ud800", None, "no UTF-8 form"),
        (np.ma.array([1, 2], mask=[True, False]), None, "masked array"),
        (Features(), None, "a Features message where"),
        (1, np.int32, "not a kind that an Example holds"),
    ],
)
def test_refusals_name_the_feature_and_both_types(value: Any, kinds: Any, words: str) -> None:
    with pytest.raises(FeatureError, match=words) as caught:
        kind_and_values(value, kinds)
    assert caught.value.feature == "x"


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([1, None]),
        pyarrow.array([0.5, None]),
        pyarrow.chunked_array([[1], [None]]),
        pyarrow.array([[1, 2], [1, None]]),
        polars.Series([1, None]),
        polars.Series([[1.5], [None]]),
        polars.Series([[1, 2], [1, None]], dtype=polars.Array(polars.Int64, 2)),
    ],
    ids=lambda column: f"{type(column).__module__}-{getattr(column, 'type', None) or column.dtype}",
)
def test_null_is_refused_and_not_written_as_nan(column: Any) -> None:
    with pytest.raises(FeatureError, match="record 1, feature 'x': None where"):
        encode_examples({"x": column})
    with pytest.raises(FeatureError, match="feature 'x': "):
        encode_example({"x": column})


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["Int64", "Float64", "boolean", "int64[pyarrow]", "string"])
def test_null_of_pandas_is_refused(dtype: str) -> None:
    pandas = pytest.importorskip("pandas")
    column = pandas.Series(["1" if dtype == "string" else 1, None], dtype=dtype)
    with pytest.raises(FeatureError, match=r"record 1, feature 'x': (None|a NAType) where"):
        encode_examples({"x": column})
    with pytest.raises(TypeError, match="fill"):
        Dataset.from_tensor_slices(column)


def test_nan_is_encoded_as_nan_and_not_as_missing() -> None:
    assert all(map(math.isnan, kind_and_values([math.nan, np.float32("nan")])[1]))
    for column in ([1.5, math.nan], pyarrow.array([1.5, math.nan]), polars.Series([1.5, math.nan])):
        [_, record] = encode_examples({"x": column})
        assert math.isnan(Example.FromString(record).features.feature["x"].float_list.value[0])


def test_feature_names_must_be_strings_of_utf_8() -> None:
    assert list(Example.FromString(encode_example({"": 1, "ü": 2})).features.feature) is not None
    with pytest.raises(FeatureError, match=r"name is 3 \(int\): it must be a str"):
        encode_example({3: 1})  # type: ignore[dict-item]
    with pytest.raises(FeatureError, match="cannot be encoded as UTF-8"):
        encode_example({"\ud800": 1})


@pytest.mark.parametrize(
    ("helper", "value", "words"),
    [
        (int64_feature, 1.5, "float where int64"),
        (bytes_feature, 1, "int where b"),
        (float_feature, "a", "str where f"),
    ],
)
def test_helpers_refuse(helper: Any, value: Any, words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        helper(value)


@pytest.mark.peer
def test_torch_tensors_are_values_unless_they_need_gradients() -> None:
    torch = pytest.importorskip("torch")
    assert kind_and_values(torch.tensor([[1, 2]])) == ("int64_list", [1, 2])
    assert kind_and_values(torch.tensor(0.5)) == ("float_list", [0.5])
    with pytest.raises(FeatureError, match=r"Tensor \(torch.float32\) gives no NumPy array"):
        kind_and_values(torch.tensor([0.5], requires_grad=True))
