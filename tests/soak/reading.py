"""The reading soak: 32 shards through a proxy that breaks, refuses, stalls and delays, round after round.

    python -m tests.soak.reading --seconds 300 [--seed 1] [--only s3,gcs] [--megabytes 4]

One body in five is reset, one request in ten is a 503, one body in twenty stalls, one request in twenty is
slow. In every other round the consumer rests now and then, for longer than a body may stand still, within a budget
that holds a part of the shards. Each round draws anew from its seed, reads everything through `TFRecordDataset`, and
holds it to:

* All records come, byte for byte, in the order in which the same dataset reads the same shards from disk.
* No request asks for bytes that were delivered, but for those of the one that it replaces: it begins at the
  byte that the reader had of a broken body, and each broken body is followed up once. A second request beside a
  slow one (a hedge) begins where that began or had come to. What a busy machine makes late is no fault of the
  proxy's: such requests are no more than those that the reader itself counted as made for lateness. (Shards above
  8 MB are read by several requests at a time, which are cut and shared out on the way: there only the records count.)
* Every fault was met, so that the round says something.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from streamrec import RetryPolicy, TFRecordDataset, encode_records
from streamrec.storage import Storages
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess
from tests.servers.real import Store, fake_gcs, seaweedfs
from tests.servers.requestlog import Entry

__all__ = ["FAULTS", "Report", "Soak", "unjustified"]

SHARDS: Final = 32
FAULTS: Final = Faults(
    first_byte=0.002, jitter=0.002, reset=0.20, unavailable=0.10, stall=0.05, slow=0.05, slow_first_byte=0.5
)
WHOLE_MEGABYTES: Final = 8
"""Shards up to this size are read by one request at a time."""
BUDGETS: Final = (8 << 20, 24 << 20, 64 << 20)
REST_SHARE: Final = 0.03
REST_SECONDS: Final = 2.0
POLICY: Final = RetryPolicy(attempts=10, backoff_base=0.02, backoff_cap=0.5, stall_timeout=1.0)
SERVERS: Final[Mapping[str, Callable[[], AbstractContextManager[Store]]]] = {"s3": seaweedfs, "gcs": fake_gcs}


@dataclass
class Report:
    """What a soak met.

    Attributes:
        rounds: Rounds that were read.
        records: Records that were compared.
        requests: Requests for bytes of the shards.
        faults: How often each fault was met.
    """

    rounds: int = 0
    records: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class Soak:
    """Shards in a store, a proxy before it, and the same shards on disk; a context manager.

    Args:
        store: The real server.
        seed: What shards and faults are drawn from.
        megabytes: Of a shard.
    """

    def __init__(self, store: Store, seed: int, megabytes: float = 2.0) -> None:
        self._seed = seed
        self._store = store
        self._judged = megabytes <= WHOLE_MEGABYTES
        self._directory = tempfile.TemporaryDirectory(prefix="streamrec-soak-")
        names = [f"{index:03d}.tfrecord" for index in range(SHARDS)]
        self._local = [str(Path(self._directory.name, name)) for name in names]
        self._urls = [f"{store.url}/soak-{seed}/{name}" for name in names]
        shards = [_shard(random.Random(f"{seed}/{name}"), int(megabytes * 1e6)) for name in names]
        for path, data in zip(self._local, shards, strict=True):
            Path(path).write_bytes(data)
        asyncio.run(_store(store, self._urls, shards))
        self._proxy = ServerProcess("tests.servers.proxy", ("--target", store.endpoint))
        self.report = Report()

    def __enter__(self) -> Soak:
        return self

    def __exit__(self, *exception: object) -> None:
        self._proxy.close()
        self._directory.cleanup()

    def round(self) -> None:
        """Reads everything once, with faults of its own.

        Raises:
            AssertionError: A record is missing, altered or out of place, or requests had no cause, in the log or by the
                reader's own count.
        """
        seed = self._seed * 1_000_003 + self.report.rounds
        self._proxy.clear()
        self._proxy.faults = replace(FAULTS, seed=seed)
        theirs = {**self._store.options, "endpoint_url": self._proxy.url}
        where = f"seed {self._seed}, round {self.report.rounds}"
        rests = random.Random(seed) if self.report.rounds % 2 else None
        count, digest, late = _digest(self._urls, rests, storage_options=theirs, retry=POLICY)
        assert (count, digest) == _digest(self._local)[:2], f"{where}: other records than on disk"
        assert self._proxy.wait_idle(), f"{where}: a request is under way after the last record"
        entries = [entry for entry in self._proxy.log if entry.kind == "read"]
        wrong = unjustified(entries) if self._judged else []
        assert len(wrong) <= late, f"{where}: {len(wrong)} requests without a cause: {_story(wrong[0], entries)}"
        self.report.rounds += 1
        self.report.records += count
        self.report.requests += len(entries)
        self.report.faults.update(entry.fault for entry in entries if entry.fault)
        self.report.faults.update("slow" for entry in entries if entry.slow)

    def run(self, seconds: float) -> Report:
        """Rounds until the time is over, one at the least."""
        until = time.monotonic() + seconds
        while not self.report.rounds or time.monotonic() < until:
            self.round()
        missing = {"reset", "unavailable", "stall", "slow"} - self.report.faults.keys()
        assert not missing, f"never met: {missing}"
        return self.report


def unjustified(entries: Iterable[Entry]) -> list[Entry]:
    """Requests that ask for bytes which nobody lost.

    The first request for an object, and one that begins where another's bytes end by its own plan, need no
    cause. Any other needs an earlier one that broke (or was slow) and that nobody followed up yet: it begins
    where that one was broken off. The log says what was sent; the connection may have died with the last of
    it unread, so it may begin before that byte, but never before the broken request's own first.

    >>> first = Entry(0, 0.0, 0, "read", "GET", "/b/k", "b/k", promised=10, sent=4, status=200, fault="reset")
    >>> rest = replace(first, range="bytes=4-", start=4, promised=6, sent=6, status=206, fault="")
    >>> unjustified([first, rest]), len(unjustified([first, rest, rest]))
    ([], 1)
    """
    of_object: dict[str, list[Entry]] = {}
    wrong = []
    for entry in entries:
        earlier = of_object.setdefault(entry.object, [])
        start = _asked(entry)
        cause = next((old for old in earlier if _explains(old, start)), None)
        planned = not earlier or any(start == _asked(old) + old.promised for old in earlier if not _lost(old))
        if cause is not None:
            earlier.remove(cause)
        elif not planned:
            wrong.append(entry)
        earlier.append(entry)
    return wrong


def _story(wrong: Entry, entries: Iterable[Entry]) -> str:
    """All requests for an object, a line each."""
    of_one = [entry for entry in entries if entry.object == wrong.object]
    return f"{wrong.range} of {wrong.object}\n" + "\n".join(
        f"  {old.began:.3f} {old.range or 'all'}: {old.status}, {old.sent:,} of {old.promised:,} bytes {old.fault}"
        f"{' slow' if old.slow else ''}{' <- this one' if old is wrong else ''}"
        for old in of_one
    )


def _asked(entry: Entry) -> int:
    """The first byte that was asked for."""
    return int(entry.range.removeprefix("bytes=").partition("-")[0] or 0)


def _lost(entry: Entry) -> bool:
    """Whether a request ended in a way that gives a reason for another."""
    return bool(entry.fault) or entry.sent < entry.promised


def _explains(entry: Entry, start: int) -> bool:
    """Whether a request gives a reason for one that begins at `start`."""
    reached = _asked(entry) + (entry.sent if entry.status in (200, 206) else 0)
    return (_lost(entry) or entry.slow) and _asked(entry) <= start <= reached


def _digest(paths: Sequence[str], rests: random.Random | None = None, **options: Any) -> tuple[int, str, int]:
    """How many records, a hash of all of them in their order, and how many requests were made because others were late.

    Read with rests, or without.
    """
    count, digest = 0, hashlib.blake2b()
    dataset = TFRecordDataset(paths, num_parallel_reads=16, **options).batch(64)
    iterator = iter(dataset if rests is None else dataset.with_options(memory_budget=rests.choice(BUDGETS)))
    for frames in iterator:
        if rests is not None and rests.random() < REST_SHARE:
            time.sleep(rests.uniform(0, REST_SECONDS))
        count += len(frames)
        for record in frames:
            digest.update(len(record).to_bytes(8, "little"))
            digest.update(record)
    stores = iterator.stats().storage.backends.values()
    late = sum(counts.hedges + counts.retries.get("timed_out", 0) for counts in stores)
    return count, digest.hexdigest(), late


def _shard(rng: random.Random, size: int) -> bytes:
    """A shard of about `size` bytes: records of 0 bytes to a good part of it."""
    records, total = [], 0
    while total < size:
        records.append(rng.randbytes(int(10 ** rng.uniform(0, 5.5))))
        total += len(records[-1])
    return encode_records(records)


async def _store(store: Store, urls: Sequence[str], shards: Sequence[bytes]) -> None:
    async with Storages(store.options) as storages:
        storage = await storages.at(store.url)
        for url, data in zip(urls, shards, strict=True):
            async with await storage.upload(url) as upload:
                await upload.write(data)


def main() -> None:
    """Soaks each server for its share of the time, and says what was met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="s3,gcs")
    parser.add_argument("--megabytes", type=float, default=4.0)
    given = parser.parse_args()
    names = given.only.split(",")
    for name in names:
        with SERVERS[name]() as store, Soak(store, given.seed, given.megabytes) as soak:
            report = soak.run(given.seconds / len(names))
        print(f"{name}: {report.rounds} rounds, {report.records:,} records, {report.requests:,} requests", flush=True)
        print(f"   met {', '.join(f'{count} {fault}' for fault, count in sorted(report.faults.items()))}", flush=True)


if __name__ == "__main__":
    main()
