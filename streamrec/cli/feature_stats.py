"""What `streamrec stat` counts of features while their records go by, in memory that does not grow with their number.

- `Histogram` does not need to know the range of the numbers. Bins are [k * 2**e, (k + 1) * 2**e) for whole k. Where a
  number is outside, the width doubles until all fit, and neighbours are joined: no count moves over a bin's edge, so
  the result does not depend on the order.
- `FrequentValues` are those of Misra and Gries (1982). As long as all different values fit, counts are exact. Beyond,
  each is too low by at most `missed`, and no value that is more frequent than that is lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec import BytesColumn, Frames, RaggedFeature, parse_example, parse_sequence_example
from streamrec.display import image_type
from streamrec.example import Schema

BINS: Final = 512
DIGITS: Final = 40
"""No bin is narrower than the largest number without its first 40 binary digits. Not tuned."""


class Moments:
    """Least, mean, most and standard deviation of numbers.

    >>> moments = Moments()
    >>> moments.add(np.array([1, 2])), moments.add(np.array([6]))
    (None, None)
    >>> moments.count, moments.least, moments.mean, moments.most
    (3, 1, 3.0, 6)

    Attributes:
        count: How many numbers there were.
        least, most: The smallest and the largest; None before the first one.
        mean: Their mean, in float64; 0.0 before the first one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.least: float | int | None = None
        self.most: float | int | None = None
        self.mean = 0.0
        self._squares = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers as a whole population; 0.0 before the first one."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Takes more numbers, all of them finite. (Chan's way to join two means and sums of squares.)"""
        if not len(numbers):
            return
        least, most = numbers.min().item(), numbers.max().item()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        mean = float(numbers.mean(dtype=np.float64))
        squares = float(np.square(numbers.astype(np.float64) - mean).sum())
        count = self.count + len(numbers)
        delta = mean - self.mean
        self._squares += squares + delta * delta * self.count * len(numbers) / count
        self.mean += delta * len(numbers) / count
        self.count = count


class Histogram(Moments):
    """The same of numbers that are counted in at most 512 bins, too.

    Args:
        whole: Whether the numbers are whole, so that no bin needs to be narrower than 1.

    >>> histogram = Histogram(whole=True)
    >>> histogram.add(np.array([1, 1, 2])), histogram.add(np.array([3, 7]))
    (None, None)
    >>> histogram.bins(4)
    [(0.0, 2.0, 2), (2.0, 4.0, 2), (4.0, 6.0, 0), (6.0, 8.0, 1)]
    """

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self._whole = whole
        self._exponent = 0
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Takes more numbers, all of them finite."""
        known = self.least, self.most
        super().add(numbers)
        if self.least is None or self.most is None:
            return
        if (self.least, self.most) != known:
            self._make_room(float(self.least), float(self.most))
        places = np.floor(np.ldexp(numbers.astype(np.float64), -self._exponent)).astype(np.int64)
        places[(places == 0) & (numbers < 0)] = -1  # so small compared to the width that it became 0
        self._counts += np.bincount(places - self._first, minlength=len(self._counts))

    def bins(self, most: int) -> list[tuple[float, float, int]]:
        """`most` bins or fewer, from that of the least number to that of the largest one.

        Each has a start, an end, and how many numbers were from the start up to and not including the end.
        """
        used = len(self._counts)
        if not used:
            return []
        shift, last = 0, self._first + used - 1
        while (last >> shift) - (self._first >> shift) >= most:
            shift += 1
        first = self._first >> shift
        places = ((np.arange(used) + self._first) >> shift) - first
        counts = np.bincount(places, self._counts).astype(np.int64)
        width = math.ldexp(1.0, self._exponent + shift)
        return [
            ((first + index) * width, (first + index + 1) * width, count) for index, count in enumerate(counts.tolist())
        ]

    def _make_room(self, least: float, most: float) -> None:
        """Makes bins for all numbers from `least` to `most`, and moves the counts so far to them."""
        exponent = math.frexp(max(abs(least), abs(most)))[1] - DIGITS
        exponent = max(0, exponent) if self._whole else max(-1022, exponent)
        if len(self._counts):
            exponent = max(exponent, self._exponent)
        while index(most, exponent) - index(least, exponent) >= BINS:
            exponent += 1
        first = index(least, exponent)
        counts = np.zeros(index(most, exponent) - first + 1, np.int64)
        moved = ((np.arange(len(self._counts)) + self._first) >> (exponent - self._exponent)) - first
        np.add.at(counts, moved, self._counts)
        self._exponent, self._first, self._counts = exponent, first, counts


def index(number: float, exponent: int) -> int:
    return math.floor(math.ldexp(number, -exponent)) or -int(number < 0)


class FrequentValues:
    """Counts of values.

    Args:
        capacity: How many different values are kept; up to twice as many before the next pruning.

    >>> frequent = FrequentValues()
    >>> frequent.add({"cat": 3, "dog": 1}), frequent.add({"dog": 1})
    (None, None)
    >>> frequent.most(1), frequent.different, frequent.exact
    ([('cat', 3)], 2, True)

    Attributes:
        missed: How much too low a count may be.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._counts = Counter[Any]()
        self.missed = 0

    @property
    def exact(self) -> bool:
        """Whether all counts are right."""
        return not self.missed

    @property
    def different(self) -> int | None:
        """How many different values there were; None where that is not known, as not all fit."""
        return len(self._counts) if self.exact else None

    def add(self, counts: Mapping[Any, int]) -> None:
        """Takes more values, each with its count."""
        self._counts.update(counts)
        if len(self._counts) > 2 * self._capacity:  # all counts lose that of the first value that does not fit
            cut = sorted(self._counts.values(), reverse=True)[self._capacity]
            self._counts = Counter({value: count - cut for value, count in self._counts.items() if count > cut})
            self.missed += cut

    def most(self, number: int) -> list[tuple[Any, int]]:
        """The most frequent values and their counts; equal ones in the order of their text.

        Leaves out values that may be less frequent than one that was forgotten.
        """
        safe = [(value, count) for value, count in self._counts.items() if count > self.missed]
        return sorted(safe, key=lambda pair: (-pair[1], str(pair[0])))[:number]


