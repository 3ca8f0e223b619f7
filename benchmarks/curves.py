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

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import local, paced, stores
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import load, save, with_saved
from benchmarks.harness.rounds import Side, in_turn
from tests.servers.faults import NO_FAULTS, Faults

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
RECORDS = (100, 1_000, 10_000, 100_000, 1_000_000)
SHARDS = (1, 4, 16, 64, 256, 1024)
LATENCIES = (1, 10, 30, 100, 300)
FILE_BYTES, STORE_BYTES = 64_000_000, 256_000_000
FILE_NAMES = {"streamrec": "streamrec", "tensorflow": "tf.data"}
STORE_NAMES = {"dataset": "streamrec", "bare": "s3fs' GETs", "s3fs_open": "s3fs' open()"}
"""The sides of `benchmarks.local` and of `benchmarks.paced`, and their names in the drawing."""

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


def main(*, rounds: int = 2, only: Names = tuple(PANELS), draw: bool = False) -> None:
    """Measures and draws, or only draws."""
    if not draw:
        measure = {"record": by_record, "shards": by_shards, "latency": by_latency}
        rows = [row for panel in only for row in measure[panel](rounds)]
        packages = ["s3fs", "aiohttp", "tensorflow-cpu"]
        save("curves", packages, rows=with_saved("curves", rows, "panel", "x"))
    for theme in THEMES:
        drawn(load("curves")["rows"], theme)


def by_record(rounds: int) -> list[dict[str, Any]]:
    """A local file for each length of records."""
    rows = []
    for size in RECORDS:
        with tempfile.TemporaryDirectory() as folder:
            path = local.write(Path(folder) / "records", size, FILE_BYTES // size)
            made = sides_of(local.measured, FILE_NAMES, path=path)
            rows.append(point("record", size, rounds, renamed(made, FILE_NAMES)))
    return rows


def by_shards(rounds: int) -> list[dict[str, Any]]:
    """The same bytes in more and more shards."""
    return [from_store("shards", count, rounds, count, NO_FAULTS) for count in SHARDS]


def by_latency(rounds: int) -> list[dict[str, Any]]:
    """The same shards, farther and farther away."""
    return [
        from_store("latency", ms, rounds, 16, Faults(first_byte=ms / 1e3, rate=60e6))
        for ms in LATENCIES
    ]


def from_store(panel: str, x: int, rounds: int, shards: int, faults: Faults) -> dict[str, Any]:
    """One point of each side, from a simulated store."""
    size = STORE_BYTES // shards
    with (
        tempfile.TemporaryDirectory() as folder,
        stores.simulated(Path(folder), panel, shards=shards, size=size, faults=faults) as where,
    ):
        made = sides_of(paced.measured, STORE_NAMES, urls=where[0], options=where[1])
        return point(panel, x, rounds, renamed(made, STORE_NAMES))


def renamed(sides: dict[str, Side], names: dict[str, str]) -> dict[str, Side]:
    """The sides by their names in the drawing."""
    return {names[name]: side for name, side in sides.items()}


def point(panel: str, x: int, rounds: int, sides: dict[str, Side]) -> dict[str, Any]:
    """All sides in turn; the median of each."""
    row = {"panel": panel, "x": x, "mb_s": in_turn(sides, rounds).by_side("mb_s")}
    print(row, flush=True)
    return row


def drawn(rows: list[dict[str, Any]], theme: str) -> None:
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
    run(main)
