"""Arrays as bytes, and bytes as arrays.

These are `serialize_tensor`, `parse_tensor`, `decode_raw` and `decode_json_example` of `tf.io`.

Rules of this file:
- Arrays are written as TensorFlow's TensorProto, byte for byte: numbers as `tensor_content` in
  little-endian order, strings in `string_val`.
- Everything that TensorFlow reads can be read, including the typed fields (`float_val`, `half_val`,
  ...): their last value, or zero or `b""` without values, fills the rest of the shape; surplus
  values are ignored.
- A message may declare any shape, so filling is bounded: a few bytes never become more than
  `max_fill_bytes`. Values that the message contains have no limit.
- bfloat16, float8 and int4 dtypes are those of ml_dtypes. (TensorFlow itself does not write float8
  and int4.)
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from streamrec.arguments import add_article, name_type
from streamrec.errors import FeatureError
from streamrec.example.dtypes import TENSOR_DTYPES, tensor_dtype
from streamrec.example.messages import Example, TensorProto, TensorShapeProto
from streamrec.tracebacks import border

_STRING: Final = 7
_NAMES: Final = {number: name for name, number in TENSOR_DTYPES.items()}
# The field of a dtype's values that are not in tensor_content; float8s have float8_val.
_FIELDS: Final = {
    "float32": "float_val",
    "float64": "double_val",
    "complex64": "scomplex_val",
    "int64": "int64_val",
    "bool": "bool_val",
    "bfloat16": "half_val",
    "complex128": "dcomplex_val",
    "float16": "half_val",
    "uint32": "uint32_val",
    "uint64": "uint64_val",
}


@border
def serialize_tensor(tensor: Any) -> bytes:
    """Serializes an array as TensorFlow's TensorProto.

    Args:
        tensor: An array of any shape and byte order; an array, a list or a scalar of bytes and str
            (as UTF-8); or Python numbers in any nesting, which become int32 (int64 where they need
            it) and float32, as in TensorFlow.

    Returns:
        The same bytes as `tf.io.serialize_tensor`.

    Raises:
        FeatureError: TensorFlow lacks the dtype, or the value is a ragged list or not an array.

    Example:
        >>> parse_tensor(serialize_tensor(np.eye(2, dtype=np.float16)), np.float16)
        array([[1., 0.],
               [0., 1.]], dtype=float16)
    """
    array = _tensor_array(tensor)
    if array.dtype.kind not in "OSUT":
        name = array.dtype.name
        if name not in TENSOR_DTYPES:
            raise FeatureError(
                f"{name} values where a dtype of TensorFlow's is expected; convert them first"
            )
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return TensorProto(
            dtype=TENSOR_DTYPES[name],
            tensor_shape=_shape_message(array),
            tensor_content=little.tobytes(),
        ).SerializeToString()
    strings = [_string(item) for item in array.ravel().tolist()]
    return TensorProto(
        dtype=_STRING, tensor_shape=_shape_message(array), string_val=strings
    ).SerializeToString()


def _tensor_array(tensor: Any) -> npt.NDArray[Any]:
    if isinstance(tensor, np.ndarray | np.generic):
        return np.asarray(tensor)
    try:
        array = np.asarray(tensor)
        # NumPy pads these with NULs; objects keep the strings as they are.
        if array.dtype.kind in "SU":
            return np.array(tensor, dtype=object)
    except Exception as error:  # other libraries' tensors raise anything
        raise FeatureError(
            f"{name_type(tensor)} cannot become an array of one dtype: {error}; convert it"
        ) from error
    if hasattr(tensor, "dtype"):
        return array
    if array.dtype == np.float64:
        return array.astype(np.float32)
    bounds = np.iinfo(np.int32)
    fits = array.dtype == np.int64 and (
        not array.size or bounds.min <= array.min() <= array.max() <= bounds.max
    )
    return array.astype(np.int32) if fits else array


def _shape_message(array: npt.NDArray[Any]) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in array.shape])


def _string(item: object) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    raise FeatureError(
        f"{name_type(item)} in an object array where bytes or str is expected; convert it"
    )


@border
def parse_tensor(
    serialized: Any, out_type: object, *, max_fill_bytes: int = 2**28
) -> npt.NDArray[Any]:
    """Parses a TensorProto.

    Args:
        serialized: Its bytes.
        out_type: The dtype that it must have: NumPy's, TensorFlow's, a name, or `bytes` for
            strings.
        max_fill_bytes: Limit of the array's size if the message has fewer values than its shape,
            and the last one is repeated. 256 MiB by default.

    Returns:
        A new array of the message's shape; an object array of bytes for strings.

    Raises:
        FeatureError: The bytes are not a TensorProto, hold another dtype, or don't fit the declared
            shape.
    """
    if isinstance(serialized, np.ndarray) and serialized.ndim == 0:
        serialized = serialized.item()
    if not isinstance(serialized, bytes | bytearray | memoryview):
        raise FeatureError(f"{name_type(serialized)} where the bytes of one tensor are expected")
    dtype = tensor_dtype(out_type)
    try:
        message = TensorProto.FromString(bytes(serialized))
    except DecodeError as error:
        raise FeatureError(
            f"{len(serialized)} bytes that are not a TensorProto: {error}"
        ) from error
    wanted = _STRING if dtype.kind == "O" else TENSOR_DTYPES[dtype.name]
    if message.dtype != wanted:
        found = (
            "string"
            if message.dtype == _STRING
            else _NAMES.get(message.dtype, f"dtype {message.dtype}")
        )
        raise FeatureError(
            f"{add_article(found)} tensor where {_NAMES.get(wanted, 'string')} is expected; ask "
            "for its dtype"
        )
    shape = _shape(message)
    values = _strings(message, shape) if wanted == _STRING else _numbers(message, dtype, shape)
    try:
        return _fill(values, math.prod(shape), max_fill_bytes).reshape(shape)
    except (ValueError, MemoryError) as error:  # NumPy's own bounds: 64 dimensions, 2^63 bytes
        raise FeatureError(
            f"the shape {_short(shape)} is beyond what an array can have: {error}"
        ) from error


def _shape(message: TensorProto) -> tuple[int, ...]:
    shape = tuple(dim.size for dim in message.tensor_shape.dim)
    if any(size < 0 for size in shape):
        raise FeatureError(
            f"the shape {_short(shape)} has a negative size where a full shape is expected"
        )
    return shape


def _short(shape: tuple[int, ...]) -> str:
    return (
        str(list(shape))
        if len(shape) <= 8
        else f"{list(shape[:8])} and {len(shape) - 8} more sizes"
    )


def _numbers(
    message: TensorProto, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """The values of the message, flat: as many as the shape has if they are in tensor_content."""
    content = message.tensor_content
    if not content:
        return _read_values(message, dtype)
    if not math.prod(shape):  # TensorFlow does not look at the content of an empty tensor
        return np.empty(0, dtype)
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise FeatureError(
            f"{len(content)} bytes of content where the shape {_short(shape)} of {dtype.name} "
            f"needs {math.prod(shape) * dtype.itemsize}; the tensor is damaged"
        )
    if dtype == np.bool_ and max(content) > 1:
        raise FeatureError(
            "content with bytes over 1 where bool is expected; the tensor is damaged"
        )
    return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype)


def _read_values(message: TensorProto, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.name.startswith("float8"):
        return np.frombuffer(message.float8_val, dtype)
    field = getattr(message, _FIELDS.get(dtype.name, "int_val"))
    if dtype.kind == "c":
        parts = np.array(field, np.float32 if dtype == np.complex64 else np.float64)
        return parts[: len(parts) // 2 * 2].view(dtype)
    if dtype.name in ("float16", "bfloat16"):
        return np.array(field, np.int32).astype(np.uint16).view(dtype)
    if dtype.name not in _FIELDS:
        return np.array(field, np.int32).astype(dtype)
    return np.array(field, dtype)


def _strings(message: TensorProto, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    content = message.tensor_content
    count = math.prod(shape)
    items = _string_list(content, count) if content and count else list(message.string_val)
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _string_list(content: bytes, count: int) -> list[bytes]:
    """Reads strings in tensor_content.

    It holds the lengths of all strings as varints, then all strings joined.
    """
    lengths: list[int] = []
    at = 0
    while len(lengths) < min(count, len(content)):
        length = shift = 0
        while at < len(content) and content[at] >= 0x80 and shift < 28:
            length |= (content[at] & 0x7F) << shift
            at += 1
            shift += 7
        if at == len(content):
            break
        lengths.append(length | content[at] << shift)
        at += 1
    if len(lengths) != count or sum(lengths) != len(content) - at:
        raise FeatureError(
            f"content that does not consist of {count} strings; the tensor is damaged"
        )
    ends = np.cumsum([at, *lengths]).tolist()
    return [content[start:end] for start, end in pairwise(ends)]


def _fill(values: npt.NDArray[Any], count: int, max_fill_bytes: int) -> npt.NDArray[Any]:
    """Exactly `count` values, of which the last one fills the rest, as in TensorFlow.

    Without values, zero or `b""` does.
    """
    if count <= len(values):
        return values[:count].copy()
    if count * values.dtype.itemsize > max_fill_bytes:
        raise FeatureError(
            f"{len(values)} values where the shape needs {count}: repeating the last one takes "
            f"{count * values.dtype.itemsize:,} bytes, and at most {max_fill_bytes:,} are filled; "
            "pass max_fill_bytes if the tensor is right"
        )
    empty = b"" if values.dtype.kind == "O" else 0
    filled = np.full(count, values[-1] if len(values) else empty, dtype=values.dtype)
    filled[: len(values)] = values
    return filled


@border
def decode_raw(
    input_bytes: Any, out_type: object, little_endian: bool = True, fixed_length: int | None = None
) -> npt.NDArray[Any]:
    r"""Reinterprets byte strings as numbers.

    Args:
        input_bytes: bytes, or an array or nested list of them. (NumPy's "S" arrays lose trailing
            NULs; use object arrays.)
        out_type: The numbers' dtype: NumPy's, TensorFlow's or a name; not a string dtype.
        little_endian: The byte order of the input. The result has the machine's.
        fixed_length: Bytes of each string: longer ones are cut, shorter ones are padded with zeros.
            By default all strings must have the same length.

    Returns:
        A new array of the input's shape with one more dimension, the numbers of each string.
        Without strings and `fixed_length` that dimension is 0.

    Raises:
        FeatureError: The strings have different lengths, or a length that is not a multiple of the
            dtype's size.

    Example:
        >>> decode_raw([b"\x01\x00\x02\x00", b"\x03\x00\x04\x00"], np.int16)
        array([[1, 2],
               [3, 4]], dtype=int16)
    """
    dtype = tensor_dtype(out_type)
    if dtype.kind == "O":
        raise FeatureError("strings where numbers are expected; the bytes are strings already")
    strings = _string_array(input_bytes)
    items = strings.ravel().tolist()
    length = len(items[0]) if items else 0
    other = next((index for index, item in enumerate(items) if len(item) != length), None)
    if fixed_length is not None:
        length = fixed_length
    elif other is not None:
        raise FeatureError(
            f"string {other} has {len(items[other])} bytes where {length} are expected, as in the "
            "first one; pass fixed_length to cut and fill"
        )
    if fixed_length is not None and fixed_length <= 0:
        raise FeatureError(f"fixed_length is {fixed_length}; it must be greater than 0")
    if length % dtype.itemsize:
        what = "strings of" if fixed_length is None else "a fixed_length of"
        wanted = f"a multiple of {dtype.itemsize}, the size of {dtype.name}, is expected"
        raise FeatureError(f"{what} {length} bytes where {wanted}")
    joined = b"".join(item[:length].ljust(length, b"\x00") for item in items)
    shape = (*strings.shape, length // dtype.itemsize)
    # Any byte but 0 is true, as in TensorFlow; NumPy's view would keep other numbers than 0 and 1.
    if dtype == np.bool_:
        return np.not_equal(np.frombuffer(joined, np.uint8), 0).reshape(shape)
    stored = dtype.newbyteorder("<" if little_endian else ">")
    return np.frombuffer(joined, stored).astype(dtype).reshape(shape)


@border
def decode_json_example(json_examples: Any) -> Any:
    r"""Converts Examples from JSON to serialized Examples.

    Args:
        json_examples: str or bytes of one JSON object, or an array or nested list of them.

    Returns:
        bytes for one object; else an object array of bytes of the input's shape. Features are
        sorted by name; null is a feature without values.

    Raises:
        FeatureError: The text is not JSON, or not an Example.

    Example:
        >>> decode_json_example('{"features": {"feature": {"a": {"int64List": {"value": [1]}}}}}')
        b'\n\x0c\n\n\n\x01a\x12\x05\x1a\x03\n\x01\x01'
    """
    strings = _string_array(json_examples)
    decoded = np.empty(strings.size, dtype=object)
    decoded[:] = [_parse_json(index, text) for index, text in enumerate(strings.ravel().tolist())]
    return decoded.reshape(strings.shape) if strings.shape else decoded[0]


def _parse_json(index: int, text: bytes) -> bytes:
    if not text.lstrip().startswith(b"{"):  # protobuf takes an empty list for an empty message
        raise FeatureError("not an Example in JSON, which is an object in braces", None, index)
    try:
        message = json.loads(text.decode(), object_pairs_hook=unique_members)
        features = message.get("features")
        if isinstance(features, dict) and isinstance(named := features.get("feature"), dict):
            features["feature"] = {
                name: {} if value is None else value for name, value in named.items()
            }
        return json_format.ParseDict(message, Example()).SerializeToString(deterministic=True)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise FeatureError(f"not an Example in JSON: {error}", None, index) from error


def unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict; a name that occurs twice is a ValueError."""
    unique = dict(members)
    if len(unique) < len(members):
        names = [name for name, _ in members]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} occurs twice in one object: rename or remove one")
    return unique


def _string_array(value: Any) -> npt.NDArray[Any]:
    """Converts bytes or str, or arrays or nested lists of them, to an object array of bytes."""
    try:
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    except ValueError as error:
        raise FeatureError(f"a ragged list where an array of bytes is expected: {error}") from error
    try:
        items = [
            item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()
        ]
    except UnicodeEncodeError as error:
        raise FeatureError(
            f"a str without a UTF-8 form where bytes are expected: {error}"
        ) from error
    for item in items:
        if not isinstance(item, bytes):
            raise FeatureError(f"{name_type(item)} where bytes are expected")
    strings = np.empty(len(items), dtype=object)
    strings[:] = items
    return strings.reshape(array.shape)
