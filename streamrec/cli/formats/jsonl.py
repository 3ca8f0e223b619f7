r"""JSON lines: an object a record, and in it a list of values for each feature.

    {"label": [3], "score": [0.5], "name": ["cat"], "image": [{"base64": "/9j/4AAQ"}]}

- A missing feature is left out; null is read as missing, too.
- int64 are integers; float32 have a point or an exponent, and as few digits as identify them. bytes
  are text if they are UTF-8, and else {"base64": "..."}.
- If a list does not show its kind, it is in an object: {"float32": []} is an empty list of floats,
  and {"float32": ["nan", 0.5]} a list with numbers that JSON does not support. An empty list is []
  if an earlier line of the file shows the feature's kind.
- [null] is a feature without a kind.
- A single value without its list is read as a list of one; true and false are read as 1 and 0.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

import numpy as np

from streamrec import FeatureError
from streamrec.cli.formats.codec import Codec, FileEncoder, Reading
from streamrec.cli.library import (
    BYTES,
    FLOAT,
    INT64,
    NO_KIND,
    Changes,
    FeatureValues,
    example_of,
    features_of,
    shorten,
    unique_members,
)

KIND_OF: Final = {bool: INT64, int: INT64, float: FLOAT, str: BYTES, dict: BYTES}
CONSTANTS: Final = {"NaN": math.nan, "Infinity": float("inf"), "-Infinity": float("-inf")}
"""Python's JSON constants: these objects, by identity, are not numbers that are too large."""

ADVICE: Final = "leave it out with --features, or flatten it first"


class JsonlEncoder(FileEncoder):
    """Encodes JSON lines.

    An empty list needs no kind once an earlier line of the same file shows it.

    Args:
        first: The number of the first record, for errors.
    """

    def __init__(self, first: int) -> None:
        self._number = first
        self._shown: dict[str, str] = {}

    def write(self, records: Iterable[bytes]) -> bytes:
        return "".join(self._line(record) for record in records).encode()

    def _line(self, record: bytes) -> str:
        features = features_of(record, self._number)
        self._number += 1
        line = {
            name: feature_to_json(values, self._shown.get(name))
            for name, values in features.items()
        }
        self._shown |= {
            name: values.kind for name, values in features.items() if values.kind is not None
        }
        return json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(", ", ": ")) + "\n"


def feature_to_json(feature: FeatureValues, shown: str | None = None) -> Any:
    """Converts a feature to JSON; `shown` is the kind that readers assume for an empty list."""
    kind, values = feature
    if kind == FLOAT:
        numbers = [round_to_float32(value) for value in values]
        plain = values and all(isinstance(number, float) for number in numbers)
        return numbers if plain or (not values and shown == FLOAT) else {FLOAT: numbers}
    if kind == BYTES:
        values = [text_or_base64(value) for value in values]
    return values if values or shown == kind else {kind: values}


def round_to_float32(value: float) -> float | str:
    """A float32 with as few digits as identify it; text if JSON does not support it."""
    return float(str(np.float32(value))) if math.isfinite(value) else str(value)


