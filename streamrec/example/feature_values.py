"""An Example as a dict of features, each a list of values with its kind.

- A missing feature is not in the dict.
- A list contains ints, floats or bytes; `kind` says which, even if the list is empty.
- A feature without a kind, which parses as missing, is the list `[None]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from streamrec.errors import FeatureError
from streamrec.example import CAN_COPY, describe_other, encode_example, kind_and_message

INT64: Final = "int64"
FLOAT: Final = "float32"
BYTES: Final = "bytes"

KINDS: Final = {"int64_list": INT64, "float_list": FLOAT, "bytes_list": BYTES}


class FeatureValues(NamedTuple):
    """The values of a feature, all of kind "int64", "float32" or "bytes".

    `[None]` without a kind.
    """

    kind: str | None
    values: list[Any]


NO_KIND: Final = FeatureValues(None, [None])


def features_of(record: bytes, number: int) -> dict[str, FeatureValues]:
    """The features of a serialized Example, in the order of their names.

    Raises:
        FeatureError: The record is something else; the message says what.
    """
    kind, message = kind_and_message(record)
    if kind == "bytes":
        raise FeatureError(f"{describe_other(record)}: {CAN_COPY}", None, number)
    if kind in ("sequence_example", "example_list"):
        name = "a SequenceExample" if kind == "sequence_example" else "an ExampleListWithContext"
        raise FeatureError(
            f"{name}: only Examples can be converted; parse it, and write Examples", None, number
        )
    features = message.context.feature
    return {name: values_of(features[name]) for name in sorted(features)}


def values_of(feature: Any) -> FeatureValues:
    """The values of a `Feature` message of protobuf."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return NO_KIND
    return FeatureValues(KINDS[kind], list(getattr(feature, kind).value))


def example_of(features: Mapping[str, FeatureValues]) -> bytes:
    """Serializes an Example; the same features give the same bytes."""
    kinds = {name: kind for name, (kind, _) in features.items() if kind is not None}
    lists = {name: values if name in kinds else [] for name, (_, values) in features.items()}
    return encode_example(lists, kinds=kinds, deterministic=True)
