"""What all records together say of each feature, which a Parquet file needs before its first row; and what it loses."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example import FeatureSummary, Schema

__all__ = ["Changes", "Column", "columns_of", "combined"]


@dataclass(frozen=True, slots=True)
class Column:
    """A feature, as a column.

    Attributes:
        name: Its name.
        kind: "int64", "float32" or "bytes"; None where no record has it with a kind.
        scalar: Whether it holds one value, and null where a record lacks the feature; else lists.
        text: Whether its bytes are text.
        ending: What its files in a tar are: "npy", "jpg", "png", "txt", "bin" or "json".
    """

    name: str
    kind: str | None = None
    scalar: bool = False
    text: bool = False
    ending: str = "json"


@dataclass(slots=True)
class Changes:
    """What a conversion changes in columns, so that a reader of the result must know of it.

    Attributes:
        values: The largest change of a value, by the column's name and what becomes of it; 0 where no value changes.
        text: Columns of bytes that hold text, but are written as binary.
        binary: Columns that hold bytes that are not text.
        features: All features that records hold, also those that were not asked for.
    """

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    text: set[str] = field(default_factory=set)
    binary: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)

    def add(self, name: str, what: str, largest: float = 0.0) -> None:
        """Notes what becomes of a column."""
        self.values[name, what] = max(largest, self.values.get((name, what), 0.0))

    def add_rounded(self, name: str, numbers: npt.NDArray[Any]) -> None:
        """Notes the floats or integers of a column that float32 rounds."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = numbers.astype(np.float32)
            changed = (rounded.astype(numbers.dtype) != numbers) & (numbers == numbers)
            change = np.abs(numbers - rounded.astype(np.float64))[changed]
        if len(change):
            least = 0.0 if numbers.dtype.kind == "f" else 1.0  # which float64 may not tell from 0 either
            self.add(name, f"{numbers.dtype.name} -> float32", max(least, float(change.max())))

    def update(self, other: Changes) -> None:
        """Adds what another part of the data changes."""
        for (name, what), largest in other.values.items():
            self.add(name, what, largest)
        self.text |= other.text
        self.binary |= other.binary
        self.features |= other.features

    def __str__(self) -> str:
        """One line; empty where nothing changes."""
        parts = [f"{name}: {what}{extent(largest)}" for (name, what), largest in self.values.items()]
        if text := sorted(self.text - self.binary):
            parts.append(f"{', '.join(text)}: text -> binary (--text {','.join(text)} keeps text)")
        return "; ".join(parts)


def extent(largest: float) -> str:
    """How far values change, in brackets; nothing where they do not."""
    if not math.isfinite(largest):
        return " (values beyond its range become infinite)"
    return f" (largest change {largest:.2g})" if largest else ""


def columns_of(schema: Schema, changes: Changes) -> tuple[Column, ...]:
    """The columns that hold what was seen: a feature with up to one value in each record is a scalar.

    A feature that some records hold without a value or a kind is a list, since null would be a missing feature.
    """
    columns = []
    for item in schema.summaries:
        scalar = item.longest == item.shortest == 1 and not item.without_kind
        if item.longest == 1 and not scalar:
            changes.add(item.name, "0 or 1 values -> list (some records hold it empty, which is not null)")
        columns.append(Column(item.name, None if item.dtype is None else item.dtype.__name__, scalar))
    return tuple(columns)


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
