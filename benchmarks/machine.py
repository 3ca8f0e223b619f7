"""What a figure was seen on, and how results are kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def describe(*packages: str) -> dict[str, Any]:
    """The machine and the packages, without names or paths."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def save(name: str, data: dict[str, Any]) -> None:
    """Writes `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def median(values: Iterable[float]) -> float:
    """The median, to three significant places."""
    return float(f"{statistics.median(values):.3g}")
