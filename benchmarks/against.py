"""This version of the package beside an earlier one: the same rows, in turn, on the same machine.

    python -m benchmarks.against COMMIT [--rounds 5] [--only ROW,ROW] [--save]

The earlier version is built in a worktree of its own. Each row runs in a process of its own, pinned
to the first core, once with each version in each round, and the one that goes first changes from
round to round. The servers and their data are those of this version; they have the other core. What
counts is the ratio of neighbours in time: of processor seconds a GB where the processor limits a
row, else of MB/s. The verdict is the median over the rounds, and the spread goes from the lowest to
the highest round. A row that is more than 5 % worse is "SLOWER"; the exit status is then 1.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks import stores
from benchmarks.against_rows import measured, package
from benchmarks.harness import results
from benchmarks.harness.process import ROOT, in_own_process
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import git
from benchmarks.harness.rounds import Rounds, in_turn
from benchmarks.paced import FAR
from benchmarks.shards import KINDS
from benchmarks.short_runs import STALLING
from tests.servers.real import make_certificate, nginx, seaweedfs

TOLERANCE = 0.05

Prepared = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        program: The function of `benchmarks.against_rows` that runs.
        prepare: Makes its data, and gives the task.
        judged_by: "cpu" for processor seconds a GB, "speed" for MB/s.
    """

    program: str
    prepare: Callable[[], Any]
    judged_by: str = "cpu"


@contextmanager
def from_server(server: str, record: int, batch: int, tls: bool = False, **task: Any) -> Prepared:
    """Sixteen shards of 32 MiB in a real server."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = make_certificate(folder) if tls else None
        where = stores.real(
            server, shards=16, size=32 << 20, record=record, certificate=certificate
        )
        urls, options = stack.enter_context(where)
        if certificate:
            verified = {"region_name": stores.REGION, "verify": str(certificate[0])}
            options = {**options, "client_kwargs": verified}
        yield {"urls": urls, "options": options, "batch": batch, "passes": 3, **task}


@contextmanager
def from_far(shards: int, size: int, faults: Any = FAR, **task: Any) -> Prepared:
    """A store that is far away."""
    with (
        tempfile.TemporaryDirectory() as folder,
        stores.simulated(Path(folder), "far", shards=shards, size=size, faults=faults) as where,
    ):
        yield {"urls": where[0], "options": where[1], "batch": 64, "warm": False, **task}


@contextmanager
def from_small(store: bool) -> Prepared:
    """Shards of 20 records of 100 bytes: 1,000 objects of nginx, or 4,000 files."""
    shard = bytes(streamrec.encode_records([index.to_bytes(100, "little") for index in range(20)]))
    with ExitStack() as stack:
        if store:
            with stores.last_core():
                server = stack.enter_context(nginx())
            folder, url = server.directory, server.url
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = str(folder)
        names = [f"{index:05d}.tfrecord" for index in range(1000 if store else 4000)]
        for name in names:
            (folder / name).write_bytes(shard)
        yield {"urls": [f"{url}/{name}" for name in names], "passes": 2}


@contextmanager
def from_files(record: int, shards: int, size: int, **task: Any) -> Prepared:
    """Files of random records of one length, in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(stores.fill(folder, None, shards=shards, size=size, record=record))
        yield {"urls": sorted(str(path) for path in Path(folder).iterdir()), **task}


