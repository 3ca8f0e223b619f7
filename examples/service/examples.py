r"""An Example as a line of JSON, and back: `{"label": [3], "name": ["cat"], "score": [0.5]}`.

Bytes that are printable UTF-8 are text, all others `{"base64": "..."}`. Numbers that JSON lacks are
`{"float": "nan"}`.

>>> line = to_json(streamrec.encode_example({"id": 3, "name": "cat", "raw": b"\xff"}))
>>> line, streamrec.encode_example({"id": 3, "name": "cat", "raw": b"\xff"}) == from_json(line)
('{"id": [3], "name": ["cat"], "raw": [{"base64": "/w=="}]}', True)
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import streamrec

__all__ = ["from_json", "to_json"]


def to_json(record: bytes) -> str:
    """Converts a record to JSON.

    Raises:
        google.protobuf.message.DecodeError: The record is not an Example.
    """
    features = streamrec.Example.FromString(record).features.feature
    return json.dumps(
        {name: values(features[name]) for name in sorted(features)}, ensure_ascii=False
    )


def values(feature: Any) -> list[Any]:
    """Returns the values of a feature as JSON values."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    found = getattr(feature, kind).value
    return list(found) if kind == "int64_list" else [plain(value) for value in found]


def plain(value: Any) -> Any:
    """Returns a value as a JSON value."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    return (
        text
        if text is not None and text.isprintable()
        else {"base64": base64.b64encode(value).decode()}
    )


def from_json(line: str | bytes) -> bytes:
    """Converts a line of JSON to a record.

    Raises:
        ValueError: The line is not an Example in JSON; the message says what is wrong, and where.
    """
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("it is not an object of features")
    message = streamrec.Example()
    for name, given in found.items():
        feature = message.features.feature[name]
        try:
            fill(feature, [value_of(value) for value in given])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"feature {name!r}: {error}; a feature is a list of integers, of floats or of texts"
            ) from None
    return message.SerializeToString(deterministic=True)


def value_of(value: Any) -> Any:
    """Converts a JSON value to the value of a feature."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, dict) and value.keys() == {"float"}:
        return float(value["float"])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a value of a feature")
    return value


def fill(feature: Any, given: list[Any]) -> None:
    """Puts values, all of one kind, into a feature."""
    kinds = {type(value) for value in given}
    if len(kinds) > 1:
        raise TypeError(
            f"values of several kinds ({', '.join(sorted(kind.__name__ for kind in kinds))})"
        )
    lists = {int: feature.int64_list, float: feature.float_list, bytes: feature.bytes_list}
    for kind in kinds:
        lists[kind].value.extend(given)
