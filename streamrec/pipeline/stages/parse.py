"""Parsing whole batches of records: Frames in, columns out, no object per record in between.

`Parse` is a stage, and a function for `ParallelMap`: several batches at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from streamrec.example.columns import Column
from streamrec.example.features import Feature
from streamrec.example.parsing.parse import ExampleParser
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Mapped

__all__ = ["Parse"]


@dataclass(frozen=True)
class Parse(Stage):
    """Parses each element, a batch of serialized Example messages, into columns."""

    features: Mapping[str, Feature]
    string_columns: bool = False
    offload: ClassVar[Offload] = Offload.LONG
    one_to_one: ClassVar[bool] = True

    def start(self, key: str, state: int | None) -> Step:
        return Mapped(self)

    @cached_property
    def _parser(self) -> ExampleParser:
        return ExampleParser(self.features, self.string_columns)

    def __call__(self, serialized: Any) -> dict[str, Column]:
        return self._parser(serialized)
