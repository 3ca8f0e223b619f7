"""A counter is written down once: its field, its metric and its sentence agree."""

import re
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from streamrec.pipeline import StageStats, Stats
from streamrec.storage import Counts
from streamrec.storage.counters import (
    Metric,
    counter,
    explain_counters,
    level,
    metrics_of,
    subtract_counters,
    sum_counters,
)

CLASSES = [Counts, StageStats, Stats]
DOCS = Path(__file__).parents[3] / "docs"


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
    taken: int = counter("1", "Elements that were taken.", exported=False)
    waiting: int = level("Elements that wait now.")


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


def test_a_level_adds_up_over_readers_and_has_no_difference() -> None:
    early = Example(title="x", failures=1, taken=10, waiting=5)
    late = Example(title="x", failures=4, taken=30, waiting=2)
    assert subtract_counters(late, early) == {"sent": 0, "busy": 0.0, "failures": 3, "taken": 20}
    assert sum_counters([early, late]) == {
        "sent": 0,
        "busy": 0.0,
        "failures": 5,
        "taken": 40,
        "waiting": 7,
    }


@pytest.mark.parametrize(
    ("cls", "page"),
    [(Counts, "bad-networks.md"), (StageStats, "statistics.md"), (Stats, "statistics.md")],
)
def test_a_page_for_users_explains_each_field(cls: Any, page: str) -> None:
    rows = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    named = " ".join(re.findall("`[^`]+`", "\n".join(rows)))
    missing = [each.name for each in fields(cls) if not re.search(rf"\b{each.name}\b", named)]
    assert missing == []


@pytest.mark.parametrize("cls", CLASSES)
def test_units_are_those_of_exporters_and_names_end_with_seconds(cls: Any) -> None:
    metrics = metrics_of(cls)
    assert metrics
    assert {metric.unit for metric in metrics} <= {"1", "By", "s"}
    assert all(metric.name.endswith("_seconds") == (metric.unit == "s") for metric in metrics)
    assert len({metric.name for metric in metrics}) == len(metrics)
