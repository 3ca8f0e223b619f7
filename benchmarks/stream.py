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
are the ones that are printed; the first one also pays for modules that are loaded late and first
page faults, some 0.2 s, and is only in the data. A round more, which is not timed, compares
checksums. The calmest rounds count (`benchmarks.calm`).

`--memory` measures streamrec's peak memory instead, at 64 MB and at 1 GB a shard.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import streamrec
from benchmarks.calm import calmest
from benchmarks.machine import describe, median, save
from streamrec import Framer, Frames, kernels
from tests.servers.real import Store, fake_gcs, nginx, seaweedfs

RECORDS = {"680 B": (680, 1024), "110 kB": (110_000, 32)}
"""Their lengths, and how many make a batch."""
BUDGET = 256 << 20
PASSES = 2


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--only", default="s3,nginx,gcs")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(**json.loads(arguments.child))))
    elif arguments.memory:
        memory(arguments.only.split(","))
    else:
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """All servers and record lengths, a table, and the data file."""
    rows = []
    for server in arguments.only.split(","):
        for name, (size, batch) in RECORDS.items():
            with loaded(server, arguments.shards, arguments.megabytes << 20, size) as (
                urls,
                options,
            ):
                for block in (1, batch) if size < 1000 else (1,):
                    measures = rounds(urls, options, batch, block, arguments.rounds)
                    row = {"server": server, "records": name, "block_length": block, **measures}
                    rows.append(row)
                    print(
                        f"{server:6} {name:>7} in turns of {block:>4}: {row['speed_ratio']:.2f} of "
                        "the bare client's "
                        f"MB/s, {row['cpu_ratio']:.2f} of its CPU-s/GB "
                        f"({row['streamrec_mb_s']:.0f} MB/s, "
                        f"{row['streamrec_cpu_s_gb']:.2f} CPU-s/GB; bare {row['bare_mb_s']:.0f}, "
                        f"{row['bare_cpu_s_gb']:.2f}), peak {row['streamrec_peak_mb']:.0f} MB",
                        flush=True,
                    )
    shards = f"{arguments.shards} x {arguments.megabytes} MiB, {arguments.rounds} rounds"
    save(
        "stream", {"machine": describe("s3fs", "gcsfs", "aiohttp"), "shards": shards, "rows": rows}
    )


def rounds(
    urls: Sequence[str], options: dict[str, Any], batch: int, block: int, count: int
) -> dict[str, float]:
    """Measures both sides in turn; ratios are of neighbours in time, and their median counts."""
    task: dict[str, Any] = {"urls": list(urls), "options": options, "batch": batch, "block": block}
    pairs, calm = calmest(
        lambda: (spawn(side="bare", **task), spawn(side="streamrec", **task)), count
    )
    checks = [spawn(side=side, check=True, **task)["check"] for side in ("bare", "streamrec")]
    if checks[0] != checks[1]:
        raise SystemExit(f"the two sides read different data: {checks}")
    bare, ours = zip(*pairs, strict=True)
    return {
        **calm,
        "speed_ratio": median(b["mb_s"] / a["mb_s"] for a, b in pairs),
        "cpu_ratio": median(b["cpu_s_gb"] / a["cpu_s_gb"] for a, b in pairs),
        "first_speed_ratio": median(b["first_mb_s"] / a["first_mb_s"] for a, b in pairs),
        "first_cpu_ratio": median(b["first_cpu_s_gb"] / a["first_cpu_s_gb"] for a, b in pairs),
        "bare_mb_s": median(run["mb_s"] for run in bare),
        "streamrec_mb_s": median(run["mb_s"] for run in ours),
        "bare_cpu_s_gb": median(run["cpu_s_gb"] for run in bare),
        "streamrec_cpu_s_gb": median(run["cpu_s_gb"] for run in ours),
        "streamrec_peak_mb": max(run["peak_mb"] for run in ours),
        "streamrec_before_mb": median(run["before_mb"] for run in ours),
    }


