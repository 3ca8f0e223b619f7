"""Counters: fields of frozen descriptions, each with what exporters and readers must know of it.

A counter is written down once, as a field: `requests: int = counter("1", "Requests sent.")`. The
decorator `explain_counters` adds it to the docstring of the class, `metrics_of` gives its names to
exporters, and `sum_counters` and `subtract_counters` reckon with it. A `level` is a number at one
moment, such as the length of a queue: those of several readers add up, too, but there is no
difference between two moments, and exporters treat it on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

C = TypeVar("C")

_METRIC: Final = "streamrec"
"""The key of a `_Described` in the metadata of a dataclass's field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """What is written down of a field.

    Attributes:
        help: A sentence that describes it.
        unit, name, of: As of `counter`.
        exported: Whether exporters have it.
        falls: Whether it may fall, so that two moments are not subtracted.
    """

    help: str
    unit: str = "1"
    name: str = ""
    of: str = ""
    exported: bool = False
    falls: bool = False


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


def counter(
    unit: str,
    help: str,
    *,
    name: str = "",
    of: str = "",
    required: bool = False,
    exported: bool = True,
) -> Any:
    """Makes a field that is a counter.

    Args:
        unit: In the notation of UCUM: "By", "s" for seconds, or "1" for a plain number.
        help: A sentence that describes it.
        name: The metric's name without the unit "s"; by default the field's.
        of: A prefix of the metric's name: what it counts for, such as "stage".
        required: Whether it has no default; by default it is 0, or 0.0 for seconds.
        exported: Whether exporters have it.
    """
    metadata = {_METRIC: _Described(help=help, unit=unit, name=name, of=of, exported=exported)}
    if required:
        return field(metadata=metadata)
    return field(default=0.0 if unit == "s" else 0, metadata=metadata)


def level(help: str, *, default: int | None = 0) -> Any:
    """Makes a field that is a number at one moment; None for no default."""
    metadata = {_METRIC: _Described(help=help, falls=True)}
    return (
        field(metadata=metadata) if default is None else field(default=default, metadata=metadata)
    )


def _described(cls: Any) -> dict[str, _Described]:
    """The counters and levels of a dataclass, by their fields' names, in order."""
    return {each.name: each.metadata[_METRIC] for each in fields(cls) if _METRIC in each.metadata}


def metrics_of(cls: Any) -> tuple[Metric, ...]:
    """The counters of a dataclass that exporters have, in the order of its fields.

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
    for name, each in _described(cls).items():
        prefix = f"{each.of}." if each.of else ""
        suffix = "_seconds" if each.unit == "s" else ""
        if each.exported:
            full = f"{prefix}{each.name or name}{suffix}"
            metrics.append(Metric(name, full, each.unit, each.help))
    return tuple(metrics)


def sum_counters(parts: Sequence[Any]) -> dict[str, Any]:
    """The sums of the counters and levels of several objects of one class, by the fields' names.

    >>> @dataclass
    ... class Written:
    ...     path: str
    ...     size: int = counter("By", "Bytes written.")
    ...     queued: int = level("Bytes that wait.")
    >>> sum_counters([Written("x", 1), Written("y", 2, queued=7)])
    {'size': 3, 'queued': 7}
    """
    return {name: sum(getattr(part, name) for part in parts) for name in _described(type(parts[0]))}


def subtract_counters(later: Any, earlier: Any) -> dict[str, Any]:
    """What the counters of two snapshots of one class differ by, by the fields' names.

    >>> @dataclass
    ... class Written:
    ...     path: str
    ...     size: int = counter("By", "Bytes written.")
    ...     queued: int = level("Bytes that wait.")
    >>> subtract_counters(Written("x", 5), Written("x", 2, queued=7))
    {'size': 3}
    """
    return {
        name: getattr(later, name) - getattr(earlier, name)
        for name, each in _described(type(later)).items()
        if not each.falls
    }


def explain_counters(cls: type[C]) -> type[C]:
    """Adds the counters and levels of a dataclass to its docstring, whose last section is
    "Attributes".
    """
    if cls.__doc__ is not None:  # python -OO drops it
        lines = [f"    {name}: {each.help}" for name, each in _described(cls).items()]
        indented = "\n".join(f"    {line}" for line in lines)
        cls.__doc__ = f"{cls.__doc__.rstrip()}\n{indented}\n    "
    return cls
