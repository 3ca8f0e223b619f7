"""From feature configurations to what a walk looks for: pure planning, done once for each description.

The order of slots is the order of TensorFlow's results: sparse keys, dense keys, ragged keys, each in the
sorted order of the features that ask for them. SparseFeature and RaggedFeature ask for keys of their own,
which two features may share; a key that is asked for in two ways is refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamrec.arguments import described
from streamrec.errors import FeatureError
from streamrec.example.features import (
    Dtype,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    default_array,
    encode_name,
)
from streamrec.example.parsing.walk import Slot

__all__ = ["Plan", "padding_of", "plan_context", "plan_examples", "plan_lists"]


@dataclass(frozen=True, eq=False)
class Plan:
    """What to look for, and what to make of it.

    Args:
        features: The description, in sorted order.
        slots: What the walk looks for, in the order of the results.
        forms: For each slot, the configuration that says what becomes of its values: FixedLenFeature (an
            array), FixedLenSequenceFeature (a padded array), VarLenFeature (a SparseTensor) or RaggedFeature
            (a RaggedTensor, with its row_splits_dtype).
        composite: Whether results must be combined further: there is a SparseFeature or RaggedFeature.

    Attributes:
        as_found: For each slot whether what a walk finds in a batch is the result: numbers, one for each record.
    """

    features: dict[str, Feature]
    slots: tuple[Slot, ...]
    forms: tuple[Feature, ...]
    composite: bool

    @cached_property
    def as_found(self) -> tuple[bool, ...]:
        return tuple(slot.dense and not slot.shape and slot.dtype is not bytes for slot in self.slots)


def plan_examples(features: Mapping[str, Feature], single: bool) -> Plan:
    """The plan for Example messages.

    Args:
        features: Any configurations; a FixedLenSequenceFeature must have `allow_missing=True`.
        single: Whether one example is parsed without a batch dimension.

    Raises:
        FeatureError: An empty description, or features that don't go together.
    """
    if not features:
        raise FeatureError("features is empty; describe at least one feature")
    return _cached(_plan_examples, check_features(features), single)


def plan_context(features: Mapping[str, Feature] | None) -> Plan:
    """The plan for a SequenceExample's context: FixedLen-, VarLen- and RaggedFeature."""
    return _cached(_plan_context, check_features(features or {}))


def plan_lists(features: Mapping[str, Feature] | None) -> Plan:
    """The plan for a SequenceExample's feature lists: FixedLenSequence-, VarLen- and RaggedFeature."""
    return _cached(_plan_lists, check_features(features or {}))


def check_features(features: Any) -> tuple[tuple[str, Feature], ...]:
    """A description's features by their keys.

    Raises:
        FeatureError: It is not a dict of feature configurations.
    """
    if not isinstance(features, Mapping):
        raise FeatureError(
            f"features is {described(features)}: it must be a dict of feature configurations, such as "
            "{'image': FixedLenFeature([], bytes)}"
        )
    return tuple(features.items())


def _cached(make: functools._lru_cache_wrapper[Plan], *arguments: Any) -> Plan:
    """The plan of a description that was seen before, or a new one."""
    try:
        return make(*arguments)
    except TypeError:  # something unhashable, which is not a configuration: making the plan says so
        return make.__wrapped__(*arguments)


@functools.lru_cache(maxsize=64)
def _plan_examples(items: tuple[tuple[str, Feature], ...], single: bool) -> Plan:
    for name, feature in items:
        if isinstance(feature, FixedLenSequenceFeature) and not feature.allow_missing:
            raise FeatureError("a FixedLenSequenceFeature of an Example needs allow_missing=True", name)
    kinds = (VarLenFeature, SparseFeature, FixedLenFeature, FixedLenSequenceFeature, RaggedFeature)
    plan = _plan(items, kinds)
    if single:
        return plan
    pairs = zip(plan.slots, plan.forms, strict=True)
    return replace(plan, slots=tuple(_batch_slot(slot, form) for slot, form in pairs))


def _batch_slot(slot: Slot, form: Feature) -> Slot:
    """The slot of a batch of Examples: numbers that are padded in the end are found so."""
    if not isinstance(form, FixedLenSequenceFeature):
        return replace(slot, empty_counts=not slot.dense)
    pad = padding_of(form)
    return slot if isinstance(pad, bytes) else replace(slot, pad=np.dtype(form.dtype).type(pad))


