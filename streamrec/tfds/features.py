"""The features of a data set, as `features.json` describes them: a tree of descriptions.

A `FeaturesDict` has named features, a `SequenceFeature` repeats one feature, and a `LeafFeature`
is a value: a number, text, an array, a label, an image, a video or audio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from streamrec.arguments import describe_value
from streamrec.display import display_repr, join_names

Shape: TypeAlias = "tuple[int | None, ...]"
"""Sizes; None where each example has its own."""

ENCODED: Final = frozenset(("image", "labeled image", "video"))
"""The kinds whose values are image files."""


@display_repr
@dataclass(frozen=True, kw_only=True)
class LeafFeature:
    """A value of an example.

    Attributes:
        kind: "tensor", "text", "label", "image", "labeled image", "video", "audio" or "box".
        shape: Its sizes, None for one that differs from example to example; `()` for a scalar.
        dtype: The dtype's name, as of NumPy; "bytes" for byte strings.
        encoding: How an array is stored: "none" as numbers, "bytes" or "zlib" as one string;
            "png", "jpeg" or "" (either) for images; "file" for audio that is stored as its file.
        optional: Whether an example may lack it: it is None then.
        names: The names of the classes of a label; None for another kind.
        sample_rate: Of audio, samples per second; None if it is not written down.
    """

    kind: str
    shape: Shape = ()
    dtype: str = "int64"
    encoding: str = "none"
    optional: bool = False
    names: tuple[str, ...] | None = None
    sample_rate: int | None = None

    @property
    def num_classes(self) -> int | None:
        """The number of classes of a label; None for another kind."""
        return None if self.names is None else len(self.names)

    def name_of(self, number: int) -> str:
        """The name of the class with this number.

        Raises:
            ValueError: The feature has no such class.
        """
        if self.names is None or not 0 <= number < len(self.names):
            raise ValueError(f"there is no class {number} among {self.num_classes or 0:,}")
        return self.names[number]

    def number_of(self, name: str) -> int:
        """The number of the class with this name.

        Raises:
            ValueError: The feature has no such class.
        """
        try:
            return (self.names or ()).index(name)
        except ValueError:
            raise ValueError(
                f"there is no class {describe_value(name)}; {describe_names(self.names or ())}"
            ) from None

    def __str__(self) -> str:
        what = self.kind if self.kind != "tensor" else self.dtype
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        parts = [f"[{sizes}]" if self.shape else ""]
        if self.kind != "tensor" and self.kind not in ("text", "label"):
            parts.append(self.dtype)
        if self.encoding not in ("none", ""):
            parts.append(self.encoding)
        if self.sample_rate is not None:
            parts.append(f"{self.sample_rate:,} Hz")
        if self.names is not None:
            parts.append(describe_names(self.names))
        if self.optional and self.kind != "text":
            parts.append("optional")
        return f"{what}{parts[0]}" + "".join(f", {part}" for part in parts[1:])


@display_repr
@dataclass(frozen=True)
class FeaturesDict:
    """Features by name."""

    features: Mapping[str, Feature]

    def __getitem__(self, name: str) -> Feature:
        return self.features[name]


@display_repr
@dataclass(frozen=True, kw_only=True)
class SequenceFeature:
    """Any number of values of one feature.

    Attributes:
        feature: What is repeated.
        length: How often; None where each example has its own number.
        is_steps: Whether these are the steps of an episode (a nested data set, as in RLDS).
    """

    feature: Feature
    length: int | None = None
    is_steps: bool = False

    def __getitem__(self, name: str) -> Feature:
        if isinstance(self.feature, LeafFeature):
            raise KeyError(name)
        return self.feature[name]


Feature: TypeAlias = LeafFeature | FeaturesDict | SequenceFeature


def describe_names(names: tuple[str, ...]) -> str:
    """A few of the class names, and how many there are."""
    few = join_names(list(names[:4]))
    more = ", ..." if len(names) > 4 else ""
    return f"{len(names):,} classes ({few}{more})" if names else "no classes"


def tree_lines(feature: Feature, name: str = "", indent: int = 0) -> Iterator[str]:
    """The tree as text, a line for each feature."""
    head = "  " * indent + (f"{name}: " if name else "")
    if isinstance(feature, LeafFeature):
        yield f"{head}{feature}"
    elif isinstance(feature, SequenceFeature):
        inner: Feature = feature
        words = []
        while isinstance(inner, SequenceFeature):
            count = "" if inner.length is None else f" of {inner.length:,}"
            words.append(("steps" if inner.is_steps else "sequence") + count)
            inner = inner.feature
        what = " of ".join(words)
        if isinstance(inner, LeafFeature):
            yield f"{head}{what} of {inner}"
        else:
            yield f"{head}{what}"
            yield from tree_lines(inner, "", indent)
    else:
        if name:
            yield "  " * indent + name
        for key, child in feature.features.items():
            yield from tree_lines(child, key, indent + 1)


def labels(feature: Feature, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """The path of each label below a feature, and its number of classes."""
    if isinstance(feature, LeafFeature):
        if feature.names is not None:
            yield path, len(feature.names)
    elif isinstance(feature, SequenceFeature):
        yield from labels(feature.feature, path)
    else:
        for name, child in feature.features.items():
            yield from labels(child, (*path, name))


def with_names(
    feature: Feature, names: Mapping[tuple[str, ...], tuple[str, ...]], path: tuple[str, ...] = ()
) -> Feature:
    """The same tree with the names of classes, by the path of their label."""
    if isinstance(feature, LeafFeature):
        return replace(feature, names=names[path]) if path in names else feature
    if isinstance(feature, SequenceFeature):
        return replace(feature, feature=with_names(feature.feature, names, path))
    children = {
        name: with_names(child, names, (*path, name)) for name, child in feature.features.items()
    }
    return FeaturesDict(children)
