"""The figures of README.md are those of benchmarks/results/, and docs/benchmarks.md names each module and its data."""

import json
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest

from benchmarks.machine import RESULTS
from tests.pages import ROOT


def data(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def row(name: str, **wanted: object) -> dict[str, Any]:
    """The one row of a benchmark's data that has these values."""
    [found] = [one for one in data(name)["rows"] if all(one.get(key) == value for key, value in wanted.items())]
    return found


def two(value: float) -> str:
    """Two significant places, halves rounded up."""
    exact = Decimal(repr(value))
    return str(exact.quantize(Decimal(1).scaleb(min(0, exact.adjusted() - 1)), ROUND_HALF_UP))


def of_streamrec(name: str, kind: str, other: str) -> str:
    found = row(name, row=kind)
    return two(found["dataset"]["mb_s"] / found[other]["mb_s"])


FIGURES: dict[str, Callable[[], list[str]]] = {
    "benchmarks.local`": lambda: [two(one["ratio"]) for one in data("local")["rows"]],
    "benchmarks.pipeline --only forty`": lambda: [
        two(row("pipeline", row="forty")["tf.data"][key]) for key in ("ratio", "cpu_ratio")
    ],
    "benchmarks.pipeline --only images`": lambda: [
        two(row("pipeline", row="images")["tf.data"][key]) for key in ("ratio", "cpu_ratio")
    ],
    "benchmarks.encode`": lambda: [two(row("encode", records="four scalar features")["ratio"])],
    "benchmarks.training`": lambda: [
        two(row("training", side=side)["speed"]) for side in ("streamrec", "tf.data", "DataLoader")
    ],
    "benchmarks.tls --only nginx`": lambda: [
        two(row("tls", server="nginx", tls=True)["streamrec"][f"{key}_of_bare"]) for key in ("mb_s", "cpu")
    ],
    "benchmarks.paced --only large`": lambda: [
        of_streamrec("paced", "large", one) for one in ("s3fs_open", "gcsfs_open")
    ],
    "benchmarks.paced --only small`": lambda: [of_streamrec("paced", "small", "s3fs_open")],
}
"""What stands in the row of a command, in this order."""


def table() -> list[str]:
    text = (ROOT / "README.md").read_text()
    return re.findall(r"^\| .*`benchmarks\..*$", text, re.MULTILINE)


def test_the_table_is_short_and_each_row_is_checked() -> None:
    assert len(table()) == len(FIGURES) <= 8


@pytest.mark.parametrize("command", FIGURES)
def test_figures(command: str) -> None:
    [line] = [one for one in table() if command in one]
    result = line.split("|")[3]
    assert re.findall(r"\d+(?:\.\d+)?", result) == FIGURES[command](), line


def test_every_module_with_data_is_on_the_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for path in RESULTS.glob("*.json"):
        module = path.stem.removesuffix("_memory")
        assert f"benchmarks.{module}" in page, f"docs/benchmarks.md says nothing of {path.name}"