class FeatureStats:
    """One feature: its numbers, or the lengths of its strings in bytes.

    Attributes:
        name: Its name.
        kind: "int64", "float32" or "bytes".
        is_list: Whether it is a feature list of SequenceExamples; their context may have a feature of the same name.
        records: How many records were counted.
        missing: How many of them have no value of it.
        per_record: How many values the others have.
        numbers: Figures and bins of the finite numbers, or of the lengths of strings.
        not_finite: How many numbers are infinite or NaN.
        frequent: The most frequent numbers, or strings of up to 64 bytes.
        long: How many strings are longer.
        images: Some images, where the values are such: "jpeg" or "png", and the bytes.
    """

    def __init__(self, name: str, kind: str, is_list: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.is_list = is_list
        self.records = 0
        self.missing = 0
        self.per_record = Moments()
        self.numbers = Histogram(whole=kind != "float32")
        self.not_finite = 0
        self.frequent = FrequentValues()
        self.long = 0
        self.images: list[tuple[str, bytes]] = []

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.name} (feature list)" if self.is_list else self.name

    def add(self, values: npt.NDArray[Any] | BytesColumn, counts: npt.NDArray[Any]) -> None:
        """Takes the values of more records, and how many each of these has."""
        self.records += len(counts)
        present = counts[counts > 0]
        self.missing += len(counts) - len(present)
        self.per_record.add(present)
        if not isinstance(values, BytesColumn):
            finite = values[np.isfinite(values)]
            self.not_finite += len(values) - len(finite)
            self.numbers.add(finite)
            different, times = np.unique(finite, return_counts=True)
            self.frequent.add(dict(zip(different.tolist(), times.tolist(), strict=True)))
            return
        self.numbers.add(values.lengths)
        short = np.flatnonzero(values.lengths <= 64)  # longer strings are not counted by value
        self.long += len(values) - len(short)
        self.frequent.add(Counter(values if len(short) == len(values) else values[short]))
        wanted = 12 - len(self.images) if len(short) < len(values) else 0  # images of up to 256 KiB, at equal distances
        for index in np.unique(np.linspace(0, len(values) - 1, wanted).astype(int)).tolist():
            if values.lengths[index] <= 256 << 10 and (kind := image_type(data := values[index])):
                self.images.append((kind, data))


class DatasetStats:
    """The figures of each feature, in the order of their names; and of the records' lengths."""

    def __init__(self, schema: Schema | None, wanted: Callable[[str], bool]) -> None:
        self.records = FeatureStats("", "bytes")
        context = schema.summaries if schema else ()
        lists = schema.list_summaries if schema else ()
        self._context = {item.name: RaggedFeature(item.dtype) for item in context if item.dtype and wanted(item.name)}
        self._lists = {item.name: RaggedFeature(item.dtype) for item in lists if item.dtype and wanted(item.name)}
        self.features = tuple(
            FeatureStats(name, feature.dtype.__name__, part is self._lists)
            for part in (self._context, self._lists)
            for name, feature in part.items()
        )

    def add(self, frames: Frames) -> None:
        """Takes more records."""
        self.records.records += len(frames)
        self.records.numbers.add(frames.lengths)
        for figures, column in zip(self.features, self._columns(frames), strict=True):
            figures.add(column.flat_values, values_per_record(column.nested_row_splits))

    def _columns(self, frames: Frames) -> list[Any]:
        if self._lists:
            context, lists, _ = parse_sequence_example(frames, self._context, self._lists, string_columns=True)
            return [*context.values(), *lists.values()]
        return list(parse_example(frames, self._context, string_columns=True).values()) if self._context else []


def values_per_record(splits: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """How many values each record has, over all its steps.

    Examples:
        >>> values_per_record([np.array([0, 2, 3]), np.array([0, 4, 4, 5])]).tolist()
        [4, 1]
    """
    ends = splits[0]
    for inner in splits[1:]:
        ends = inner[ends]
    return np.diff(ends).astype(np.int64)
