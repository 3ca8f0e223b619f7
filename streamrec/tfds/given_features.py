"""The tree of features that a writer was given, complete and checked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from streamrec.arguments import describe_value
from streamrec.display import join_names
from streamrec.errors import FeatureError
from streamrec.example.dtypes import dtype_name
from streamrec.tfds.features import Feature, FeaturesDict, LeafFeature, SequenceFeature
from streamrec.tfds.features_json import features_from_json

NUMBERS: Final = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
"""The dtypes that a folder can have, besides "bytes"."""

IMAGES: Final = ("image", "labeled image", "video")

ENCODINGS: Final = {
    "tensor": ("none", "bytes", "zlib"),
    "audio": ("none", "bytes", "zlib", "file"),
    **dict.fromkeys(IMAGES, ("", "png", "jpeg")),
}
"""The encodings of each kind; the others have none."""

DEFAULT: Final = LeafFeature(kind="")
"""A member of a leaf that equals this one's was not given."""


def given_features(value: Any) -> FeaturesDict:
    """The tree that a user means.

    Args:
        value: A tree, such as `Folder.features`; or a dict of features by name, in which a dict is
            nested features, a dtype is a scalar, and `str` is text; or the text of a
            `features.json`.

    Raises:
        FeatureError: A feature cannot be written; its name is in the error.
        TypeError: The value is something else.

    Examples:
        >>> print(given_features({"x": "float32", "image": LeafFeature(kind="image")})["image"])
        image[?, ?, 3], uint8
    """
    tree = features_from_json(value) if isinstance(value, str | bytes) else to_tree(value, "")
    if not isinstance(tree, FeaturesDict):
        raise FeatureError("the features of a data set are a dict of features by name")
    return complete_dict(tree, "")


def to_tree(value: Any, name: str) -> Feature:
    """The feature that a value means."""
    if isinstance(value, LeafFeature | FeaturesDict | SequenceFeature):
        return value
    if isinstance(value, Mapping):
        return FeaturesDict({key: to_tree(child, join(name, key)) for key, child in value.items()})
    if value is str:
        return LeafFeature(kind="text", dtype="bytes")
    found = "bytes" if value is bytes else dtype_name(value)
    found = {"str": "bytes", "string": "bytes", "object": "bytes"}.get(found, found)
    if found not in (*NUMBERS, "bytes"):
        raise TypeError(
            f"features: {name or 'the tree'} is {describe_value(value)}: pass a LeafFeature, a "
            "SequenceFeature, a dict of features, a dtype, or str for text"
        )
    return LeafFeature(kind="tensor", dtype=found)


def join(name: str, key: Any) -> str:
    """The name of a feature within another one."""
    return f"{name}/{key}" if name else str(key)


def complete(feature: Feature, name: str) -> Feature:
    """A feature with its defaults, and those within it."""
    if isinstance(feature, SequenceFeature):
        return replace(feature, feature=complete(to_tree(feature.feature, name), name))
    if not isinstance(feature, LeafFeature):
        return complete_dict(feature, name)
    try:
        return complete_leaf(feature)
    except FeatureError as error:
        raise FeatureError(error.reason, name or None) from None


def complete_dict(features: FeaturesDict, name: str) -> FeaturesDict:
    """Features by name, sorted as a reader has them."""
    for key in features.features:
        if not isinstance(key, str) or not key:
            raise FeatureError(f"a feature's name is {describe_value(key)}", name or None)
    return FeaturesDict(
        {
            key: complete(to_tree(child, join(name, key)), join(name, key))
            for key, child in sorted(features.features.items())
        }
    )


def complete_leaf(leaf: LeafFeature) -> LeafFeature:
    """A value, with the shape, dtype and encoding that its kind has unless others are given."""
    if leaf.kind not in COMPLETED:
        known = join_names([repr(kind) for kind in COMPLETED])
        raise FeatureError(f"there is no kind {describe_value(leaf.kind)}: there are {known}")
    leaf = COMPLETED[leaf.kind](leaf)
    if leaf.optional and leaf.kind not in ("tensor", "text"):
        raise FeatureError(f"only tensors and texts may be optional, and not {leaf.kind}")
    check_stored(leaf)
    return leaf


def check_stored(leaf: LeafFeature) -> None:
    """Checks that a leaf's dtype and encoding are among those of its kind."""
    if leaf.dtype not in (*NUMBERS, "bytes"):
        raise FeatureError(f"there is no dtype {describe_value(leaf.dtype)} in such folders")
    encodings = ENCODINGS.get(leaf.kind, ("none",))
    if leaf.encoding not in encodings:
        allowed = join_names([repr(each) for each in encodings])
        raise FeatureError(f"the encoding of {leaf.kind} is one of {allowed}")
    if leaf.dtype == "bytes" and leaf.encoding in ("bytes", "zlib"):
        raise FeatureError("byte strings have no encoding: compress them, or leave it out")


def complete_image(leaf: LeafFeature) -> LeafFeature:
    """An image or a video."""
    unknown = (None,) * (2 + (leaf.kind == "video"))
    leaf = replace(
        leaf,
        shape=leaf.shape or (*unknown, 1 if leaf.kind == "labeled image" else 3),
        dtype="uint8" if leaf.dtype == DEFAULT.dtype else leaf.dtype,
        encoding="" if leaf.encoding == DEFAULT.encoding else leaf.encoding,
        names=checked_names(leaf) if leaf.kind == "labeled image" else None,
    )
    if leaf.dtype not in ("uint8", "uint16", "float32"):
        raise FeatureError(f"images have uint8, uint16 or float32 pixels, and not {leaf.dtype}")
    if len(leaf.shape) != len(unknown) + 1 or leaf.shape[-1] not in (1, 2, 3, 4):
        raise FeatureError("the last of an image's sizes is its number of channels, 1 to 4")
    if leaf.encoding == "jpeg" and leaf.dtype != "uint8":
        raise FeatureError("a JPEG has uint8 pixels: leave the encoding out")
    if leaf.dtype == "float32" and leaf.shape[-1] != 1:
        raise FeatureError("an image of float32 has one channel")
    return leaf


def checked_names(leaf: LeafFeature) -> tuple[str, ...]:
    """The names of classes, which a file with a line for each can keep.

    Raises:
        FeatureError: There are none; or one is empty, twice there, or would change in the file.
    """
    names = tuple(leaf.names or ())
    if leaf.names is None:
        raise FeatureError("a label has the names of its classes: LeafFeature(..., names=...)")
    for name in names:
        if not isinstance(name, str) or not name or name != name.strip() or "\n" in name:
            raise FeatureError(
                f"the name of a class is {describe_value(name)}: each is a line of a file, without "
                "spaces around it"
            )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FeatureError(f"two classes have the name {describe_value(twice)}")
    return names


COMPLETED: Final[Mapping[str, Callable[[LeafFeature], LeafFeature]]] = {
    "tensor": lambda leaf: leaf,
    "text": lambda leaf: replace(leaf, shape=(), dtype="bytes", encoding="none"),
    "label": lambda leaf: replace(leaf, shape=(), dtype="int64", names=checked_names(leaf)),
    "audio": lambda leaf: replace(leaf, shape=leaf.shape or (None,)),
    "box": lambda leaf: replace(leaf, shape=(4,), dtype="float32"),
    **dict.fromkeys(IMAGES, complete_image),
}
"""What completes a leaf of each kind. A box, a text and a label have one shape and dtype."""
