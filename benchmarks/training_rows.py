"""The rows of `benchmarks.training`, made from its runs, and whether they may be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.rounds import median

BAR = 0.95
"""The share of its speed alone that a loop should keep."""

SAME_LOAD = 0.1
KEYS = (
    "asked_mb_s",
    "mb_s",
    "speed",
    "waited",
    "slowed",
    "cpu_cores",
    "peak_mb",
    "runs",
    "stolen_cores",
)


def figures(run: Mapping[str, Any], size: float) -> dict[str, float]:
    """One round of one side: medians of its pairs."""
    found = [
        {
            **loaded,
            "asked_mb_s": alone["steps_s"] * size / 1e6,
            "mb_s": loaded["steps_s"] * size / 1e6,
            "speed": loaded["steps_s"] / alone["steps_s"],
            "slowed": loaded["step_seconds"] / alone["step_seconds"] - 1,
        }
        for alone, loaded in run["pairs"]
    ]
    medians = {key: median(pair[key] for pair in found) for key in found[0]}
    return medians | {key: run[key] for key in ("peak_mb", "runs", "stolen_cores")}


def row_of(side: str, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The medians of the rounds of one side, and how far its speed and what it delivered spread."""
    row: dict[str, Any] = {"side": side}
    row |= {key: median(run[key] for run in runs) for key in KEYS}
    for key in ("speed", "mb_s"):
        row[f"{key}_range"] = [min(run[key] for run in runs), max(run[key] for run in runs)]
    return row | {"rounds": len(runs), "met": row["speed"] >= BAR}


def same_load(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the steps of all sides took as many bytes in a second alone, within a tenth."""
    asked = [row["asked_mb_s"] for row in rows]
    return bool(max(asked) <= min(asked) * (1 + SAME_LOAD))
