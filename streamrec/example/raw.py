"""Bytes as numbers, and JSON as Examples: `tf.io.decode_raw` and `tf.io.decode_json_example`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format

from streamrec.errors import FeatureError
from streamrec.example.dtypes import tensor_dtype
from streamrec.example.messages import Example


def decode_raw(
    input_bytes: Any, out_type: object, little_endian: bool = True, fixed_length: int | None = None
) -> npt.NDArray[Any]:
    r"""Reinterprets byte strings as numbers.

    Args:
        input_bytes: bytes, or an array or nested list of them. (NumPy's own "S" arrays have lost the trailing
            NULs; use object arrays.)
        out_type: The numbers' dtype: NumPy's, TensorFlow's or a name; no strings.
        little_endian: The byte order of the input. The result has this machine's.
        fixed_length: Bytes of each string: longer ones are cut, shorter ones are filled up with zeros.
            By default all must have the same length.

    Returns:
        A new array of the input's shape with one more dimension, the numbers of each string. Where there is
        no string and no `fixed_length` that dimension is 0.

    Raises:
        FeatureError: Strings of different lengths, or a length that is not a multiple of the number's size.

    Example:
        >>> decode_raw([b"\x01\x00\x02\x00", b"\x03\x00\x04\x00"], np.int16)
        array([[1, 2],
               [3, 4]], dtype=int16)
    """
    dtype = tensor_dtype(out_type)
    if dtype.kind == "O":
        raise FeatureError("strings where numbers are wanted; the bytes are strings already")
    strings = _strings(input_bytes)
    items = strings.ravel().tolist()
    length = _common_length(items) if fixed_length is None else fixed_length
    if fixed_length is not None and fixed_length <= 0:
        raise FeatureError(f"fixed_length is {fixed_length}; it must be greater than 0")
    if length % dtype.itemsize:
        what = "strings of" if fixed_length is None else "a fixed_length of"
        wanted = f"a multiple of {dtype.itemsize}, the size of {dtype.name}, is wanted"
        raise FeatureError(f"{what} {length} bytes where {wanted}")
    joined = b"".join(item[:length].ljust(length, b"\x00") for item in items)
    shape = (*strings.shape, length // dtype.itemsize)
    if dtype == np.bool_:
        return np.not_equal(np.frombuffer(joined, np.uint8), 0).reshape(shape)
    stored = dtype.newbyteorder("<" if little_endian else ">")
    return np.frombuffer(joined, stored).astype(dtype).reshape(shape)


def _common_length(items: list[bytes]) -> int:
    for index, item in enumerate(items):
        if len(item) != len(items[0]):
            raise FeatureError(
                f"string {index} has {len(item)} bytes where {len(items[0])} are wanted, as in the "
                "first one; pass fixed_length to cut and fill"
            )
    return len(items[0]) if items else 0


def decode_json_example(json_examples: Any) -> Any:
    r"""Turns Examples in JSON into serialized Examples.

    Args:
        json_examples: str or bytes of one JSON object, or an array or nested list of them.

    Returns:
        bytes for one; for others an object array of bytes of the same shape. Features are sorted by name; null is a
        feature without values.

    Raises:
        FeatureError: Text that is not JSON, or not an Example.

    Example:
        >>> decode_json_example('{"features": {"feature": {"a": {"int64List": {"value": [1]}}}}}')
        b'\n\x0c\n\n\n\x01a\x12\x05\x1a\x03\n\x01\x01'
    """
    strings = _strings(json_examples)
    decoded = np.empty(strings.size, dtype=object)
    decoded[:] = [_example(index, text) for index, text in enumerate(strings.ravel().tolist())]
    return decoded.reshape(strings.shape) if strings.shape else decoded[0]


def _example(index: int, text: bytes) -> bytes:
    if not text.lstrip().startswith(b"{"):  # protobuf takes an empty list for an empty message
        raise FeatureError("not an Example in JSON, which is an object in braces", None, index)
    try:
        found = json.loads(text.decode(), object_pairs_hook=object_of)
        features = found.get("features")
        if isinstance(features, dict) and isinstance(named := features.get("feature"), dict):
            features["feature"] = {name: {} if value is None else value for name, value in named.items()}
        return json_format.ParseDict(found, Example()).SerializeToString(deterministic=True)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise FeatureError(f"not an Example in JSON: {error}", None, index) from error


def object_of(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON.

    Raises:
        ValueError: It has one name twice.
    """
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in one object: rename or remove one")
    return found


def _strings(value: Any) -> npt.NDArray[Any]:
    """An object array of bytes from bytes, str, and arrays or nested lists of them."""
    try:
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    except ValueError as error:
        raise FeatureError(f"a ragged list where an array of bytes is wanted: {error}") from error
    try:
        items = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    except UnicodeEncodeError as error:
        raise FeatureError(f"a str without a UTF-8 form where bytes are wanted: {error}") from error
    for item in items:
        if not isinstance(item, bytes):
            raise FeatureError(f"a {type(item).__name__} where bytes are wanted")
    strings = np.empty(len(items), dtype=object)
    strings[:] = items
    return strings.reshape(array.shape)
