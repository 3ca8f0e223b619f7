"""From feature configurations to what a walk looks for: pure planning, done once for each description.

The order of slots is the order of TensorFlow's results: sparse keys, dense keys, ragged keys, each in the
sorted order of the features that ask for them. SparseFeature and RaggedFeature ask for keys of their own,
which two features may share; a key that is asked for in two ways is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from streamrec.arguments import described
from streamrec.errors import FeatureError
from streamrec.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    default_array,
    encode_name,
)
from streamrec.example.walk import FeatureSlot

MessagePart: TypeAlias = Literal["examples", "example", "context", "lists"]
"""What a description is of: a batch of Examples, one Example, or the context or feature lists of SequenceExamples."""

_OF_EXAMPLES = (VarLenFeature, SparseFeature, FixedLenFeature, FixedLenSequenceFeature, RaggedFeature)
_FEATURES: dict[MessagePart, tuple[type, ...]] = {
    "examples": _OF_EXAMPLES,
    "example": _OF_EXAMPLES,
    "context": (VarLenFeature, FixedLenFeature, RaggedFeature),
    "lists": (VarLenFeature, FixedLenSequenceFeature, RaggedFeature),
}


@dataclass(frozen=True, eq=False)
class ParsePlan:
    """What to look for, and what to make of it.

    Args:
        features: The description, in sorted order.
        slots: What the walk looks for, in the order of the results.
        forms: For each slot, the configuration that says what becomes of its values: FixedLenFeature (an
            array), FixedLenSequenceFeature (a padded array), VarLenFeature (a SparseTensor) or RaggedFeature
            (a RaggedTensor, with its row_splits_dtype).
        as_found: For each slot whether what a walk finds in a batch is the result: numbers, one for each record.
        composite: Whether results must be combined further: there is a SparseFeature or RaggedFeature.
    """

    features: dict[str, Feature]
    slots: tuple[FeatureSlot, ...]
    forms: tuple[Feature, ...]
    as_found: tuple[bool, ...]
    composite: bool


def make_plan(part: MessagePart, features: Any) -> ParsePlan:
    """The plan for a description: a new one, or that of an equal description that was seen before."""
    if not isinstance(features, Mapping):
        raise FeatureError(
            f"features is {described(features)}: it must be a dict of feature configurations, such as "
            "{'image': FixedLenFeature([], bytes)}"
        )
    items = tuple(features.items())
    try:
        return _plan(part, items)
    except TypeError:  # something unhashable, which is not a configuration: making the plan says so
        return _plan.__wrapped__(part, items)


@functools.lru_cache(maxsize=128)
def _plan(part: MessagePart, items: tuple[tuple[str, Feature], ...]) -> ParsePlan:
    if not items and part in ("examples", "example"):
        raise FeatureError("features is empty; describe at least one feature")
    for name, feature in items:
        encode_name(name)
        if not isinstance(feature, _FEATURES[part]):
            wanted = ", ".join(kind.__name__ for kind in _FEATURES[part])
            raise FeatureError(f"{type(feature).__name__} where one of {wanted} is wanted", name)
        if isinstance(feature, FixedLenSequenceFeature) and part != "lists" and not feature.allow_missing:
            raise FeatureError("a FixedLenSequenceFeature of an Example needs allow_missing=True", name)
        if isinstance(feature, FixedLenSequenceFeature) and part == "lists" and feature.default_value is not None:
            raise FeatureError("a feature list is padded with 0 or b''; leave default_value out", name)
    features = dict(sorted(items))
    forms = _forms(features)
    slots = tuple(_slot(part, name, form) for name, form in forms.items())
    as_found = tuple(part != "lists" and slot.dense and not slot.shape and slot.dtype is not bytes for slot in slots)
    composite = any(isinstance(feature, SparseFeature | RaggedFeature) for feature in features.values())
    return ParsePlan(features, slots, tuple(forms.values()), as_found, composite)


def _forms(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """The keys to look for, with the form of their results."""
    sparse: dict[str, Feature] = {}
    dense: dict[str, Feature] = {}
    ragged: dict[str, Feature] = {}

    def want(group: dict[str, Feature], key: str, form: Feature) -> None:
        if group.setdefault(key, form) != form:
            raise FeatureError("two features want this key with different dtypes or row_splits_dtypes", key)

    for name, feature in features.items():
        if isinstance(feature, VarLenFeature):
            want(sparse, name, feature)
        elif isinstance(feature, SparseFeature):
            for key in sorted(feature.index_keys):
                want(sparse, key, VarLenFeature(np.int64))
            want(sparse, feature.value_key, VarLenFeature(feature.dtype))
        elif isinstance(feature, RaggedFeature):
            keys = [(each.key, np.int64) for each in feature.keyed_partitions]
            for key, dtype in [(feature.value_key or name, feature.dtype), *keys]:
                want(ragged, key, RaggedFeature(dtype, row_splits_dtype=feature.row_splits_dtype))
        else:
            dense[name] = feature
    for one, other in ((dense, sparse), (dense, ragged), (ragged, sparse)):
        if shared := sorted(one.keys() & other.keys()):
            raise FeatureError("two features want this key in different forms (dense, sparse, ragged)", shared[0])
    return sparse | dense | ragged


def padding_of(form: FixedLenSequenceFeature) -> Any:
    """What the values of shorter examples are filled up with."""
    default = form.default_value
    while isinstance(default, tuple):  # one value, in any nesting
        default = default[0]
    if form.dtype is bytes:
        return default.encode() if isinstance(default, str) else default or b""
    return default or 0


def _slot(part: MessagePart, name: str, form: Feature) -> FeatureSlot:
    if isinstance(form, FixedLenFeature):
        size = math.prod(form.shape)
        default = None
        if form.default_value is not None and size:  # TensorFlow takes an empty default for none
            default = default_array(form.default_value, form.dtype, form.shape)
        return FeatureSlot(name, form.dtype, True, size, default, default is None, shape=form.shape)
    if isinstance(form, FixedLenSequenceFeature):
        size, is_list = math.prod(form.shape), part == "lists"
        required = is_list and not form.allow_missing
        pad = None if is_list or form.dtype is bytes else np.dtype(form.dtype).type(padding_of(form))
        return FeatureSlot(name, form.dtype, is_list, size, required=required, shape=form.shape, pad=pad)
    return FeatureSlot(name, form.dtype, empty_counts=part == "examples")
