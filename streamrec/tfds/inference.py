"""Infers features from examples. Pure.

The rules:
- A dict is a FeaturesDict. A list or a tuple is a Sequence; a list of dicts named `steps` at the
  top is the steps of an episode (RLDS).
- An array is a Tensor of its dtype; a size that differs among examples is unknown. NumPy's scalars
  have their dtype, a bool is bool, and an int is int64.
- A float and float64 become a float64 that is stored as its bytes: as a number, a folder keeps only
  float32.
- An array with several unknown sizes, or with one within a sequence, is stored as its bytes.
- str is Text, and bytes are a Tensor of strings.
- A value that some examples lack, or that is None, is optional; text is a Tensor of strings then.

What may mean several things is an error that asks for the features: the bytes of an image file,
None alone, a list that is always empty, values of several dtypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from streamrec.arguments import describe_value
from streamrec.display import join_names
from streamrec.errors import FeatureError
from streamrec.example.dtypes import dtype_name
from streamrec.images import SIGNATURES
from streamrec.tfds.features import Feature, FeaturesDict, LeafFeature, SequenceFeature
from streamrec.tfds.given_features import NUMBERS

SAMPLE: Final = 100
"""Features follow from at most so many examples."""

STEPS: Final = "steps"

ADVICE: Final = "pass features="


@dataclass(frozen=True)
class FeaturePlace:
    """Where a value is: the name of its feature, and how many sequences are around it."""

    name: str = ""
    depth: int = 0

    def within(self, key: object) -> FeaturePlace:
        """The place of a member."""
        return FeaturePlace(f"{self.name}/{key}" if self.name else str(key), self.depth)

    def error(self, reason: str) -> FeatureError:
        """An error that asks for the features."""
        return FeatureError(f"{reason}: {ADVICE}", self.name or None)


def infer_features(examples: Sequence[Any]) -> FeaturesDict:
    """The features of some examples.

    Raises:
        FeatureError: They are ambiguous; the error has the feature's name.

    Examples:
        >>> found = infer_features([{"x": np.int8(1), "words": ["a"]}, {"x": None, "words": []}])
        >>> print(found["x"], "and", found["words"].feature)
        int8, optional and text
    """
    found = infer(list(examples), FeaturePlace())
    if not isinstance(found, FeaturesDict):
        raise FeatureError("an example is a dict of values by the names of features")
    return found


def infer(values: Sequence[Any], place: FeaturePlace) -> Feature:
    """The feature of values, of which some may be None."""
    known = [value for value in values if value is not None]
    if not known:
        what = "no value is known" if values else "there is no value: the sequence is always empty"
        raise place.error(what)
    forms = {form_of(value) for value in known}
    if len(forms) > 1:
        raise place.error(f"its values are {join_names(sorted(forms))}")
    [form] = forms
    if form == "dict":
        refuse_missing(values, known, place)
        return infer_dict(known, place)
    if form == "sequence":
        refuse_missing(values, known, place)
        return infer_sequence([list(value) for value in known], place)
    leaf = infer_leaf(known, place)
    if len(known) < len(values):
        if place.depth:
            raise place.error("some values of a sequence are missing, which cannot be stored")
        # TensorFlow Datasets cannot read a Text that is missing, as it forgets that one may be.
        leaf = replace(leaf, kind="tensor", optional=True)
    return leaf


def refuse_missing(values: Sequence[Any], known: Sequence[Any], place: FeaturePlace) -> None:
    """Refuses None among dicts and sequences, which have no missing values."""
    if len(known) < len(values):
        raise place.error("some examples lack it, or have None, and only values may be missing")


def form_of(value: Any) -> str:
    """Whether a value is a dict, a sequence, or a leaf, as a word."""
    if isinstance(value, Mapping):
        return "dict"
    if isinstance(value, str | bytes | int | float) or hasattr(value, "__array__"):
        return "value"
    if isinstance(value, Iterable) and hasattr(value, "__len__"):
        return "sequence"
    return f"{describe_value(value)}"


def infer_dict(values: Sequence[Mapping[str, Any]], place: FeaturePlace) -> FeaturesDict:
    """The features of dicts; a name that some of them lack is one whose value is None."""
    names = sorted({str(name) for value in values for name in value})
    return FeaturesDict(
        {name: infer([value.get(name) for value in values], place.within(name)) for name in names}
    )


def infer_sequence(values: Sequence[list[Any]], place: FeaturePlace) -> SequenceFeature:
    """The feature of lists."""
    inner = FeaturePlace(place.name, place.depth + 1)
    feature = infer([row for value in values for row in value], inner)
    steps = place.name == STEPS and isinstance(feature, FeaturesDict)
    return SequenceFeature(feature=feature, is_steps=steps)


def infer_leaf(values: Sequence[Any], place: FeaturePlace) -> LeafFeature:
    """The feature of values without parts."""
    if all(isinstance(value, str) for value in values):
        return LeafFeature(kind="text", dtype="bytes")
    if all(isinstance(value, bytes) for value in values):
        refuse_files(values, place)
        return LeafFeature(kind="tensor", dtype="bytes")
    arrays = [np.asarray(value) for value in values]
    dtypes = {kind_of(array, place) for array in arrays}
    if len(dtypes) > 1:
        raise place.error(f"its values are {join_names(sorted(dtypes))}")
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise place.error(f"its arrays have {join_names(sorted(map(str, ranks)))} dimensions")
    sizes = [set(each) for each in zip(*(array.shape for array in arrays), strict=True)]
    shape = tuple(each.pop() if len(each) == 1 else None for each in sizes)
    [dtype] = dtypes
    unknown = shape.count(None)
    # What is stored as numbers keeps one unknown size, and that of a sequence is one.
    as_bytes = dtype == "float64" or unknown > 1 or (unknown and place.depth)
    if as_bytes and dtype == "bytes":
        raise place.error("arrays of strings have several unknown sizes, which cannot be stored")
    return LeafFeature(
        kind="tensor", shape=shape, dtype=dtype, encoding="bytes" if as_bytes else "none"
    )


def kind_of(array: np.ndarray[Any, Any], place: FeaturePlace) -> str:
    """The name of an array's dtype in a folder."""
    if array.dtype.kind in "SU" or (
        array.dtype == object and all(isinstance(x, str | bytes) for x in array.reshape(-1))
    ):
        return "bytes"
    name = dtype_name(array.dtype)
    if name not in NUMBERS:
        raise place.error(f"its values are {name}, which such folders do not have")
    return name


def refuse_files(values: Iterable[bytes], place: FeaturePlace) -> None:
    """Refuses bytes that may be meant as images or as bytes."""
    for value in values:
        for signature, kind in SIGNATURES.items():
            # Two letters are no proof of a BMP.
            if len(signature) > 2 and value.startswith(signature):
                raise place.error(
                    f"its bytes are a {kind} file, which may be meant as an image "
                    "(LeafFeature(kind='image')) or as bytes"
                )
