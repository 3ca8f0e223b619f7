"""What all records together say of each feature: a Parquet file needs it before its first row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from streamrec.errors import FeatureError
from streamrec.example import FeatureSummary, Schema

__all__ = ["Column", "columns_of", "combined"]


@dataclass(frozen=True, slots=True)
class Column:
    """A feature, as a column.

    Attributes:
        name: Its name.
        kind: "int64", "float32" or "bytes"; None where no record has it with a kind.
        scalar: Whether each record has exactly one value of it.
    """

    name: str
    kind: str | None
    scalar: bool


def columns_of(schema: Schema) -> tuple[Column, ...]:
    """The columns that hold what was seen."""
    return tuple(
        Column(
            item.name,
            None if item.dtype is None else item.dtype.__name__,
            item.present == item.records and item.shortest == item.longest == 1,
        )
        for item in schema.summaries
    )


def combined(schemas: Iterable[Schema]) -> Schema:
    """What was seen in several parts of the data, as if they had been looked at as a whole.

    Raises:
        FeatureError: A feature has another kind in one part than in another.
    """
    return reduce(_both, schemas, Schema(0, ()))


def _both(one: Schema, other: Schema) -> Schema:
    records = one.records + other.records
    known = {item.name: item for item in one.summaries}
    for item in other.summaries:
        known[item.name] = _joined(known[item.name], item) if item.name in known else item
    return Schema(records, tuple(replace(known[name], records=records) for name in sorted(known)))


def _joined(one: FeatureSummary, other: FeatureSummary) -> FeatureSummary:
    seen = [item for item in (one, other) if item.present]
    if len({item.dtype for item in seen}) == 2:
        names = " and ".join(item.dtype.__name__ for item in seen if item.dtype is not None)
        raise FeatureError(f"{names} in different records; a column has one kind", one.name)
    return replace(
        seen[0] if seen else one,
        present=one.present + other.present,
        without_kind=one.without_kind + other.without_kind,
        shortest=min((item.shortest for item in seen), default=0),
        longest=max((item.longest for item in seen), default=0),
    )
