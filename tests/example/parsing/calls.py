"""parse_example and parse_single_example on a given walker."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrec.example.features import Feature, FixedLenFeature, VarLenFeature
from streamrec.example.parsing.native import NativeWalker
from streamrec.example.parsing.parse import parse_examples_with, parse_single_with

INT: dict[str, Feature] = {"x": FixedLenFeature([], np.int64)}
INTS: dict[str, Feature] = {"x": VarLenFeature(np.int64)}


def parse(walker: NativeWalker, records: Any, features: dict[str, Feature], names: Any = None) -> dict[str, Any]:
    """parse_example on a walker."""
    return parse_examples_with(walker, records, features, names, False)


def one(walker: NativeWalker, record: bytes, **features: Feature) -> Any:
    """The only column of a single example."""
    (column,) = parse_single_with(walker, record, features, None, False).values()
    return column
