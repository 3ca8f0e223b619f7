"""Streaming from real servers: streamrec's Frames in a sync loop beside the bare client's streamed
GETs.

    python -m benchmarks.stream [--rounds 3] [--shards 16] [--megabytes 32] [--only s3,nginx,gcs]

Both read the same objects, in turn, each in a process of its own that is pinned to one core; the
server has the other. The bare client is s3fs' or gcsfs' own connection, a streamed GET per shard,
all at once, bytes dropped as they come. streamrec frames, checks every CRC32C, interleaves 16
shards and hands batches to a `for` loop on the main thread: record by record, as TensorFlow does;
short records also with a batch's worth from each shard in turn (`block_length`). Neither copies
records of these lengths once they are there.

Imports are made before the clock starts, sessions after. Each process reads all shards three times,
each time in a session of its own: two passes together are what a long run costs, and their ratios
are the ones that are printed; the first pass also pays for modules that are loaded late and first
page faults, some 0.2 s, and is only in the data. A round more, which is not timed, compares
checksums.

`--memory` measures streamrec's peak memory instead, at 64 MB and at 1 GB a shard.
"""

from __future__ import annotations

from typing import Any

from benchmarks import readers, stores
from benchmarks.harness.meter import Figures, passes
from benchmarks.harness.process import in_own_process, sides_of
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn

RECORDS = {"680 B": (680, 1024), "110 kB": (110_000, 32)}
"""Their lengths, and how many make a batch."""

SIDES = ("bare", "streamrec")


def main(
    *,
    rounds: int = 3,
    shards: int = 16,
    megabytes: int = 32,
    only: Names = ("s3", "nginx", "gcs"),
    memory: bool = False,
) -> None:
    """All servers and record lengths."""
    if memory:
        save("stream_memory", ["s3fs", "gcsfs"], rows=memory_rows(only))
        return
    rows = []
    for server in only:
        for name, (record, batch) in RECORDS.items():
            size = megabytes << 20
            with stores.real(server, shards=shards, size=size, record=record) as (urls, options):
                for block in (1, batch) if record < 1000 else (1,):
                    task = {"urls": urls, "options": options, "batch": batch, "block": block}
                    row = {"server": server, "records": name, "block_length": block}
                    rows.append({**row, **compared(task, rounds)})
                    print(line_of(rows[-1]), flush=True)
    described = f"{shards} x {megabytes} MiB, {rounds} rounds"
    save("stream", ["s3fs", "gcsfs", "aiohttp"], shards=described, rows=rows)


def compared(task: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Both sides in turn; then both once more, for their checksums."""
    taken = in_turn(sides_of(measured, SIDES, **task), rounds)
    bare, ours = (check() for check in sides_of(checksum, SIDES, **task).values())
    if bare != ours:
        raise SystemExit(f"the two sides read different data: {bare} and {ours}")
    row: dict[str, Any] = dict(taken.calm)
    for ratio, figure in (
        ("speed_ratio", "mb_s"),
        ("cpu_ratio", "cpu_s_gb"),
        ("first_speed_ratio", "first_mb_s"),
        ("first_cpu_ratio", "first_cpu_s_gb"),
    ):
        row[ratio] = taken.ratio(figure, "streamrec", "bare")
        row[f"{ratio}_range"] = taken.spread(figure, "streamrec", "bare")
    for figure in ("mb_s", "cpu_s_gb"):
        row |= {f"{side}_{figure}": taken.median(side, figure) for side in SIDES}
    row["streamrec_peak_mb"] = max(each["streamrec"]["peak_mb"] for each in taken.taken)
    row["streamrec_before_mb"] = taken.median("streamrec", "before_mb")
    return row


def line_of(row: dict[str, Any]) -> str:
    """A row in words."""
    return (
        "{server:6} {records:>7} in turns of {block_length:>4}: {speed_ratio:.2f} of the bare "
        "client's MB/s, {cpu_ratio:.2f} of its CPU-s/GB ({streamrec_mb_s:.0f} MB/s, "
        "{streamrec_cpu_s_gb:.2f} CPU-s/GB; bare {bare_mb_s:.0f}, {bare_cpu_s_gb:.2f}), peak "
        "{streamrec_peak_mb:.0f} MB"
    ).format(**row)


def memory_rows(servers: Names) -> list[dict[str, Any]]:
    """Peak memory of a whole run, at two sizes of shards."""
    rows = []
    for server in servers:
        for name, (record, batch) in RECORDS.items():
            for megabytes, shards in ((64, 16), (1024, 4)):
                size = megabytes << 20
                with stores.real(server, shards=shards, size=size, record=record) as where:
                    task: dict[str, Any] = {"urls": where[0], "options": where[1], "batch": batch}
                    found = in_own_process(measured, side="streamrec", block=1, **task)
                row = {"server": server, "records": name, "shard_mb": megabytes}
                row |= {key: found[key] for key in ("peak_mb", "before_mb")}
                rows.append({**row, "budget_mb": readers.BUDGET >> 20})
                print(rows[-1], flush=True)
    return rows


def measured(
    side: str, urls: list[str], options: dict[str, Any], batch: int, block: int
) -> Figures:
    """One side reads all shards, three times."""
    readers.load_client(urls[0])
    if side == "bare":
        return passes(lambda: readers.by_bare_client(urls, options)[0])
    return passes(lambda: readers.by_streamrec(urls, options, batch=batch, block=block)[0])


def checksum(side: str, urls: list[str], options: dict[str, Any], batch: int, block: int) -> int:
    """What one side reads."""
    if side == "bare":
        return readers.by_bare_client(urls, options, check=True)[1]
    return readers.by_streamrec(urls, options, batch=batch, block=block, check=True)[1]


if __name__ == "__main__":
    run(main)
