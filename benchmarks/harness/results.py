"""The data files `benchmarks/results/NAME.json`.

Each has `machine`, which says what the figures were seen on, then what the benchmark says of its
settings, and its rows.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.harness.process import ROOT

RESULTS = ROOT / "benchmarks" / "results"
UNKNOWN = "unknown"

Data = dict[str, Any]


_kept = True


def keep(kept: bool) -> None:
    """Whether `save` writes; it does until it is told otherwise (`--dry`)."""
    global _kept
    _kept = kept


def save(name: str, packages: Iterable[str], **data: Any) -> bool:
    """Writes `results/NAME.json`, unless the run is dry; returns whether it did.

    Args:
        name: The benchmark.
        packages: Distributions whose versions the figures depend on.
        data: Settings and rows.
    """
    if not _kept:
        return False
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": describe(packages), **data}, indent=1)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    return True


def load(name: str) -> Data:
    """A benchmark's data."""
    data: Data = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def describe(packages: Iterable[str]) -> Data:
    """The machine, the date, the commit and the versions, without names or paths."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        # the load of the last minute: more than this run explains comes from others
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def processor() -> str:
    """The model of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or UNKNOWN


def commit() -> str:
    """The commit of the package that is measured, with "+" after it where the code of the package
    was changed since.
    """
    head = git("rev-parse", "--short=8", "HEAD")
    return head + "+" * bool(git("status", "--porcelain", "streamrec")) if head else UNKNOWN


def git(*words: str) -> str:
    """What git says; nothing where it says nothing, or where this is no checkout."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def with_saved(name: str, rows: list[Data], *key: str) -> list[Data]:
    """These rows, after the saved ones that have another key and were measured at this commit.

    A benchmark that measures some of its rows (`--only`) keeps the others so.
    """
    path = RESULTS / f"{name}.json"
    saved = load(name) if path.exists() else {"rows": [], "machine": {}}
    if saved["machine"].get("commit") != commit():
        return rows
    return others(saved["rows"], rows, key) + rows


def others(saved: list[Data], rows: list[Data], key: Iterable[str]) -> list[Data]:
    """The saved rows that these rows do not replace.

    >>> others([{"row": "a", "n": 1}, {"row": "b", "n": 1}], [{"row": "a", "n": 2}], ["row"])
    [{'row': 'b', 'n': 1}]
    """
    replaced = {tuple(row[part] for part in key) for row in rows}
    return [row for row in saved if tuple(row[part] for part in key) not in replaced]
