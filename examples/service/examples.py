r"""An Example as a line of JSON, and back: `{"label": [3], "name": ["cat"], "score": [0.5]}`.

Bytes that are printable UTF-8 are text, all others `{"base64": "..."}`. Numbers that JSON lacks are `{"float": "nan"}`.

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
    """A record as JSON.

    Raises:
        google.protobuf.message.DecodeError: It is no Example.
    """
    features = streamrec.Example.FromString(record).features.feature
    return json.dumps({name: values(features[name]) for name in sorted(features)}, ensure_ascii=False)


def values(feature: Any) -> list[Any]:
    """The values of a feature, in terms of JSON."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return []
    found = getattr(feature, kind).value
    return list(found) if kind == "int64_list" else [plain(value) for value in found]


def plain(value: Any) -> Any:
    """A value in terms of JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = None
    return text if text is not None and text.isprintable() else {"base64": base64.b64encode(value).decode()}


def from_json(line: str | bytes) -> bytes:
    """The record that a line stands for.

    Raises:
        ValueError: It is not an Example in JSON; the message says what is wrong where.
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
    """A value of JSON, as a feature has it."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    if isinstance(value, dict) and value.keys() == {"float"}:
        return float(value["float"])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is no value")
    return value


def fill(feature: Any, given: list[Any]) -> None:
    """Puts values, all of one kind, into a feature."""
    kinds = {type(value) for value in given}
    if len(kinds) > 1:
        raise TypeError(f"values of several kinds ({', '.join(sorted(kind.__name__ for kind in kinds))})")
    lists = {int: feature.int64_list, float: feature.float_list, bytes: feature.bytes_list}
    for kind in kinds:
        lists[kind].value.extend(given)
