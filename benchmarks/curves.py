"""MB/s against the length of records, the number of shards and the latency of the store: streamrec
beside its peers.

    python -m benchmarks.curves [--rounds 2] [--only record,shards,latency] [--draw]

- record: a local file of 64 MB in the page cache, on one core, beside tf.data.
- shards: 256 MB in 1 to 1,024 shards of a store that is not slowed, beside s3fs: its streamed GETs,
  16 at a time, whose bytes are dropped, and `fs.open()` in 16 threads.
- latency: 16 shards of 16 MB, 60 MB/s a connection, from 1 to 300 ms to the first byte, beside the
  same.

Sides take turns, each in a process of its own; medians count. Data goes to
`benchmarks/results/curves.json`, drawings to `docs/assets/speed-light.svg` and
`docs/assets/speed-dark.svg`; `--draw` only draws.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import local
from benchmarks.machine import RESULTS, describe, median, merge, save
from benchmarks.paced import served
from benchmarks.stream import spawn
from tests.servers.faults import NO_FAULTS, Faults

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
RECORDS = (100, 1_000, 10_000, 100_000, 1_000_000)
SHARDS = (1, 4, 16, 64, 256, 1024)
LATENCIES = (1, 10, 30, 100, 300)
FILE_BYTES, STORE_BYTES = 64_000_000, 256_000_000
STORE_SIDES = {"streamrec": "dataset", "s3fs' GETs": "bare", "s3fs' open()": "s3fs_open"}
PANELS = {
    "record": "bytes a record, a local file",
    "shards": "shards of 256 MB",
    "latency": "ms to the first byte, 16 shards",
}
COLORS = {
    "streamrec": "#d9480f",
    "s3fs' GETs": "#1971c2",
    "s3fs' open()": "#6741d9",
    "tf.data": "#2f9e44",
}
THEMES = {"light": ("#ffffff", "#212529"), "dark": ("#0d1117", "#e6edf3")}


def main() -> None:
    """Measures and draws, or runs one side as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default=",".join(PANELS))
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args()
    if not given.draw:
        measure = {"record": by_record, "shards": by_shards, "latency": by_latency}
        rows = [row for panel in given.only.split(",") for row in measure[panel](given.rounds)]
        machine = describe("s3fs", "aiohttp", "tensorflow-cpu")
        save("curves", {"machine": machine, "rows": merge("curves", rows, "panel", "x")})
    rows = json.loads((RESULTS / "curves.json").read_text())["rows"]
    for theme in THEMES:
        draw(rows, theme)


def by_record(rounds: int) -> list[dict[str, Any]]:
    """A local file for each length of records."""
    sides = {"streamrec": "streamrec", "tf.data": "tensorflow"}
    rows = []
    for size in RECORDS:
        with tempfile.TemporaryDirectory() as folder:
            path = local.write(Path(folder) / "records", size, FILE_BYTES // size)
            runs = {name: partial(local.spawn, side, path) for name, side in sides.items()}
            rows.append(medians("record", size, rounds, runs))
    return rows


def by_shards(rounds: int) -> list[dict[str, Any]]:
    """The same bytes in more and more shards."""
    return [
        from_store("shards", count, rounds, count, STORE_BYTES // count, NO_FAULTS)
        for count in SHARDS
    ]


def by_latency(rounds: int) -> list[dict[str, Any]]:
    """The same shards, farther and farther away."""
    return [
        from_store(
            "latency", ms, rounds, 16, STORE_BYTES // 16, Faults(first_byte=ms / 1e3, rate=60e6)
        )
        for ms in LATENCIES
    ]


def from_store(
    panel: str, x: int, rounds: int, count: int, size: int, faults: Faults
) -> dict[str, Any]:
    """One point of each side, from a simulated store."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), panel, count, size, faults) as (url, names),
    ):
        runs = {name: partial(speed, side, url, names) for name, side in STORE_SIDES.items()}
        return medians(panel, x, rounds, runs)


def speed(side: str, url: str, names: list[str]) -> float:
    """MB/s of one side of `benchmarks.paced`."""
    found: float = spawn("benchmarks.paced", side=side, url=url, names=names)["mb_s"]
    return found


def medians(
    panel: str, x: int, rounds: int, sides: dict[str, Callable[[], float]]
) -> dict[str, Any]:
    """All sides in turn; the median of each."""
    runs: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            runs[name].append(run())
    row = {"panel": panel, "x": x, "mb_s": {name: median(found) for name, found in runs.items()}}
    print(row, flush=True)
    return row


def draw(rows: list[dict[str, Any]], theme: str) -> None:
    """One drawing with a panel for each question."""
    os.environ.setdefault("MPLBACKEND", "svg")
    import matplotlib
    from matplotlib import pyplot

    background, ink = THEMES[theme]
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": theme,
            "svg.fonttype": "none",
            "font.size": 9,
            "text.color": ink,
            "axes.labelcolor": ink,
        }
    )
    matplotlib.rcParams.update({"xtick.color": ink, "ytick.color": ink, "axes.edgecolor": ink})
    figure, axes = pyplot.subplots(
        1, len(PANELS), figsize=(10, 3), facecolor=background, layout="constrained"
    )
    for axis, (panel, label) in zip(axes, PANELS.items(), strict=True):
        points = [row for row in rows if row["panel"] == panel]
        for name in points[0]["mb_s"]:
            line = [row["mb_s"][name] for row in points]
            axis.plot(
                [row["x"] for row in points],
                line,
                "o-",
                label=name,
                color=COLORS[name],
                markersize=3,
            )
        axis.set(xscale="log", xlabel=label, facecolor=background)
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.2)
        axis.legend(frameon=False, labelcolor=ink)
    axes[0].set_ylabel("MB/s")
    figure.savefig(ASSETS / f"speed-{theme}.svg", facecolor=background, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