def memory(servers: Sequence[str]) -> None:
    """Peak memory of a whole run, at two sizes of shards."""
    rows = []
    for server in servers:
        for name, (size, batch) in RECORDS.items():
            for megabytes, shards in ((64, 16), (1024, 4)):
                with loaded(server, shards, megabytes << 20, size) as (urls, options):
                    run = spawn(side="streamrec", urls=urls, options=options, batch=batch, block=1)
                rows.append(
                    {
                        "server": server,
                        "records": name,
                        "shard_mb": megabytes,
                        "peak_mb": run["peak_mb"],
                        "before_mb": run["before_mb"],
                        "budget_mb": BUDGET >> 20,
                    }
                )
                print(rows[-1], flush=True)
    save("stream_memory", {"machine": describe("s3fs", "gcsfs"), "rows": rows})


@contextmanager
def loaded(
    server: str, shards: int, size: int, record: int, certificate: tuple[Path, Path] | None = None
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """A server that holds the shards, over TLS where it is given a certificate; their URLs and the
    client's options.
    """
    with ExitStack() as stack:
        if server == "nginx":
            store = stack.enter_context(nginx(certificate=certificate))
            target, options = (
                str(store.directory / "data"),
                {"endpoint_url": store.endpoint, "anon": True},
            )
            url, write_options = "s3://data", None
        elif server == "gcs":
            store = stack.enter_context(fake_gcs("data", in_memory=False, certificate=certificate))
            target, options = str(store.directory / "data"), dict(store.options)
            url, write_options = store.url, None
        else:
            store = stack.enter_context(seaweedfs("data", certificate=certificate))
            target = url = store.url
            options, write_options = dict(store.options), dict(store.options)
        pin_server(store)
        asyncio.run(fill(target, write_options, shards, size, record))
        if server == "gcs":
            adopt(Path(target))
        yield [f"{url}/{index:03d}.tfrecord" for index in range(shards)], options


def pin_server(store: Store) -> None:
    """Gives the server the second core, so that both sides of the comparison have the first for
    themselves.
    """
    port = store.endpoint.rpartition(":")[2]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        command = entry.read_bytes().split(b"\0")
        if any(port.encode() in word for word in command) or (b"nginx.conf" in command):
            for task in (entry.parent / "task").iterdir():
                os.sched_setaffinity(int(task.name), {(os.cpu_count() or 1) - 1})


def adopt(directory: Path) -> None:
    """Makes objects of the files in a directory of fake-gcs-server's: uploads take it quadratic
    time (minutes a GB).
    """
    for path in directory.iterdir():
        checksum = google_crc32c.Checksum()
        with path.open("rb") as file:
            while block := file.read(8 << 20):
                checksum.update(block)
        encoded = base64.b64encode(checksum.digest()).decode()
        about = {
            "ContentType": "application/octet-stream",
            "Crc32c": encoded,
            "Etag": encoded,
            "Generation": 1,
        }
        os.setxattr(path, "user.metadata", json.dumps(about).encode())


async def fill(
    target: str, options: dict[str, Any] | None, shards: int, size: int, record: int
) -> None:
    """Writes the shards: random bytes, in records of one length."""
    rng = np.random.default_rng(1)
    starts = np.arange((8 << 20) // record, dtype=np.int64) * record
    for index in range(shards):
        async with streamrec.ShardWriter(
            f"{target}/{index:03d}.tfrecord", storage_options=options
        ) as writer:
            written = 0
            while written < size:
                count = min(len(starts), -(-(size - written) // (record + 16)))
                spans = np.stack([starts[:count], starts[:count] + record], axis=1)
                await writer.write_batch(Frames(rng.bytes(8 << 20), spans))
                written += count * (record + 16)


def spawn(
    module: str = "benchmarks.stream", environment: Mapping[str, str] | None = None, **task: Any
) -> dict[str, Any]:
    """One side, in a fresh process: the `child` of a benchmark."""
    environment = {
        **os.environ,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        **(environment or {}),
    }
    command = [sys.executable, "-m", module, "--child", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def child(
    side: str, urls: list[str], options: dict[str, Any], batch: int, block: int, check: bool = False
) -> dict[str, Any]:
    """Reads all shards and measures it; or once, for the checksum."""
    importlib.import_module("s3fs" if urls[0].startswith("s3") else "gcsfs.core")

    def read() -> tuple[int, int]:
        if side == "streamrec":
            return read_by_streamrec(urls, options, batch, block, check)
        return asyncio.run(read_bare(urls, options, check))

    return {"check": read()[1]} if check else measured(read)


def measured(read: Callable[[], tuple[int, int]]) -> dict[str, Any]:
    """Runs what reads, on the first core; it returns the bytes that it read, and a checksum."""
    os.sched_setaffinity(0, {0})
    before = peak_mb()
    first, others = timed(read, 1), timed(read, PASSES)
    return {
        **others,
        **{f"first_{key}": first[key] for key in ("mb_s", "cpu_s_gb")},
        "peak_mb": peak_mb(),
        "before_mb": before,
    }


def timed(read: Callable[[], tuple[int, int]], passes: int) -> dict[str, Any]:
    """So many passes."""
    started, cpu, size = time.perf_counter(), time.process_time(), 0
    for _ in range(passes):
        size += read()[0]
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    return {"mb_s": size / seconds / 1e6, "cpu_s_gb": used / size * 1e9}


def peak_mb() -> float:
    """This process's greatest resident memory so far. (`ru_maxrss` would begin with that of its
    parent.)
    """
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def read_by_streamrec(
    urls: list[str],
    options: dict[str, Any],
    batch: int,
    block: int = 1,
    check: bool = False,
    parallel: int = 16,
) -> tuple[int, int]:
    """The loop that a user writes."""
    dataset = streamrec.TFRecordDataset(
        urls, num_parallel_reads=parallel, block_length=block, storage_options=options
    )
    size = checksum = 0
    for frames in dataset.with_options(memory_budget=BUDGET).batch(batch):
        size += frames.nbytes + 16 * len(frames)
        checksum += check_of(frames) if check else 0
    return size, checksum


def check_of(frames: Frames) -> int:
    """A checksum of records that does not depend on their order."""
    return sum(kernels.crc32c(view) for view in frames.views())


async def read_bare(urls: list[str], options: dict[str, Any], check: bool) -> tuple[int, int]:
    """The client's own streamed GETs, 16 at a time, with nothing done to the bytes."""
    bodies = bare_s3(options) if urls[0].startswith("s3") else bare_gcs(options)
    opened = await anext(bodies)
    gate = asyncio.Semaphore(16)

    async def read(url: str) -> tuple[int, int]:
        async with gate:
            size, checksum, framer = 0, 0, Framer()
            async for chunk in opened(url):
                size += len(chunk)
                if check:
                    checksum += check_of(framer.feed(chunk))
            return size, checksum

    results = await asyncio.gather(*map(read, urls))
    await bodies.aclose()
    return sum(size for size, _ in results), sum(checksum for _, checksum in results)


async def bare_s3(options: dict[str, Any]) -> Any:
    """s3fs, without its retries, and with as many connections as there are streams."""
    import s3fs

    config = {"max_pool_connections": 24, "response_checksum_validation": "when_required"}
    fs = s3fs.S3FileSystem(
        **options, asynchronous=True, skip_instance_cache=True, config_kwargs=config
    )
    await fs.set_session()

    async def body(url: str) -> Any:
        bucket, _, key = url.removeprefix("s3://").partition("/")
        answer = await fs._call_s3("get_object", Bucket=bucket, Key=key)
        async for chunk in answer["Body"].raw_stream.content.iter_any():
            yield chunk

    try:
        yield body
    finally:
        await fs._s3creator.__aexit__(None, None, None)


async def bare_gcs(options: dict[str, Any]) -> Any:
    """Gcsfs' session."""
    import gcsfs.core

    fs = gcsfs.core.GCSFileSystem(**options, asynchronous=True, skip_instance_cache=True)
    await fs._set_session()

    async def body(url: str) -> Any:
        async with fs.session.get(
            fs.url(url), params=fs._get_params({}), headers=fs._get_headers({})
        ) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                yield chunk

    try:
        yield body
    finally:
        await fs.session.close()


if __name__ == "__main__":
    main()
