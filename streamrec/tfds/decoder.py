"""Decoder: records of a folder to examples, as a function for `Dataset.map`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar, TypeAlias

import numpy as np

from streamrec.arguments import describe_value
from streamrec.display import join_names
from streamrec.pipeline import stages
from streamrec.tfds.features import Feature, LeafFeature, SequenceFeature
from streamrec.tfds.leaf_column import LeafColumn, SkipDecoding
from streamrec.tracebacks import border_methods

Decoders: TypeAlias = Mapping[str, Any]
"""`skip`, or a function of one value, by the feature's name; dicts may be nested."""


@border_methods
@dataclass(frozen=True, eq=True, repr=False)
class Decoder:
    """Parses and decodes records: a batch (`Frames`, a list) to columns, `bytes` to one example.

    Columns and examples are dicts, nested as the features are. Pass it to `map` of a dataset of
    batches of records; it can be pickled.

    A column is an array with the dimension of the batch in front if all examples have one shape; a
    `RaggedTensor` for sequences, and for arrays whose first size differs; and an object array for
    images and arrays of several sizes, and for text. Optional values that are missing are None in
    an example; in columns they are masked (`numpy.ma`), or None among objects.

    `Folder.decoder` makes one.
    """

    columns: tuple[LeafColumn, ...]
    supervised: tuple[Any, ...] = ()
    as_rows: bool = False
    keeps_rows: ClassVar[bool] = True

    def __repr__(self) -> str:
        # Saved positions are compared with it, so it depends on all that changes an element.
        names = [column.name for column in self.columns]
        shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        text = repr([(c.path, str(c.leaf), c.lengths, c.named) for c in self.columns])
        text += repr((self.supervised, self.as_rows))
        digest = blake2b(text.encode(), digest_size=4).hexdigest()
        return f"Decoder({shown}; {digest})"

    def __call__(self, records: Any) -> Any:
        """The examples of a batch as columns, or that of one record.

        Raises:
            FeatureError: A record is damaged, or a value does not fit its feature, or cannot be
                decoded; the error has the record's number in the batch and the feature's name.
        """
        if isinstance(records, bytes | bytearray | memoryview):
            return next(rows_of(self._columns([bytes(records)], for_rows=True)))
        columns = self._columns(records, for_rows=self.as_rows)
        return row_array(columns, len(records)) if self.as_rows else columns

    @cached_property
    def _parse(self) -> stages.Parse:
        features: dict[str, Any] = {}
        for column in self.columns:
            features |= column.features()
        return stages.Parse(features, string_columns=True)

    def _columns(self, records: Any, *, for_rows: bool) -> Any:
        parsed = self._parse(records)
        found: dict[str, Any] = {}
        for column in self.columns:
            values = column.column(parsed, len(records))
            put(found, column.path, column.rows(values) if for_rows else values)
        return pick(found, self.supervised) if self.supervised else found


def leaf_columns(
    feature: Feature, path: tuple[str, ...] = (), lengths: tuple[int | None, ...] = ()
) -> Iterator[LeafColumn]:
    """A column for each leaf of a tree."""
    if isinstance(feature, SequenceFeature):
        yield from leaf_columns(feature.feature, path, (*lengths, feature.length))
    elif not isinstance(feature, LeafFeature):
        for name, child in feature.features.items():
            yield from leaf_columns(child, (*path, name), lengths)
    elif feature.kind == "video":
        frame = replace(feature, kind="image", shape=feature.shape[1:])
        yield LeafColumn(path=path, leaf=frame, lengths=(*lengths, feature.shape[0]))
    else:
        yield LeafColumn(path=path, leaf=feature, lengths=lengths)


def class_names(feature: Feature) -> dict[str, tuple[str, ...]]:
    """The names of the classes of each label, by the name of its values in Examples."""
    return {
        column.values_name: column.leaf.names
        for column in leaf_columns(feature)
        if column.leaf.kind == "label" and column.leaf.names
    }