@contextmanager
def from_kind(name: str, records: int, **task: Any) -> Prepared:
    """Files of Examples of `benchmarks.shards`."""
    with tempfile.TemporaryDirectory() as folder:
        kind, paths = replace(KINDS[name], records=records), list[str]()
        for index in range(16):
            paths.append(f"{folder}/{index:02d}.tfrecord")
            rng = np.random.default_rng(index)
            examples = streamrec.encode_examples(kind.columns(rng, records // 16))
            Path(paths[-1]).write_bytes(streamrec.encode_records(examples))
        yield {"urls": paths, "nbytes": sum(map(os.path.getsize, paths)), **task}


@contextmanager
def from_jpegs() -> Prepared:
    """Three hundred JPEG images of 500 x 375."""
    from PIL import Image

    small = np.random.default_rng(0).integers(0, 256, (38, 50, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(small).resize((500, 375)).save(buffer, "JPEG", quality=90)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/images.tfrecord"
        with streamrec.TFRecordWriter(path) as writer:
            for _ in range(300):
                writer.write(streamrec.encode_example({"image": buffer.getvalue()}))
        yield {"urls": [path], "nbytes": os.path.getsize(path), "passes": 3}


@contextmanager
def to_store(record: int) -> Prepared:
    """An empty SeaweedFS."""
    with ExitStack() as stack:
        with stores.last_core():
            store = stack.enter_context(seaweedfs())
        task = {"urls": [f"{store.url}/uploaded"], "options": dict(store.options)}
        yield {**task, "record": record, "nbytes": 200_000_000}


ROWS = {
    "stream": Row("read", partial(from_server, "nginx", 110_000, 32)),
    "stream, 680 B": Row("read", partial(from_server, "nginx", 680, 1024)),
    "stream, SeaweedFS": Row("read", partial(from_server, "s3", 110_000, 32)),
    "stream, GCS": Row("read", partial(from_server, "gcs", 110_000, 32)),
    "tls": Row("read", partial(from_server, "nginx", 110_000, 32, True)),
    "paced large": Row("read", partial(from_far, 1, 1 << 30), "speed"),
    "paced small": Row("read_small", partial(from_far, 2000, 100_000), "speed"),
    "small_shards, store": Row("read_small", partial(from_small, True)),
    "small_shards, local": Row("read_small", partial(from_small, False)),
    "functions": Row("functions", partial(from_files, 100, 1, 60 << 20)),
    "uploads, 1 kB": Row("upload", partial(to_store, 1000)),
    "uploads, 110 kB": Row("upload", partial(to_store, 110_000)),
    "short_runs": Row("read", partial(from_far, 16, 16_000_000, STALLING), "speed"),
    "training": Row("training", partial(from_server, "nginx", 110_000, 32)),
    "parse": Row("parse", partial(from_kind, "forty", 64_000, passes=3)),
    "pipeline, forty": Row("pipeline_forty", partial(from_kind, "forty", 160_000)),
    "pipeline, images": Row("pipeline_images", partial(from_kind, "images", 4_000)),
    "images": Row("images", from_jpegs),
    "local, 84 B": Row("read", partial(from_files, 84, 4, 64 << 20, batch=1024, passes=3)),
    "local, 110 kB": Row("read", partial(from_files, 110_000, 4, 128 << 20, batch=1024, passes=3)),
    "first batch, local": Row(
        "first_batch", partial(from_files, 100, 1, 1 << 20, batch=64, warm=False, one_batch=True)
    ),
    "first batch, S3": Row(
        "first_batch", partial(from_server, "s3", 680, 64, warm=False, passes=1, one_batch=True)
    ),
}


def main(commit: str, *, rounds: int = 5, only: Names = tuple(ROWS), save: bool = False) -> int:
    """Runs the rows, and prints one line for each."""
    rows = []
    with built(commit) as earlier:
        print(
            f"{'row':<22} {'MB/s':>14} {'x':>6} {'CPU-s/GB':>16} {'x':>6}   {'spread':<13} verdict",
            flush=True,
        )
        for name in chosen(only):
            with ROWS[name].prepare() as task:
                taken = in_turn(versions(ROWS[name].program, task, earlier), rounds)
            rows.append(row_of(name, ROWS[name].judged_by, taken))
            print(line_of(rows[-1]), flush=True)
    if save:
        before = git("rev-parse", "--short=8", commit)
        results.save(
            "against", ["numpy", "s3fs", "aiohttp"], before=before, rounds=rounds, rows=rows
        )
    return int(any(row["verdict"] == "SLOWER" for row in rows))


def chosen(words: Names) -> list[str]:
    """The rows whose names begin with one of these words."""
    return [name for name in ROWS if name.startswith(words)]


@contextmanager
def built(commit: str) -> Iterator[Path]:
    """The earlier version, in a worktree, with its extension."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        add = ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit]
        subprocess.run(add, cwd=ROOT, check=True)
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, capture_output=True)
            # the earlier package is measured by the benchmarks of this version
            shutil.rmtree(tree / "benchmarks", ignore_errors=True)
            yield tree
        finally:
            remove = ["git", "worktree", "remove", "--force", str(tree)]
            subprocess.run(remove, cwd=ROOT, check=True)


def versions(program: str, task: dict[str, Any], earlier: Path) -> dict[str, Callable[[], Any]]:
    """The sides of a row: the earlier version, and this one."""
    trees = {"before": earlier, "now": ROOT}
    for tree in trees.values():
        found = in_own_process(package, package=tree)
        if not os.path.samefile(found, tree):
            raise SystemExit(f"a process for {tree} imports streamrec from {found}")
    return {
        name: partial(in_own_process, measured, package=tree, row=program, task=task)
        for name, tree in trees.items()
    }


def row_of(name: str, judged_by: str, taken: Rounds) -> dict[str, Any]:
    """What the rounds of a row say."""
    figure = "cpu_s_gb" if judged_by == "cpu" else "mb_s"
    found: dict[str, Any] = {"row": name}
    for version in ("before", "now"):
        for key, value in taken.medians(version, "mb_s", "cpu_s_gb", "peak_mb").items():
            found[f"{version}_{key}"] = value
    ratio = taken.ratio(figure, "now", "before")
    return {
        **found,
        "speed_ratio": taken.ratio("mb_s", "now", "before"),
        "cpu_ratio": taken.ratio("cpu_s_gb", "now", "before"),
        "judged_by": judged_by,
        "spread": taken.spread(figure, "now", "before"),
        "verdict": verdict(ratio if judged_by == "cpu" else 1 / ratio),
        "load": round(os.getloadavg()[0], 1),
        **taken.calm,
    }


def verdict(cost: float) -> str:
    """What the cost of this version says, as a multiple of the cost of the earlier one.

    >>> verdict(1.06), verdict(1.0), verdict(0.9)
    ('SLOWER', 'same', 'faster')
    """
    if cost > 1 + TOLERANCE:
        return "SLOWER"
    return "faster" if cost < 1 - TOLERANCE else "same"


def line_of(row: dict[str, Any]) -> str:
    """One line of the table."""
    speed = f"{row['before_mb_s']:.0f} -> {row['now_mb_s']:.0f}"
    cpu = f"{row['before_cpu_s_gb']:.2f} -> {row['now_cpu_s_gb']:.2f}"
    spread = f"{row['spread'][0]:.2f} to {row['spread'][1]:.2f}"
    return (
        f"{row['row']:<22} {speed:>14} {row['speed_ratio']:>6.2f} {cpu:>16} "
        f"{row['cpu_ratio']:>6.2f}   "
        f"{spread:<13} {row['verdict']}"
    )


if __name__ == "__main__":
    run(main)
