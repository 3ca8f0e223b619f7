"""What is counted of one feature."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import BytesColumn
from streamrec.cli.records import image_type
from streamrec.cli.stats.frequent_values import FrequentValues
from streamrec.cli.stats.histogram import Histogram
from streamrec.cli.stats.moments import Moments

__all__ = ["FeatureStats", "Image"]

SHORT_BYTES: Final = 64
"""Longer strings are not counted one by one."""

IMAGES: Final = 12
IMAGE_BYTES: Final = 256 << 10
"""A larger image is not kept."""


class Image(NamedTuple):
    """An image as it lay in a record: "jpeg" or "png", and its bytes."""

    type: str
    data: bytes


class FeatureStats:
    """One feature. Numbers are looked at as they are, strings by their lengths in bytes.

    Attributes:
        name: Its name.
        kind: "int64", "float32" or "bytes".
        is_list: Whether it is a feature list of SequenceExamples; their context may have a feature of the same name.
        records: How many records went by.
        missing: How many of them have no value of it.
        per_record: How many values the others have.
        numbers: Of the numbers that are finite, or of the lengths of strings.
        not_finite: How many numbers are infinite or no number.
        histogram: Of the same as `numbers`.
        frequent: The most frequent numbers, or strings of up to 64 bytes.
        long: How many strings are longer.
        images: Some JPEG or PNG images, where the values are such.
    """

    def __init__(self, name: str, kind: str, is_list: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.is_list = is_list
        self.records = 0
        self.missing = 0
        self.per_record = Moments()
        self.numbers = Moments()
        self.not_finite = 0
        self.histogram = Histogram(whole=kind != "float32")
        self.frequent = FrequentValues()
        self.long = 0
        self.images: list[Image] = []

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
        if isinstance(values, BytesColumn):
            self._add_strings(values)
        else:
            self._add_numbers(values)

    def _add_numbers(self, values: npt.NDArray[Any]) -> None:
        finite = values[np.isfinite(values)]
        self.not_finite += len(values) - len(finite)
        self._measure(finite)
        different, counts = np.unique(finite, return_counts=True)
        self.frequent.add(dict(zip(different.tolist(), counts.tolist(), strict=True)))

    def _add_strings(self, values: BytesColumn) -> None:
        self._measure(values.lengths)
        short = np.flatnonzero(values.lengths <= SHORT_BYTES)
        self.long += len(values) - len(short)
        self.frequent.add(Counter(values if len(short) == len(values) else values[short]))
        if len(self.images) < IMAGES and len(short) < len(values):
            self._keep_images(values)

    def _measure(self, numbers: npt.NDArray[Any]) -> None:
        self.numbers.add(numbers)
        self.histogram.add(numbers)

    def _keep_images(self, values: BytesColumn) -> None:
        """Keeps images that lie evenly in these values, up to as many as are wanted in all."""
        wanted = IMAGES - len(self.images)
        for index in np.unique(np.linspace(0, len(values) - 1, wanted).astype(int)).tolist():
            if values.lengths[index] <= IMAGE_BYTES:
                data = values[index]
                kind = image_type(data)
                if kind is not None:
                    self.images.append(Image(kind, data))
