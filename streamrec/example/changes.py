"""The changes that a conversion makes to values and types."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(slots=True)
class Changes:
    """The changes that a conversion makes, which users of the result must know.

    Attributes:
        values: The largest change of a value, by the column's name and a description; 0 if only the
            type changes.
        text: Columns of text that are written as binary.
        binary: Columns of bytes that are not text.
        features: All features of the records, including those that are not read.
    """

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    text: set[str] = field(default_factory=set)
    binary: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)

    def add(self, name: str, what: str, largest: float = 0.0) -> None:
        """Notes a change of a column; of several of the same kind the largest is kept."""
        self.values[name, what] = max(largest, self.values.get((name, what), 0.0))

    def add_rounded(self, name: str, numbers: npt.NDArray[Any]) -> None:
        """Notes the floats or integers of a column that float32 rounds."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = numbers.astype(np.float32)
            changed = (rounded.astype(numbers.dtype) != numbers) & (numbers == numbers)
            change = np.abs(numbers - rounded.astype(np.float64))[changed]
        if len(change):
            least = 0.0 if numbers.dtype.kind == "f" else 1.0  # a change of 1 may be 0 in float64
            self.add(name, f"{numbers.dtype.name} -> float32", max(least, float(change.max())))

    def update(self, other: Changes) -> None:
        """Adds the changes of another part of the data."""
        for (name, what), largest in other.values.items():
            self.add(name, what, largest)
        self.text |= other.text
        self.binary |= other.binary
        self.features |= other.features

    def __str__(self) -> str:
        """The changes in one line; empty without changes."""
        parts = [
            f"{name}: {what}{describe_change(largest)}"
            for (name, what), largest in self.values.items()
        ]
        if text := sorted(self.text - self.binary):
            parts.append(f"{', '.join(text)}: text -> binary (--text {','.join(text)} keeps text)")
        return "; ".join(parts)


def describe_change(largest: float) -> str:
    """The largest change of a value, in brackets; empty if no value changes."""
    if not math.isfinite(largest):
        return " (values beyond its range become infinite)"
    return f" (largest change {largest:.2g})" if largest else ""
