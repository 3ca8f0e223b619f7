"""Counters: fields of frozen descriptions, each with what exporters and readers must know of it.

A counter is written down once, as a field: `requests: int = counter("1", "Requests sent.")`. The
decorator `explain_counters` adds it to the docstring of the class, `metrics_of` gives its names to
exporters, and `sum_counters` and `subtract_counters` reckon with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

C = TypeVar("C")

_METRIC: Final = "streamrec"
"""The key in the metadata of a dataclass's field."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter, as exporters name it.

    Attributes:
        field: The field of its class.
        name: The metric's name with the unit, without prefix and suffix.
        unit: In the notation of UCUM: "By", "s", or "1".
        help: A sentence that describes it.
    """

    field: str
    name: str
    unit: str
    help: str


def counter(unit: str, help: str, *, name: str = "", of: str = "", required: bool = False) -> Any:
    """Makes a field that is a counter.

    Args:
        unit: In the notation of UCUM: "By", "s" for seconds, or "1" for a plain number.
        help: A sentence that describes it.
        name: The metric's name without the unit "s"; by default the field's.
        of: A prefix of the metric's name: what it counts for, such as "stage".
        required: Whether it has no default; by default it is 0, or 0.0 for seconds.
    """
    metadata = {_METRIC: (unit, help, name, of)}
    if required:
        return field(metadata=metadata)
    return field(default=0.0 if unit == "s" else 0, metadata=metadata)


def metrics_of(cls: Any) -> tuple[Metric, ...]:
    """The counters of a dataclass, in the order of its fields.

    >>> @dataclass
    ... class Written:
    ...     path: str
    ...     size: int = counter("By", "Bytes written.", name="written_bytes")
    ...     waited: float = counter("s", "Time without a free slot.", of="upload")
    >>> [(metric.field, metric.name, metric.unit) for metric in metrics_of(Written)]
    [('size', 'written_bytes', 'By'), ('waited', 'upload.waited_seconds', 's')]
    >>> Written("x")
    Written(path='x', size=0, waited=0.0)
    """
    metrics = []
    for each in fields(cls):
        if _METRIC not in each.metadata:
            continue
        unit, help, name, of = each.metadata[_METRIC]
        full = (f"{of}." if of else "") + (name or each.name) + ("_seconds" if unit == "s" else "")
        metrics.append(Metric(each.name, full, unit, help))
    return tuple(metrics)


def sum_counters(parts: Sequence[Any]) -> dict[str, Any]:
    """The sums of the counters of several objects of one class, by the fields' names.

    >>> @dataclass
    ... class Written:
    ...     path: str
    ...     size: int = counter("By", "Bytes written.")
    >>> sum_counters([Written("x", 1), Written("y", 2)])
    {'size': 3}
    """
    return {
        metric.field: sum(getattr(part, metric.field) for part in parts)
        for metric in metrics_of(type(parts[0]))
    }


def subtract_counters(later: Any, earlier: Any) -> dict[str, Any]:
    """What the counters of two snapshots of one class differ by, by the fields' names.

    >>> @dataclass
    ... class Written:
    ...     path: str
    ...     size: int = counter("By", "Bytes written.")
    >>> subtract_counters(Written("x", 5), Written("x", 2))
    {'size': 3}
    """
    return {
        metric.field: getattr(later, metric.field) - getattr(earlier, metric.field)
        for metric in metrics_of(type(later))
    }


def explain_counters(cls: type[C]) -> type[C]:
    """Adds the counters of a dataclass to its docstring, whose last section is "Attributes"."""
    if cls.__doc__ is not None:  # python -OO drops it
        lines = [f"    {metric.field}: {metric.help}" for metric in metrics_of(cls)]
        indented = "\n".join(f"    {line}" for line in lines)
        cls.__doc__ = f"{cls.__doc__.rstrip()}\n{indented}\n    "
    return cls
