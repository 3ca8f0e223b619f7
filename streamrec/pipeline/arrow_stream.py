"""A Dataset as a stream of Arrow record batches: each batch of it becomes one, while the pipeline runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from streamrec import kernels
from streamrec.errors import StreamrecError
from streamrec.example.arrow import Described, described_column
from streamrec.pipeline import stages
from streamrec.pipeline.engine.description import Chain
from streamrec.tfrecord import Frames

__all__ = ["arrow_stream"]

RECORD: Final = "record"
"""The one column of a batch of records that nobody parsed."""


def arrow_stream(chain: Chain, batches: Iterator[Any]) -> object:
    """The capsule `arrow_array_stream` of a run's batches.

    Raises:
        TypeError: An element is no batch of records or columns.
        StreamrecError: The first batch cannot be had, or there is none and so no schema.
    """
    first = next(batches, None)
    if first is None:
        first = _nothing(chain)
    described = _described(first)
    return kernels.arrow_stream(described, _Batches(described, batches).next)


class _Batches:
    """Describes one batch after the other. All of them must have the schema of the first."""

    def __init__(self, first: Described, batches: Iterator[Any]) -> None:
        self._waiting: Described | None = first
        self._schema = _schema(first)
        self._batches = batches

    def next(self) -> Described | None:
        if self._waiting is not None:
            described, self._waiting = self._waiting, None
            return described
        batch = next(self._batches, None)
        if batch is None:
            return None
        described = _described(batch)
        if _schema(described) != self._schema:
            self._differs(described)
        return described

    def _differs(self, described: Described) -> None:
        pairs = zip(self._schema[2], _schema(described)[2], strict=False)
        for before, now in pairs:
            if before != now:
                raise StreamrecError(
                    f"column {now[1]!r} is {now[0]} in Arrow's words, and was {before[0]} in the batches before: parse "
                    "features whose shape differs from record to record with a RaggedFeature"
                )
        raise StreamrecError("a batch has other columns than those before it")


def _described(batch: Any) -> Described:
    if isinstance(batch, Mapping):
        return described_column("", batch)
    if isinstance(batch, Frames):
        return described_column("", {RECORD: batch})
    raise TypeError(
        f"an element is {type(batch).__name__}: Arrow takes batches of records or of columns; "
        "call batch(n), and parse_example(features)"
    )


def _schema(described: Described) -> tuple[Any, ...]:
    form, name, _, _, children = described
    return (form, name, tuple(map(_schema, children)))


def _nothing(chain: Chain) -> Any:
    """A batch without rows, whose schema the pipeline's last stage knows."""
    last = chain.stages[-1] if chain.stages else None
    if isinstance(last, stages.Parse):
        return last([])
    raise StreamrecError("the dataset has no element, and so no schema: end it with parse_example(features)")
