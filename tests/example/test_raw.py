"""decode_raw and decode_json_example."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from streamrec.errors import FeatureError
from streamrec.example.encode import encode_example
from streamrec.example.features import FixedLenFeature
from streamrec.example.messages import Example
from streamrec.example.parse import parse_single_example
from streamrec.example.tensor import decode_json_example, decode_raw


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ((b"\1\0\2\0", np.int16), np.array([1, 2], np.int16)),
        ((b"\1\0\2\0", "int16", False), np.array([256, 512], np.int16)),
        (([[b"\1\0", b"\2\0"]], np.int16), np.array([[[1], [2]]], np.int16)),
        ((np.array([b"\1\0", b"\2\0"], object), np.int16), np.array([[1], [2]], np.int16)),
        ((b"", np.int16), np.empty(0, np.int16)),
        (([], np.int16), np.empty((0, 0), np.int16)),
        ((np.empty((2, 0), object), np.int16), np.empty((2, 0, 0), np.int16)),
        (([b"", b""], np.int16), np.empty((2, 0), np.int16)),
        (([b"\1\0", b"\2\0\3\0\4"], np.int16, True, 4), np.array([[1, 0], [2, 3]], np.int16)),
        ((b"\1\0\2", np.int16, False, 4), np.array([256, 512], np.int16)),
        ((b"\1\0\2", np.int16, True, 6), np.array([1, 2, 0], np.int16)),
        (([], np.int16, True, 4), np.empty((0, 2), np.int16)),
        ((b"\1\0\2", bool), np.array([True, False, True])),
        (("abc", np.uint8), np.array([97, 98, 99], np.uint8)),
        ((b"\0\0\x80\x3f\0\0\0\x40", np.complex64), np.array([1 + 2j], np.complex64)),
        ((b"\x80\x3f", "bfloat16"), np.array([1], ml_dtypes.bfloat16)),
    ],
)
def test_decode_raw(args: tuple[Any, ...], wanted: np.ndarray[Any, Any]) -> None:
    found = decode_raw(*args)
    np.testing.assert_array_equal(found, wanted, strict=True)
    assert found.flags.writeable


def test_big_endian_complex_is_swapped_by_part() -> None:
    assert decode_raw(b"\x3f\x80\0\0\x40\0\0\0", np.complex64, False) == 1 + 2j


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (([b"\1\0", b"\2\0\3\0"], np.int16), "string 1 has 4 bytes where 2 are wanted"),
        (([b"", b"\1\0"], np.int16), "string 1 has 2 bytes where 0"),
        ((b"\1\0\3", np.int16), "strings of 3 bytes where a multiple of 2, the size of int16"),
        ((b"\1\0", np.int16, True, 3), "a fixed_length of 3 bytes where a multiple of 2"),
        ((b"\1\0", np.int16, True, 0), "fixed_length is 0"),
        ((b"\1\0", np.int16, True, -2), "fixed_length is -2"),
        ((b"a", bytes), "strings where numbers"),
        ((3, np.int16), "a int where bytes"),
        (([[b"a"], [b"a", b"b"]], np.uint8), "ragged|a list where bytes"),
    ],
)
def test_decode_raw_refusals(args: tuple[Any, ...], words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        decode_raw(*args)


def test_decode_json_example() -> None:
    values = '"b": {"floatList": {"value": [0.5, "NaN"]}}, "a": {"bytesList": {"value": ["AP8="]}}'
    one = '{"features": {"feature": {%s}}}' % values  # noqa: UP031
    found = decode_json_example(one)
    assert found == encode_example({"a": b"\x00\xff", "b": [0.5, float("nan")]})
    batch = decode_json_example([["{}", one.encode()]])
    assert batch.shape == (1, 2)
    assert batch.tolist() == [[b"", found]]
    assert decode_json_example([]).shape == (0,)
    snake = decode_json_example('{"features": {"feature": {"a": {"int64_list": {"value": [1, "2"]}}}}}')
    assert list(Example.FromString(snake).features.feature["a"].int64_list.value) == [1, 2]
    null = decode_json_example('{"features": {"feature": {"b": {"int64List": {"value": [1]}}, "a": null}}}')
    assert null == encode_example({"a": [], "b": 1})
    assert parse_single_example(null, {"a": FixedLenFeature([], "int64", 7)})["a"] == 7


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"x": 1}', "null", "[]", "[" * 100_000, '{"features": {"feature": {"a": {}, "a": {}}}}', b"\xff"],
)
def test_decode_json_refusals(text: Any) -> None:
    with pytest.raises(FeatureError, match="record 1: not an Example in JSON"):
        decode_json_example(["{}", text])