def text_or_base64(value: bytes) -> str | dict[str, str]:
    """Bytes as JSON: a string where they are UTF-8, else an object."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def records_in(file: BinaryIO, reading: Reading) -> Iterator[bytes]:
    """Reads JSON lines; skips empty ones."""
    shown = dict(reading.kinds)
    return (example_from_line(line, reading, shown) for line in file if line.strip())


def example_from_line(line: bytes, reading: Reading, shown: dict[str, str]) -> bytes:
    """Converts one line to a serialized Example.

    Adds to `shown` the kinds that the line shows: later lines may have an empty list there.
    """
    members = json.loads(line, parse_constant=CONSTANTS.get, object_pairs_hook=unique_members)
    if not isinstance(members, dict):
        raise ValueError("a line that is not a JSON object")
    features = {
        name: feature_from_json(name, value, reading.kinds.get(name), shown.get(name))
        for name, value in members.items()
        if value is not None and reading.wants(name)
    }
    shown |= {name: feature.kind for name, feature in features.items() if feature.kind is not None}
    for name, feature in features.items():
        note_changes(name, members[name], feature.kind, reading.changes)
    return example_of(features)


def note_changes(name: str, value: Any, kind: str | None, changes: Changes) -> None:
    """Notes which values the feature stores in another form.

    A float32 that prints as JSON's number is unchanged.
    """
    [values] = value.values() if isinstance(value, dict) else [value]
    values = values if isinstance(values, list) else [values]
    if kind is None and value == []:
        changes.add(name, "[] -> no kind (where no line before shows one; --schema says it)")
    if kind in (INT64, FLOAT) and any(isinstance(item, bool) for item in values):
        changes.add(name, f"bool -> {kind}")
    if kind == FLOAT:
        with np.errstate(over="ignore"):
            for change in filter(None, map(change_of, values)):
                changes.add(name, "numbers -> float32", change)


def change_of(value: Any) -> float:
    """The difference of a JSON number from its float32; 0 if both print alike."""
    if isinstance(value, str):
        return 0.0
    narrow = np.float32(value)
    if not math.isfinite(narrow):
        return 0.0 if any(value is constant for constant in CONSTANTS.values()) else math.inf
    if isinstance(value, int):
        return float(abs(value - int(narrow)))
    prints_alike = float(narrow) == value or float(str(narrow)) == value
    return 0.0 if prints_alike else abs(value - float(narrow))


def feature_from_json(
    name: str, value: Any, wanted: str | None = None, shown: str | None = None
) -> FeatureValues:
    """Converts a JSON value to a feature of the kind `wanted`.

    `shown` is the kind of an empty list.
    """
    if isinstance(value, dict) and len(value) == 1 and next(iter(value)) in (INT64, FLOAT, BYTES):
        [(wanted, value)] = value.items()
    values = value if isinstance(value, list) else [value]
    if values == [None]:
        return NO_KIND
    kind = wanted or kind_of(name, values, shown)
    if kind is None:
        return NO_KIND
    convert = {INT64: whole_number, FLOAT: number, BYTES: as_bytes}[kind]
    try:
        return FeatureValues(kind, [convert(item) for item in values])
    except (TypeError, ValueError, OverflowError) as error:
        raise FeatureError(
            f"{dump_shortened(value)} holds a value that is not {kind}: {ADVICE}", name
        ) from error


def kind_of(name: str, values: list[Any], shown: str | None) -> str | None:
    """The kind that JSON values show: float32 for a mix of integers and floats.

    An empty list shows none: then it is `shown`.

    Raises:
        FeatureError: The values are of several kinds, or of none that an Example holds.
    """
    kinds = {KIND_OF.get(type(value)) for value in values}
    if kinds == {INT64, FLOAT}:
        return FLOAT
    if len(kinds) > 1 or None in kinds:
        raise FeatureError(
            f"{dump_shortened(values)} is not a list of numbers or strings: {ADVICE}", name
        )
    return kinds.pop() if kinds else shown


def whole_number(value: Any) -> int:
    """An integer or a bool as int; a float is refused, even if it has no fraction."""
    if not isinstance(value, int):
        raise TypeError
    return int(value)


def number(value: Any) -> float:
    """A number, or one of the texts "nan", "inf" and "-inf", which JSON has no numbers for."""
    if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
        raise ValueError
    return float(value)


def as_bytes(value: Any) -> bytes:
    """The bytes of a string, or of an object `{"base64": "..."}`."""
    if isinstance(value, dict):
        [(key, text)] = value.items()
        if key != "base64":
            raise ValueError
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from error
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def dump_shortened(value: Any) -> str:
    """A value as up to 60 characters of JSON, for a message."""
    return shorten(json.dumps(value, ensure_ascii=False), 60)


CODEC: Final = Codec(lambda _, first, changes: JsonlEncoder(first), records_in)