def make_decoder(
    feature: Feature,
    *,
    features: Iterable[str] | Mapping[str, Any] | None = None,
    decoders: Decoders | None = None,
    supervised: tuple[Any, ...] = (),
    labels: str = "numbers",
    as_rows: bool = False,
) -> Decoder:
    """The decoder of a tree of features, or of a part of it."""
    columns = list(leaf_columns(feature))
    if supervised:
        wanted = list(names_in(supervised))
        columns = select(columns, wanted)
    if features is not None:
        columns = select(columns, flatten_names(features))
    for name, decoder in flatten_decoders(decoders or {}):
        for column in select(columns, [name]):
            columns[columns.index(column)] = replace(column, decoder=decoder)
    if labels == "names":
        columns = [replace(column, named=column.leaf.kind == "label") for column in columns]
    return Decoder(tuple(columns), supervised, as_rows)


def select(columns: Iterable[LeafColumn], names: Iterable[str]) -> list[LeafColumn]:
    """The columns of the features with these names, and of those within them.

    Raises:
        ValueError: There is no feature of a name.
    """
    known = list(columns)
    wanted = list(names)
    for name in wanted:
        if not any(is_within(column, name) for column in known):
            near = get_close_matches(name, [column.name for column in known], 3, 0.5)
            listed = near or [column.name for column in known[:8]]
            raise ValueError(
                f"there is no feature {describe_value(name)}: there are "
                f"{join_names(listed) or 'none'}"
            )
    return [column for column in known if any(is_within(column, name) for name in wanted)]


def is_within(column: LeafColumn, name: str) -> bool:
    """Whether a column is of the feature of this name, or of one within it."""
    return column.name == name or column.name.startswith(name.rstrip("/") + "/")


def flatten_names(features: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """Names from a list, or from nested dicts in which a part is true."""
    if isinstance(features, str):
        return [features]
    if not isinstance(features, Mapping):
        return list(features)
    names: list[str] = []
    for key, value in features.items():
        if isinstance(value, Mapping | list | tuple | set | frozenset):
            names += [f"{key}/{name}" for name in flatten_names(value)]
        elif value:
            names.append(key)
    return names


def flatten_decoders(decoders: Decoders) -> Iterator[tuple[str, Any]]:
    """The decoder of each name, from dicts that may be nested."""
    for name, decoder in decoders.items():
        if isinstance(decoder, Mapping):
            for child, each in flatten_decoders(decoder):
                yield f"{name}/{child}", each
        elif isinstance(decoder, SkipDecoding) or callable(decoder):
            yield name, decoder
        else:
            raise TypeError(
                f"the decoder of {name!r} is {describe_value(decoder)}: pass streamrec.tfds.skip "
                "or a function of one value"
            )


def names_in(keys: Any) -> Iterator[str]:
    """The names in supervised keys."""
    if isinstance(keys, str):
        yield keys
    else:
        for key in keys.values() if isinstance(keys, Mapping) else keys:
            yield from names_in(key)


def pick(found: Mapping[str, Any], keys: Any) -> Any:
    """The values of supervised keys, in their tuples and dicts."""
    if isinstance(keys, str):
        value: Any = found
        for part in [keys] if keys in found else keys.split("/"):
            value = value[part]
        return value
    if isinstance(keys, Mapping):
        return {name: pick(found, key) for name, key in keys.items()}
    return tuple(pick(found, key) for key in keys)


def put(found: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Puts a value into nested dicts."""
    *outer, last = path
    for name in outer:
        found = found.setdefault(name, {})
    found[last] = value


def rows_of(columns: Any) -> Iterator[Any]:
    """The examples of columns, each with its own dicts and tuples."""
    if isinstance(columns, dict):
        parts = [rows_of(column) for column in columns.values()]
        for values in zip(*parts, strict=True):
            yield dict(zip(columns, values, strict=True))
    elif isinstance(columns, tuple):
        yield from zip(*map(rows_of, columns), strict=True)
    elif isinstance(columns, np.ma.MaskedArray):
        masked: Any = np.ma.getmaskarray(columns).reshape(len(columns), -1).any(axis=1)
        yield from (
            None if is_missing else value
            for value, is_missing in zip(columns.data, masked, strict=True)
        )
    else:
        yield from columns


def row_array(columns: Any, count: int) -> Any:
    """The examples of columns as an object array, which `unbatch` splits."""
    rows = np.empty(count, object)
    for number, row in enumerate(rows_of(columns)):
        rows[number] = row
    return rows