def padding_of(form: FixedLenSequenceFeature) -> Any:
    """What the values of shorter examples are filled up with."""
    default = form.default_value
    while isinstance(default, tuple):  # one value, in any nesting
        default = default[0]
    if form.dtype is bytes:
        return default.encode() if isinstance(default, str) else default or b""
    return default or 0


@functools.lru_cache(maxsize=64)
def _plan_context(items: tuple[tuple[str, Feature], ...]) -> Plan:
    return _plan(items, (VarLenFeature, FixedLenFeature, RaggedFeature))


@functools.lru_cache(maxsize=64)
def _plan_lists(items: tuple[tuple[str, Feature], ...]) -> Plan:
    for name, feature in items:
        if isinstance(feature, FixedLenSequenceFeature) and feature.default_value is not None:
            raise FeatureError("a feature list is padded with 0 or b''; leave default_value out", name)
    plan = _plan(items, (VarLenFeature, FixedLenSequenceFeature, RaggedFeature))
    pairs = zip(plan.slots, plan.forms, strict=True)
    return replace(plan, slots=tuple(_step_slot(slot, form) for slot, form in pairs))


def _step_slot(slot: Slot, form: Feature) -> Slot:
    if not isinstance(form, FixedLenSequenceFeature):
        return slot
    return replace(slot, dense=True, required=not form.allow_missing)


def _plan(items: tuple[tuple[str, Feature], ...], kinds: tuple[type, ...]) -> Plan:
    groups = _Groups({}, {}, {})
    for name, feature in items:
        encode_name(name)
        if not isinstance(feature, kinds):
            wanted = ", ".join(kind.__name__ for kind in kinds)
            raise FeatureError(f"{type(feature).__name__} where one of {wanted} is wanted", name)
    features = dict(sorted(items))
    for name, feature in features.items():
        groups.add(name, feature)
    groups.refuse_overlaps()
    forms = groups.sparse | groups.dense | groups.ragged
    composite = any(isinstance(feature, SparseFeature | RaggedFeature) for feature in features.values())
    return Plan(features, tuple(map(_slot, forms, forms.values())), tuple(forms.values()), composite)


@dataclass(frozen=True)
class _Groups:
    """The keys to look for, by the form of their result."""

    sparse: dict[str, Feature]
    dense: dict[str, Feature]
    ragged: dict[str, Feature]

    def add(self, name: str, feature: Feature) -> None:
        if isinstance(feature, VarLenFeature):
            self._add_sparse(name, feature.dtype)
        elif isinstance(feature, SparseFeature):
            for key in sorted(feature.index_keys):
                self._add_sparse(key, np.int64)
            self._add_sparse(feature.value_key, feature.dtype)
        elif isinstance(feature, RaggedFeature):
            self._add_ragged(feature.value_key or name, RaggedFeature(feature.dtype), feature)
            for partition in feature.partitions:
                if not isinstance(partition, RaggedFeature.UniformRowLength):
                    self._add_ragged(partition.key, RaggedFeature(np.int64), feature)
        else:
            self.dense[name] = feature

    def _add_sparse(self, key: str, dtype: Dtype) -> None:
        form = VarLenFeature(dtype)
        if self.sparse.setdefault(key, form) != form:
            raise FeatureError("two features want this key as values of different dtypes", key)

    def _add_ragged(self, key: str, form: RaggedFeature, feature: RaggedFeature) -> None:
        form = RaggedFeature(form.dtype, row_splits_dtype=feature.row_splits_dtype)
        if self.ragged.setdefault(key, form) != form:
            raise FeatureError("two features want this key with different dtypes or row_splits_dtypes", key)

    def refuse_overlaps(self) -> None:
        for one, other in ((self.dense, self.sparse), (self.dense, self.ragged), (self.ragged, self.sparse)):
            shared = sorted(one.keys() & other.keys())
            if shared:
                raise FeatureError("two features want this key in different forms (dense, sparse, ragged)", shared[0])


def _slot(name: str, form: Feature) -> Slot:
    if isinstance(form, FixedLenFeature):
        size = math.prod(form.shape)
        default = None
        if form.default_value is not None and size:  # TensorFlow takes an empty default for none
            default = default_array(form.default_value, form.dtype, form.shape)
        return Slot(name, form.dtype, True, size, default, default is None, shape=form.shape)
    if isinstance(form, FixedLenSequenceFeature):
        return Slot(name, form.dtype, size=math.prod(form.shape), shape=form.shape)
    return Slot(name, form.dtype)
