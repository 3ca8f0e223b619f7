"""ExampleEncoder: nested examples to records, in the layout of TensorFlow Datasets.

Nested names are joined by `/`. The values of all steps of a sequence follow each other, so a
feature is one list, however deep it is; `leaf_column.py` says what its parts are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.arguments import describe_value
from streamrec.display import join_names
from streamrec.errors import FeatureError
from streamrec.example import encode_example
from streamrec.example.dtypes import dtype_by_name
from streamrec.tfds.decoder import leaf_columns
from streamrec.tfds.features import Feature, FeaturesDict, SequenceFeature
from streamrec.tfds.leaf_column import LeafColumn
from streamrec.tfds.leaf_values import to_array, to_file, to_label, to_numbers, to_strings

Levels: TypeAlias = "tuple[list[int], ...]"
"""The lengths of the rows of each sequence around a feature, outermost first."""

Stored: TypeAlias = "dict[str, Any]"
"""The values of an Example by name."""

MISSING: Final = object()
"""Stands for a member that an example lacks."""


class ExampleEncoder:
    """Encodes examples of one tree of features; a pure function of each.

    Args:
        features: The tree, complete (`given_features.py`).

    Raises:
        FeatureError: Two features have one name, or one of them cannot be stored so that it can be
            read again.
    """

    def __init__(self, features: FeaturesDict) -> None:
        names: set[str] = set()
        for column in leaf_columns(features):
            stored = {column.name, column.values_name, *parsed_names(column)}
            if twice := names & stored:
                raise FeatureError("two features have this name in records", min(twice))
            names |= stored
        self._root = make_node(features, ())

    def encode(self, example: Any) -> bytes:
        """The record of one example.

        Raises:
            FeatureError: A value does not fit its feature, or is missing, or the example has one
                more; the error has the feature's name.
        """
        found: Stored = {}
        self._root.collect([example], (), found)
        return encode_example(found)


@dataclass(frozen=True, kw_only=True)
class LeafNode:
    """A value."""

    column: LeafColumn

    def collect(self, values: Sequence[Any], levels: Levels, found: Stored) -> None:
        """Adds the feature's lists to those of an Example.

        Args:
            values: One value without sequences around the feature; else those of all their rows.
            levels: The lengths of these sequences.
            found: The lists by name.
        """
        column = self.column
        if not levels and (values[0] is None or values[0] is MISSING):
            if not column.leaf.optional:
                raise FeatureError("the example lacks it, or has None", column.name)
            return
        try:
            self._add(values, found)
        except FeatureError as error:
            raise FeatureError(error.reason, column.name) from error.__cause__
        # The number of outermost rows follows from the lengths of the next ones.
        for level, lengths in enumerate(levels[1:]):
            name = f"{column.name}/ragged_row_lengths_{level}"
            found[name] = np.array(lengths, np.int64)

    def _add(self, values: Sequence[Any], found: Stored) -> None:
        column = self.column
        leaf = column.leaf
        if any(value is None or value is MISSING for value in values):
            raise FeatureError("a step lacks it, or has None: sequences have no missing values")
        if leaf.kind == "label":
            numbers = [to_label(value, leaf) for value in values]
            found[column.values_name] = np.array(numbers, np.int64)
        elif column.is_file:
            files = [to_file(value, leaf) for value in values]
            name = column.values_name
            if column.has_shapes:
                name = f"{column.name}/value"
                sizes = [size for _, shape in files for size in shape]
                found[f"{column.name}/shape"] = np.array(sizes, np.int64)
            found[name] = [data for data, _ in files]
        elif column.stored is bytes:
            strings = [to_strings(value, leaf.shape) for value in values]
            found[column.values_name] = [each for part in strings for each in part]
        else:
            dtype = dtype_by_name(leaf.dtype)
            arrays = [to_array(value, dtype, leaf.shape) for value in values]
            found[column.values_name] = join_numbers(arrays, dtype)

    def rows(self, value: Any) -> list[Any]:
        """The rows of a sequence of this feature."""
        return list_rows(value)


@dataclass(frozen=True, kw_only=True)
class DictNode:
    """Features by name."""

    name: str
    children: Mapping[str, Node]

    def collect(self, values: Sequence[Any], levels: Levels, found: Stored) -> None:
        """As `LeafNode.collect`."""
        for value in values:
            if not isinstance(value, Mapping):
                raise FeatureError(
                    f"{describe_value(value)} is not a dict of features", self.name or None
                )
            if len(value) > len(self.children) or value.keys() - self.children.keys():
                more = join_names(sorted(map(str, value.keys() - self.children.keys())))
                raise FeatureError(
                    f"the example has {more}, which the features do not have", self.name or None
                )
        for name, child in self.children.items():
            child.collect([value.get(name, MISSING) for value in values], levels, found)

    def rows(self, value: Any) -> list[Any]:
        """The rows of a sequence of dicts, which may be given as a dict of columns."""
        if not isinstance(value, Mapping):
            return list_rows(value)
        columns = {
            name: self.children[name].rows(column) if name in self.children else [column]
            for name, column in value.items()
        }
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise FeatureError(f"its columns have several lengths: {lengths}", self.name or None)
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True, kw_only=True)
class SequenceNode:
    """Any number of values of one feature; the frames of a video are such, too."""

    name: str
    child: Node
    length: int | None

    def collect(self, values: Sequence[Any], levels: Levels, found: Stored) -> None:
        """As `LeafNode.collect`."""
        rows: list[Any] = []
        lengths: list[int] = []
        for value in values:
            try:
                if value is None or value is MISSING:
                    raise FeatureError("the example lacks it, or has None")
                row = self.child.rows(value)
                if self.length not in (None, len(row)):
                    raise FeatureError(f"it has {len(row):,} values, and not {self.length:,}")
            except FeatureError as error:
                raise FeatureError(error.reason, error.feature or self.name) from error.__cause__
            rows += row
            lengths.append(len(row))
        self.child.collect(rows, (*levels, lengths), found)

    def rows(self, value: Any) -> list[Any]:
        """The rows of a sequence of sequences."""
        return self.child.rows(value) if isinstance(value, Mapping) else list_rows(value)


Node: TypeAlias = LeafNode | DictNode | SequenceNode


def parsed_names(column: LeafColumn) -> set[str]:
    """The names of what is parsed for a feature.

    Raises:
        FeatureError: It could not be read again: an array of unknown size in a sequence.
    """
    try:
        return set(column.features())
    except FeatureError:
        raise FeatureError(
            "arrays with several unknown sizes, or with one within a sequence, are stored as "
            "bytes: give the sizes, or encoding='bytes' or 'zlib'; and within two sequences, no "
            "array may have several",
            column.name,
        ) from None


def make_node(feature: Feature, path: tuple[str, ...], depth: int = 0) -> Node:
    """The node of a feature, within `depth` sequences."""
    name = "/".join(path)
    if isinstance(feature, SequenceFeature):
        child = make_node(feature.feature, path, depth + 1)
        return SequenceNode(name=name, child=child, length=feature.length)
    if isinstance(feature, FeaturesDict):
        children = {
            key: make_node(child, (*path, key), depth) for key, child in feature.features.items()
        }
        return DictNode(name=name, children=children)
    if feature.kind == "video":
        frame = replace(feature, kind="image", shape=feature.shape[1:])
        inner = make_node(frame, path, depth + 1)
        return SequenceNode(name=name, child=inner, length=feature.shape[0])
    return LeafNode(column=LeafColumn(path=path, leaf=feature, lengths=(None,) * depth))


def list_rows(value: Any) -> list[Any]:
    """The rows of a sequence: a list, an array, a ragged tensor, or anything to iterate over."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping):
        raise FeatureError(f"{describe_value(value)} is not a sequence")
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise FeatureError(f"{describe_value(value)} is not a sequence")
    return list(value)


def join_numbers(arrays: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The numbers of all values, one after the other, as an Example has them."""
    if len(arrays) == 1:
        return to_numbers(arrays[0])
    flat = [array.reshape(-1) for array in arrays]
    return to_numbers(np.concatenate(flat) if flat else np.empty(0, dtype))
