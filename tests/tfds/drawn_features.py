"""Drawn trees of features with examples that fit them."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from streamrec import RaggedTensor
from streamrec.tfds import FeaturesDict, LeafFeature, SequenceFeature

DTYPES = ["bool", "int8", "int64", "uint8", "uint64", "float16", "float32", "bytes"]


class Drawn(NamedTuple):
    """A tree of features, and examples of it."""

    features: FeaturesDict
    examples: list[dict[str, Any]]


@st.composite
def drawn_features(draw: st.DrawFn, for_peer: bool = False) -> Drawn:
    """A tree, and one to three examples.

    With `for_peer`, arrays in sequences have known sizes: TensorFlow Datasets cannot read an empty
    sequence of others.
    """
    tree = draw_dict(draw, 0, 2)
    if for_peer:
        tree = with_known_sizes(tree, 0)
    examples = [draw_value(draw, tree) for _ in range(draw(st.integers(1, 3)))]
    return Drawn(tree, examples)


def draw_dict(draw: st.DrawFn, depth: int, levels: int) -> FeaturesDict:
    """Features by name, within `depth` sequences."""
    names = draw(st.lists(st.sampled_from("abcdé"), min_size=1, max_size=3, unique=True))
    return FeaturesDict({name: draw_feature(draw, depth, levels) for name in sorted(names)})


def draw_feature(draw: st.DrawFn, depth: int, levels: int) -> Any:
    """A feature with up to `levels` of others within it."""
    kind = draw(st.sampled_from(["leaf", "leaf", "dict", "sequence"])) if levels else "leaf"
    if kind == "dict":
        return draw_dict(draw, depth, levels - 1)
    if kind == "sequence":
        inner = draw_feature(draw, depth + 1, levels - 1)
        return SequenceFeature(feature=inner)
    kind = draw(st.sampled_from(["tensor", "tensor", "text", "label"]))
    if kind == "text":
        return LeafFeature(kind="text", dtype="bytes", optional=True)
    if kind == "label":
        return LeafFeature(kind="label", names=("cat", "dög"))
    dtype = draw(st.sampled_from(DTYPES))
    encoding = "none" if dtype == "bytes" else draw(st.sampled_from(["none", "bytes", "zlib"]))
    # Numbers keep one unknown size, which a sequence around them has already.
    unknown = 0 if depth else 1
    if encoding != "none":
        unknown = 1 if depth > 1 else 2
    shape = draw(st.lists(st.sampled_from([1, 2, None]), max_size=3))
    for axis, size in enumerate(shape):
        if size is None and shape[: axis + 1].count(None) > unknown:
            shape[axis] = 2
    return LeafFeature(kind="tensor", shape=tuple(shape), dtype=dtype, encoding=encoding)


def with_known_sizes(feature: Any, depth: int) -> Any:
    """The feature, with 2 for each unknown size within sequences."""
    if isinstance(feature, FeaturesDict):
        return FeaturesDict(
            {name: with_known_sizes(each, depth) for name, each in feature.features.items()}
        )
    if isinstance(feature, SequenceFeature):
        return replace(feature, feature=with_known_sizes(feature.feature, depth + 1))
    shape = tuple(2 if size is None and depth else size for size in feature.shape)
    return replace(feature, shape=shape)


def draw_value(draw: st.DrawFn, feature: Any) -> Any:
    """A value that fits a feature."""
    if isinstance(feature, FeaturesDict):
        return {name: draw_value(draw, child) for name, child in feature.features.items()}
    if isinstance(feature, SequenceFeature):
        return [draw_value(draw, feature.feature) for _ in range(draw(st.integers(0, 3)))]
    if feature.kind == "text":
        return draw(st.text(max_size=3)).encode()
    if feature.kind == "label":
        return draw(st.integers(-1, 1))
    shape = tuple(draw(st.integers(0, 3)) if size is None else size for size in feature.shape)
    if feature.dtype == "bytes":
        values = np.empty(shape, object)
        for place in np.ndindex(shape):
            values[place] = draw(st.binary(max_size=3))
        return values if shape else values[()]
    seed = draw(st.integers(0, 2**16))
    dtype = np.dtype(feature.dtype)
    random = np.random.default_rng(seed)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def expected(feature: Any, value: Any, depth: int = 0) -> Any:
    """What a reader gives for a value within `depth` lists: dicts of columns for lists of dicts."""
    if isinstance(feature, FeaturesDict):
        return {
            name: expected(child, taken(value, name, depth), depth)
            for name, child in feature.features.items()
        }
    if isinstance(feature, SequenceFeature):
        return expected(feature.feature, value, depth + 1)
    return value


def taken(value: Any, name: str, depth: int) -> Any:
    """The member of each dict within `depth` lists."""
    return [taken(one, name, depth - 1) for one in value] if depth else value[name]


def plain(value: Any) -> Any:
    """Nested lists, dicts and Python's scalars."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, RaggedTensor):
        return plain(value.to_list())
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return value.tolist()
    if isinstance(value, np.ndarray | list):
        return [plain(one) for one in value]
    return value
