"""A counter is written down once: its field, its metric and its sentence agree."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest

from streamrec.pipeline import StageStats, Stats
from streamrec.storage import Counts
from streamrec.storage.counters import Metric, counter, explain_counters, metrics_of

CLASSES = [Counts, StageStats, Stats]


@explain_counters
@dataclass(frozen=True, kw_only=True)
class Example:
    """What an example did.

    Attributes:
        title: Its name.
    """

    title: str
    sent: int = counter("By", "Bytes sent.", name="sent_bytes")
    busy: float = counter("s", "Time that it worked.", of="part")
    failures: int = counter("1", "Attempts that failed.", required=True)


def test_a_counter_is_a_field_and_a_metric() -> None:
    assert Example(title="x", failures=3) == Example(title="x", sent=0, busy=0.0, failures=3)
    assert isinstance(Example(title="x", failures=0).busy, float)
    assert metrics_of(Example) == (
        Metric("sent", "sent_bytes", "By", "Bytes sent."),
        Metric("busy", "part.busy_seconds", "s", "Time that it worked."),
        Metric("failures", "failures", "1", "Attempts that failed."),
    )


def test_a_required_counter_has_no_default() -> None:
    with pytest.raises(TypeError, match="failures"):
        Example(title="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("cls", [Example, *CLASSES])
def test_the_docstring_explains_each_field_once(cls: Any) -> None:
    assert is_dataclass(cls)
    before, _, attributes = str(cls.__doc__).partition("    Attributes:\n")
    assert before
    names: list[str] = []
    for line in attributes.splitlines():
        if line.startswith("        ") and line[8] != " ":
            names += line.strip().partition(":")[0].split(", ")
    assert sorted(names) == sorted(field.name for field in fields(cls))


@pytest.mark.parametrize("cls", CLASSES)
def test_units_are_those_of_exporters_and_names_end_with_seconds(cls: Any) -> None:
    metrics = metrics_of(cls)
    assert metrics
    assert {metric.unit for metric in metrics} <= {"1", "By", "s"}
    assert all(metric.name.endswith("_seconds") == (metric.unit == "s") for metric in metrics)
    assert len({metric.name for metric in metrics}) == len(metrics)
