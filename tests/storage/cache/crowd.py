"""Many processes that read the same shards through one directory of the cache, all at once.

    python -m tests.storage.cache.crowd --processes 200

serves 40 MB by an nginx, has that many processes read them twice, and prints what the server sent
and what was wrong. `test_crowd.py` does so with fewer. With `--shards 400 --records 1` they are
short objects, which share files.

The readers are forked from one process that has imported what they need: each has its own event
loop, threads, connections and locks, and 200 of them start within a second.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamrec
from streamrec import kernels
from streamrec.storage.cache.disk_cache import DiskCache
from streamrec.storage.cache.names import is_lock, writer_of
from streamrec.storage.cache_settings import CacheSettings
from tests.servers.accesslog import AccessLog, Taken
from tests.servers.real import Store, nginx

SHARDS = 40
RECORDS = 10
RECORD_BYTES = 100_000
EPOCHS = 2
RATE = "20m"
"""Of each answer: a store that is as near as the disk would be read instead of the disk."""

LIMIT = 1 << 30
MEMORY = 128 << 20
SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """What many processes did.

    Attributes:
        taken: What the server sent.
        nbytes: The bytes of the shards.
        readers: What each process says of itself.
        files: How many files hold blocks.
        left: Files in the cache that are neither a block nor belong to the directory itself.
        counted: How many bytes the processes have counted in the cache.
        stored: How many its blocks count.
    """

    taken: Taken
    nbytes: int
    readers: Sequence[dict[str, Any]]
    files: int
    left: Sequence[str]
    counted: int
    stored: int

    @property
    def sent(self) -> float:
        """What the server sent, as a part of the data."""
        return self.taken.nbytes / self.nbytes

    def problems(self, processes: int) -> list[str]:
        """What is wrong with the readers and with what they left."""
        found = [f"{processes - len(self.readers)} processes said nothing"]
        found = found if len(self.readers) != processes else []
        for reader in self.readers:
            wrong = {name: value for name, value in reader.items() if name in ("error", "warnings")}
            found += [f"{name}: {value}" for name, value in wrong.items() if value]
        found += [f"left: {name}" for name in self.left]
        if self.counted != self.stored:
            found.append(f"counted {self.counted:,} bytes, and {self.stored:,} are there")
        return found


def run_crowd(
    processes: int, cache: Path, *, shards: int = SHARDS, records: int = RECORDS
) -> Crowd:
    """Has so many processes read shards of an nginx, of so many records each, through a new
    cache.
    """
    with nginx(rate=RATE) as store:
        checksum = write_shards(store, shards, records)
        log = AccessLog(store)
        task = {
            "urls": [f"{store.url}/s-{number:02d}" for number in range(shards)],
            "cache": str(cache),
            "checksum": checksum,
            "count": shards * records,
            "processes": processes,
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.storage.cache.crowd", "--task", json.dumps(task)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
        )
        taken = log.taken()
        nbytes = sum(path.stat().st_size for path in store.directory.iterdir())
    names = [path.name for path in cache.rglob("*") if is_lock(path.name) or writer_of(path.name)]
    disk = DiskCache(CacheSettings(str(cache), LIMIT))
    try:
        counted = disk.usage.used()
        charges = [block.charge for found in disk.stored_sets() for block in found.blocks]
    finally:
        disk.close()
    return Crowd(
        taken=taken,
        nbytes=nbytes,
        readers=[json.loads(line) for line in done.stdout.splitlines()],
        files=len(charges),
        left=names,
        counted=counted,
        stored=sum(charges),
    )


def write_shards(store: Store, shards: int, count: int) -> int:
    """Writes the shards; returns a checksum of all records in order."""
    checksum = 0
    for number in range(shards):
        records = [b"%d:%d;" % (number, index) + os.urandom(RECORD_BYTES) for index in range(count)]
        for record in records:
            checksum = next_checksum(checksum, record)
        path = store.directory / f"s-{number:02d}"
        path.write_bytes(streamrec.encode_records(records))
    return checksum


def next_checksum(checksum: int, record: bytes) -> int:
    """Adds a record to a checksum that depends on the order.

    >>> next_checksum(next_checksum(0, b"a"), b"b") == next_checksum(next_checksum(0, b"b"), b"a")
    False
    """
    return (checksum * 31 + kernels.crc32c(record)) % (1 << 61)


def fork_readers(task: dict[str, Any]) -> None:
    """Forks the readers, has all of them begin at once, and waits for them."""
    import aiohttp  # noqa: F401 - the readers need it: import it once

    gate, opened = os.pipe()
    children = []
    for _ in range(task["processes"]):
        child = os.fork()
        if child == 0:
            os.close(opened)
            os.read(gate, 1)  # until the parent closes the other end
            status = 1
            try:
                line = json.dumps(read_all(task)) + "\n"
                os.write(1, line.encode())  # one write: lines do not mix
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(gate)
    os.close(opened)
    for child in children:
        os.waitpid(child, 0)


def read_all(task: dict[str, Any]) -> dict[str, Any]:
    """One reader: reads all shards in order, in each epoch."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("streamrec").addHandler(handler)
    options = {"cache_dir": task["cache"], "cache_bytes": LIMIT}
    dataset = streamrec.TFRecordDataset(task["urls"], storage_options=options)
    dataset = dataset.with_options(memory_budget=MEMORY)
    figures: dict[str, Any] = {"warnings": warnings, "error": "", "from_store": 0}
    try:
        for _ in range(EPOCHS):
            checksum = count = 0
            with dataset.iterate() as records:
                for record in records:
                    checksum = next_checksum(checksum, record)
                    count += 1
                figures["from_store"] += records.stats().storage.backends["http"].bytes
            if (count, checksum) != (task["count"], task["checksum"]):
                raise ValueError(f"{count} records, with the checksum {checksum}")
    except Exception as error:
        figures["error"] = repr(error)
    return figures


def main() -> int:
    """Prints what a crowd did; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--records", type=int, default=RECORDS, help="of each shard")
    parser.add_argument("--task", help="a reader's: the program gives it to itself")
    given = parser.parse_args()
    if given.task:
        fork_readers(json.loads(given.task))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory) / "cache"
        crowd = run_crowd(given.processes, cache, shards=given.shards, records=given.records)
    print(f"{given.processes} processes read {crowd.nbytes:,} bytes {EPOCHS} times each.")
    print(f"The server sent {crowd.sent:.3f} of the data in {crowd.taken.requests:,} requests.")
    print(f"The cache has {crowd.files:,} files of blocks.")
    problems = crowd.problems(given.processes)
    print("\n".join(problems) if problems else "All records were right, and nothing was left.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
