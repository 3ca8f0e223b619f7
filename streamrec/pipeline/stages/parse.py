"""Parses batches of records: Frames to columns, without an object for each record.

`Parse` is a stage, and also a function that `ParallelMap` calls for several batches at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np

from streamrec.arguments import check_fields, check_flag, check_mapping
from streamrec.example.columns import Column
from streamrec.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.parse import is_scalar, parse_batch, parse_single_example
from streamrec.example.walk import ParsePlan, check_features, make_plan
from streamrec.pipeline.elements.columns import is_nest
from streamrec.pipeline.elements.specs import RaggedTensorSpec, SparseTensorSpec, TensorSpec
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling

FEATURES: Final = "feature configurations, such as {'image': FixedLenFeature([], bytes)}"


def feature_dict(name: str, features: Any) -> dict[str, Feature]:
    """Checks a description of features, and copies it: changes of it later have no effect."""
    return dict(check_mapping(name, features, FEATURES))


@dataclass(frozen=True)
class Parse(Stage):
    """Parses each element, a batch of serialized Example messages, into columns."""

    features: Mapping[str, Feature]
    string_columns: bool = False
    offload: ClassVar[Offload] = Offload.LONG
    one_to_one: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self, features=feature_dict, string_columns=check_flag)
        check_features("examples", self.features)

    def element_spec(self, spec: Any) -> Any:
        if (
            is_nest(spec)
            or spec.dtype != np.dtype(object)
            or spec.shape is None
            or len(spec.shape) > 1
        ):
            return None
        columns = {key: column_spec(feature, spec.shape) for key, feature in self.features.items()}
        return None if None in columns.values() else columns

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        return count, rows

    def start(self, key: str, state: int | None) -> Step:
        return Calling(self, at_end=self._name_unseen)

    @cached_property
    def _plan(self) -> ParsePlan:
        return make_plan("examples", self.features)

    def _name_unseen(self) -> None:
        if "_plan" in vars(self):  # something was parsed
            self._plan.warn_of_unseen()

    def __call__(self, serialized: Any) -> dict[str, Column]:
        if isinstance(serialized, Mapping):
            raise TypeError(
                "parse_example takes records (bytes), but this element is a dict: is it parsed "
                "already?"
            )
        if is_scalar(serialized):
            return parse_single_example(
                serialized, self.features, string_columns=self.string_columns
            )
        return parse_batch(self._plan, serialized, self.string_columns)[0]


def column_spec(feature: Any, batch: tuple[int | None, ...]) -> Any:
    """The spec of one feature's column; None if it is unknown."""
    match feature:
        case FixedLenFeature():
            return TensorSpec((*batch, *feature.shape), feature.dtype)
        case FixedLenSequenceFeature():
            return TensorSpec((*batch, None, *feature.shape), feature.dtype)
        case VarLenFeature():
            return SparseTensorSpec((*batch, None), feature.dtype)
        case SparseFeature():
            return SparseTensorSpec((*batch, *np.atleast_1d(feature.size).tolist()), feature.dtype)
        case RaggedFeature(partitions=()):
            return (
                RaggedTensorSpec((*batch, None), feature.dtype, 1)
                if batch
                else TensorSpec((None,), feature.dtype)
            )
        case _:
            return None
