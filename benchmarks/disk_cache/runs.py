"""A row: three epochs of a side through its cache, counted by the server.

`killed` rows end a process in the middle of the second epoch by SIGKILL, and have a new one read
the whole epoch through what the first one left.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.disk_cache.data import IMAGE_BYTES, Shape
from benchmarks.disk_cache.ranks import Answer, Ranks, RunError, Terms
from benchmarks.disk_cache.sides import PEERS, Place
from benchmarks.harness.calm import calmest
from benchmarks.harness.rounds import significant
from tests.servers.accesslog import AccessLog, Taken
from tests.servers.real import Store

EPOCHS = 3

SPARE = 1.01
"""The limits are so much larger than their part of the data: formats and caches add a little."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The images in a store, in one format.

    Attributes:
        store: The server that counts.
        folder: The folder in the bucket.
        names: The shards.
        nbytes: The bytes of the shards.
        shape: How the images lie in them.
    """

    store: Store
    folder: str
    names: Sequence[str]
    nbytes: int
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a row measures.

    Attributes:
        side: The library.
        limit: The limit of the cache, as a part of the data.
        processes: How many ranks there are.
        shuffled: Whether each epoch has the shards in another order.
        killed: Whether it is killed in the second epoch.
    """

    side: str
    limit: float
    processes: int = 1
    shuffled: bool = False
    killed: bool = False


@dataclass(frozen=True)
class Runner:
    """How the rows are measured.

    Attributes:
        peers: The interpreter of the other libraries.
        seconds: How long a start or an epoch may take.
        root: Where the caches are.
    """

    peers: str
    seconds: float
    root: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))

    def python(self, side: str) -> str:
        """The interpreter of a side."""
        return self.peers if side in PEERS else sys.executable

    def row(self, case: Case, bucket: Bucket) -> Row:
        """Measures a row; what went wrong is its `error`."""
        found = calmest(lambda _: self._run(case, bucket), 1)
        [measured] = found.results
        shard = round(bucket.nbytes / bucket.shape.shards / 1e6, 1)
        about = {
            "store": bucket.store.url.partition(":")[0],
            "side": case.side,
            "shard_mb": shard,
            "limit": case.limit,
            "processes": case.processes,
            "shuffled": case.shuffled,
            "killed": case.killed,
        }
        row = {**about, **measured, **found.figures}
        print(row, flush=True)
        return row

    def _run(self, case: Case, bucket: Bucket) -> Row:
        folder = Path(tempfile.mkdtemp(prefix="streamrec-caches-", dir=self.root))
        cache = folder / "cache"
        cache.mkdir(mode=0o700)
        try:
            return asyncio.run(self._epochs(case, bucket, cache))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _epochs(self, case: Case, bucket: Bucket, cache: Path) -> Row:
        """Reads the epochs; returns what was seen until the end, or until the first error."""
        place = Place(
            url=f"{bucket.store.url}/{bucket.folder}",
            names=list(bucket.names),
            endpoint=bucket.store.endpoint,
            options=dict(bucket.store.options),
            cache=str(cache),
            limit=int(case.limit * bucket.nbytes * SPARE),
            shuffled=case.shuffled,
        )
        seen = Seen(bucket, AccessLog(bucket.store))
        try:
            if case.killed:
                await self._kill_and_start_again(case, place, seen)
            else:
                async with self._ranks(case, place, seen) as ranks:
                    for number in range(EPOCHS):
                        seen.add(*await ranks.epoch(number))
        except RunError as error:
            return {**seen.row(), "error": str(error)}
        return seen.row()

    async def _kill_and_start_again(self, case: Case, place: Place, seen: Seen) -> None:
        """Epoch 1, half of epoch 2, SIGKILL, and all of epoch 2 in a new process."""
        half = bucket_images(seen.bucket) // 2
        async with self._ranks(case, place, seen) as ranks:
            seen.add(*await ranks.epoch(0))
            _, answers = await ranks.epoch(1, stop_after=half)
            if [answer["images"] for answer in answers] != [half]:
                raise RunError(f"gave {answers} before it was killed")
        seen.forget()
        async with self._ranks(case, place, seen) as ranks:
            seen.add(*await ranks.epoch(1))

    def _ranks(self, case: Case, place: Place, seen: Seen) -> Ranks:
        terms = Terms(
            python=self.python(case.side),
            count=case.processes,
            seconds=self.seconds,
            # MosaicML Streaming keeps files of locks here
            environment={"TMPDIR": str(Path(place.cache).parent)},
        )
        ranks = Ranks(case.side, place, terms)
        seen.ranks.append(ranks)
        return ranks


class Seen:
    """What was seen of a side so far.

    Attributes:
        bucket: What is read.
        ranks: The processes that read it, in the order in which they were started.
    """

    def __init__(self, bucket: Bucket, log: AccessLog) -> None:
        self.bucket = bucket
        self.ranks: list[Ranks] = []
        self._log = log
        self._epochs: list[Row] = []

    def add(self, seconds: float, answers: Sequence[Answer]) -> None:
        """Adds an epoch; RunError if it did not have each image once."""
        self._epochs.append(epoch_of(self.bucket, self._log.taken(), seconds, answers))
        count = bucket_images(self.bucket)
        images = sum(answer["images"] for answer in answers)
        if images != count or sum(answer["sum"] for answer in answers) != count * (count - 1) // 2:
            raise RunError(f"epoch {len(self._epochs)} did not have each image once: {images}")

    def forget(self) -> None:
        """Does not count what was sent since the last epoch."""
        self._log.taken()

    def row(self) -> Row:
        """What was seen, and the most that the cache took of the disk, as a part of the data."""
        peak = max((each.peak for each in self.ranks), default=0)
        return {"epochs": self._epochs, "disk": significant(peak / self.bucket.nbytes)}


def epoch_of(bucket: Bucket, taken: Taken, seconds: float, answers: Sequence[Answer]) -> Row:
    """The figures of an epoch.

    `read` is what the store sent as a part of the data, `cpu_s_gb` processor seconds for each GB of
    images, of all processes.
    """
    delivered = sum(answer["bytes"] for answer in answers)
    cpu = sum(answer["cpu_s"] for answer in answers)
    return {
        "read": round(taken.nbytes / bucket.nbytes, 4),
        "requests": taken.requests,
        "seconds": significant(seconds),
        "cpu_s_gb": significant(cpu / max(delivered, IMAGE_BYTES) * 1e9),
    }


def bucket_images(bucket: Bucket) -> int:
    """How many images a bucket has."""
    return bucket.shape.total
