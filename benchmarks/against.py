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

import argparse
import asyncio
import json
import os
import statistics
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
from benchmarks.machine import describe, save
from benchmarks.paced import FAR, served
from benchmarks.shards import KINDS
from benchmarks.short_runs import STALLING
from benchmarks.stream import fill, loaded, pin_server
from benchmarks.tls import make_certificate
from tests.servers.real import nginx, seaweedfs

ROOT = Path(__file__).parent.parent
TOLERANCE = 0.05

Prepared = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        program: The function of `benchmarks/rows.py` that runs.
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
        urls, options = stack.enter_context(loaded(server, 16, 32 << 20, record, certificate))
        if certificate:
            options = {
                **options,
                "client_kwargs": {"region_name": "us-east-1", "verify": str(certificate[0])},
            }
        yield {"urls": urls, "options": options, "batch": batch, "passes": 3, **task}


@contextmanager
def from_far(shards: int, size: int, faults: Any = FAR, **task: Any) -> Prepared:
    """A store that is far away."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), "far", shards, size, faults) as (url, names),
    ):
        options = {"endpoint_url": url, "anon": True}
        yield {
            "urls": [f"s3://{name}" for name in names],
            "options": options,
            "batch": 64,
            "warm": False,
            **task,
        }


@contextmanager
def from_small(store: bool) -> Prepared:
    """Shards of 20 records of 100 bytes: 1,000 objects of nginx, or 4,000 files."""
    shard = bytes(streamrec.encode_records([index.to_bytes(100, "little") for index in range(20)]))
    with ExitStack() as stack:
        server = stack.enter_context(nginx()) if store else None
        folder = (
            server.directory if server else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        )
        names = [f"{index:05d}.tfrecord" for index in range(1000 if server else 4000)]
        for name in names:
            (folder / name).write_bytes(shard)
        if server:
            pin_server(server)
        yield {
            "urls": [f"{server.url if server else folder}/{name}" for name in names],
            "passes": 2,
        }


@contextmanager
def from_files(record: int, shards: int, size: int, **task: Any) -> Prepared:
    """Files of random records of one length, in the page cache."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(fill(folder, None, shards, size, record))
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
    with seaweedfs() as store:
        pin_server(store)
        options = dict(store.options)
        yield {
            "urls": [f"{store.url}/uploaded"],
            "options": options,
            "record": record,
            "nbytes": 200_000_000,
        }


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


def main() -> int:
    """Runs the rows, and prints one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(ROWS), help="rows, or beginnings of their names")
    parser.add_argument(
        "--save", action="store_true", help="keep the data in benchmarks/results/against.json"
    )
    arguments = parser.parse_args()
    wanted = [word.strip() for word in arguments.only.split(",")]
    names = [name for name in ROWS if any(name.startswith(word) for word in wanted)]
    rows = []
    with built(arguments.commit) as earlier:
        print(
            f"{'row':<22} {'MB/s':>14} {'x':>6} {'CPU-s/GB':>16} {'x':>6}   {'spread':<13} verdict",
            flush=True,
        )
        for name in names:
            rows.append(compared(name, ROWS[name], earlier, arguments.rounds))
            print(line_of(rows[-1]), flush=True)
    if arguments.save:
        commit = subprocess.check_output(
            ["git", "rev-parse", "--short", arguments.commit], cwd=ROOT, text=True
        ).strip()
        save(
            "against",
            {"machine": describe("numpy", "s3fs", "aiohttp"), "commit": commit, "rows": rows},
        )
    return int(any(row["verdict"] == "SLOWER" for row in rows))


@contextmanager
def built(commit: str) -> Iterator[Path]:
    """The earlier version, in a worktree, with its extension."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit],
            cwd=ROOT,
            check=True,
        )
        try:
            build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
            subprocess.run(build, cwd=tree, check=True, capture_output=True)
            yield tree
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True
            )


def compared(name: str, row: Row, earlier: Path, rounds: int) -> dict[str, Any]:
    """Both versions of one row, in turn."""
    runs: dict[str, list[dict[str, float]]] = {"before": [], "now": []}
    with row.prepare() as task:
        for index in range(rounds):
            for version in ("before", "now") if index % 2 else ("now", "before"):
                runs[version].append(
                    run(row.program, task, earlier if version == "before" else ROOT)
                )
    pairs = list(zip(runs["before"], runs["now"], strict=True))
    key = "cpu_s_gb" if row.judged_by == "cpu" else "mb_s"
    ratios = [now[key] / before[key] for before, now in pairs]
    ratio = statistics.median(ratios)
    worse = ratio if key == "cpu_s_gb" else 1 / ratio
    verdict = "SLOWER" if worse > 1 + TOLERANCE else "faster" if worse < 1 - TOLERANCE else "same"
    medians = {
        f"{version}_{key}": statistics.median(run[key] for run in found)
        for version, found in runs.items()
        for key in ("mb_s", "cpu_s_gb", "peak_mb")
    }
    return {
        "row": name,
        **{key: float(f"{value:.4g}") for key, value in medians.items()},
        "speed_ratio": round(
            statistics.median(now["mb_s"] / before["mb_s"] for before, now in pairs), 3
        ),
        "cpu_ratio": round(
            statistics.median(now["cpu_s_gb"] / before["cpu_s_gb"] for before, now in pairs), 3
        ),
        "judged_by": row.judged_by,
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "verdict": verdict,
        "load": round(os.getloadavg()[0], 1),
    }


def run(program: str, task: dict[str, Any], tree: Path) -> dict[str, float]:
    """One row with one version, in a process of its own on the first core."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "rows.py"), program]
    done = subprocess.run(
        command, input=json.dumps(task), capture_output=True, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{program} failed with {tree}:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout)
    size = (
        1e9 if task.get("one_batch") else result["bytes"]
    )  # seconds of one batch count as they are
    return {
        "mb_s": size / result["seconds"] / 1e6,
        "cpu_s_gb": result["cpu_seconds"] / size * 1e9,
        "peak_mb": result["peak_mb"],
    }


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
    sys.exit(main())
