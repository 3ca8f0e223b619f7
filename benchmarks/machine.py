"""What a figure was seen on, and how results are kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
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
        "commit": commit(),
        "packages": {name: version(name) for name in packages},
    }


def commit() -> str:
    """The commit of the package that is measured, with "+" after it where its code was changed
    since.
    """
    root = Path(__file__).parent.parent
    found = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=root, capture_output=True, text=True
    )
    changes = subprocess.run(
        ["git", "status", "--porcelain", "streamrec"], cwd=root, capture_output=True, text=True
    )
    return found.stdout.strip() + "+" * bool(changes.stdout) or "unknown"


def merge(name: str, rows: list[dict[str, Any]], *key: str) -> list[dict[str, Any]]:
    """These rows, after the saved ones with other keys that were measured at this commit
    (`--only`).
    """
    path = RESULTS / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {"rows": [], "machine": {}}
    if earlier["machine"].get("commit") != commit():
        return rows
    new = {tuple(row[part] for part in key) for row in rows}
    return [row for row in earlier["rows"] if tuple(row[part] for part in key) not in new] + rows


def save(name: str, data: dict[str, Any]) -> None:
    """Writes `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")


def median(values: Iterable[float]) -> float:
    """The median, to three significant places."""
    return float(f"{statistics.median(values):.3g}")
