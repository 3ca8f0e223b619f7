"""Writers that are killed.

Each round starts a process that writes three shards (two of several parts, one of one) and a
manifest, kills it (SIGKILL) at a random moment, and looks at the store with other clients than
ours: every object under a final name must be whole. Then the writer runs again with the same names:
all must be there and right, no unfinished upload and no temporary file left, and the manifest must
verify. Old objects that a killed replacement has secured stay until they are removed, as `doctor`
says: they must be whole, and the soak removes them. Every second round writes over what the one
before it left, so an object may also be the old one, whole.

The writers reach SeaweedFS and fake-gcs-server through a proxy, with faults drawn anew for each of
them: of the requests with a body one in five is reset (some only when the server has done what they
ask), one in twenty stalls, of all requests one in ten is a 503 and one in twenty is slow. Who looks
goes to the server directly.
"""

import asyncio
import multiprocessing
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import fsspec
import numpy as np
from anyio.from_thread import BlockingPortal
from fsspec.asyn import sync
from gcsfs.core import GCSFileSystem

from streamrec import RetryPolicy, ShardWriter, verify_sync
from tests.servers.faults import Faults
from tests.servers.real import Store
from tests.storage.faultproxy import DrawnFaults, FaultProxy, in_a_thread

FAULTS = Faults(
    first_byte=0.002,
    jitter=0.002,
    upload_reset=0.15,
    lost_answer=0.05,
    upload_stall=0.05,
    unavailable=0.10,
    slow=0.05,
    slow_first_byte=0.5,
)
SHARD_BYTES = 11 << 20
RECORD_BYTES = 250_000
POLICY = RetryPolicy(  # patient with many faults, impatient with each: a stall costs two seconds
    attempts=20,
    backoff_base=0.02,
    backoff_cap=0.5,
    connect_timeout=1.0,
    first_byte_timeout=1.0,
    stall_timeout=2.0,
    complete_timeout=10.0,
    upload_rate=8 << 20,
)
RECORDS = 2 * (SHARD_BYTES // RECORD_BYTES) + 3


# The process that is killed: it writes three shards and a manifest, the same bytes for the same
# version.


def records(version: int) -> Iterator[bytes]:
    source = np.random.default_rng(version)
    return (source.bytes(RECORD_BYTES) for _ in range(RECORDS))


async def write(url: str, options: Mapping[str, Any], version: int) -> None:
    writer = ShardWriter(
        f"{url}/train-{{shard:02d}}",
        max_shard_bytes=SHARD_BYTES,
        manifest=f"{url}/manifest.json",
        storage_options=options,
        retry=POLICY,
    )
    async with writer:
        for record in records(version):
            await writer.write(record)


def run_writer(begun: Connection, url: str, options: Mapping[str, Any], version: int) -> None:
    begun.send_bytes(b"begun")
    asyncio.run(write(url, options, version))


# The parent.


@dataclass
class Seen:
    """What a soak saw: writers killed before their end, whole objects found after a kill, orphans
    that were ended.

    And the requests of all writers, and how often each fault was met.
    """

    rounds: int = 0
    killed: int = 0
    whole: int = 0
    orphans: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        met = ", ".join(f"{count} {fault}" for fault, count in sorted(self.faults.items()))
        return (
            f"{self.rounds} rounds, {self.killed} writers killed at work; after the kills "
            f"{self.whole} whole objects,"
            f" 0 partial ones, {self.orphans} unfinished uploads; after the next runs none"
            f"; {self.requests:,} requests met {met}"
        )


@contextmanager
def other_client(kind: str, store: Store) -> Iterator[fsspec.AbstractFileSystem]:
    """A client of the store that is not ours."""
    cls = fsspec.get_filesystem_class("s3") if kind == "s3" else GCSFileSystem
    others = cls(**store.options, skip_instance_cache=True, use_listings_cache=False)
    try:
        yield others
    finally:
        if (
            kind == "s3" and others._s3 is not None
        ):  # else its finalizer closes it, in whichever loop runs then
            sync(others.loop, others._s3creator.__aexit__, None, None, None)


def expected(version: int, directory: str) -> dict[str, bytes]:
    """What must be in the store under each name, the manifest aside."""
    asyncio.run(write(f"memory://{directory}", {}, version))
    memory = fsspec.filesystem("memory")
    found = {
        name.rpartition("/")[2]: memory.cat_file(name) for name in memory.find(f"/{directory}")
    }
    memory.rm(f"/{directory}", recursive=True)
    return found


class Soak:
    """A directory of a store, and the objects that must be there.

    Args:
        store: The server.
        others: A client of it that is not ours.
        proxy: What writers go through.
        portal: Calls the proxy.
        seed: Of the moments.
    """

    def __init__(
        self,
        store: Store,
        others: fsspec.AbstractFileSystem,
        proxy: FaultProxy,
        portal: BlockingPortal,
        seed: int,
    ) -> None:
        self._url = f"{store.url}/soak"
        self._options = store.options
        self._others = others
        self._proxy, self._portal = proxy, portal
        self._seed = seed
        self._random = random.Random(seed)
        self._processes = multiprocessing.get_context("forkserver")
        backends = [f"streamrec.storage.backends.{name}" for name in ("s3", "gcs")]
        self._processes.set_forkserver_preload(["tests.soak.writing", *backends])
        self._versions = [expected(version, f"soak-{seed}-{version}") for version in (0, 1)]
        self.seen = Seen()
        self._seconds, _ = self._write(0)

    def round(self) -> None:
        number = self.seen.rounds
        fresh, version = number % 4 in (0, 3), number % 2
        if fresh and self._names():
            self._others.rm(self._url, recursive=True)
        self.seen.killed += self._write(version, self._random.uniform(0, 1.05 * self._seconds))[1]
        self.seen.orphans += len(self._orphans())
        self.seen.whole += self._check_whole([version] if fresh else [version, 1 - version])
        self._seconds, _ = self._write(version)
        self._check_all(version)
        self.seen.rounds += 1

    def _write(self, version: int, seconds: float | None = None) -> tuple[float, bool]:
        """Lets a writer come to its end, or kills it after so long, with new faults.

        Returns:
            How long it took, and whether it was killed at work.
        """
        what = "run" if seconds is None else "kill"
        faults = replace(
            FAULTS, seed=random.Random(f"{self._seed}/{self.seen.rounds}/{what}").getrandbits(32)
        )
        self._proxy.choose = drawn = DrawnFaults(faults)
        ours, theirs = self._processes.Pipe(duplex=False)
        arguments = (theirs, self._url, {**self._options, "endpoint_url": self._proxy.url}, version)
        process = self._processes.Process(target=run_writer, args=arguments)
        process.start()
        theirs.close()
        ours.recv_bytes()
        ours.close()
        began = time.monotonic()
        process.join(120 if seconds is None else seconds)
        took = time.monotonic() - began
        if seconds is not None:
            process.kill()
            process.join()
        assert process.exitcode in ((0,) if seconds is None else (0, -signal.SIGKILL)), (
            f"it ended: {process.exitcode}"
        )
        self._portal.call(self._proxy.rest)  # no request is still on its way to the store
        self.seen.requests += drawn.asked.total()
        self.seen.faults.update(drawn.met)
        return took, bool(process.exitcode)

    def _check_whole(self, versions: list[int]) -> int:
        """Whatever has a final name is whole; returns how many shards have one."""
        names = [name for name in self._names() if name.startswith("train-")]
        for name in names:
            data = self._others.cat_file(f"{self._url}/{name}")
            assert any(data == self._versions[version][name] for version in versions), (
                f"{name} is not whole"
            )
        return len(names)

    def _check_all(self, version: int) -> None:
        """All is there and right, and nothing else is."""
        wanted = self._versions[version]
        self._remove_secured()
        assert self._names() == sorted(wanted), self._names()
        self._check_whole([version])
        assert not self._orphans(), self._orphans()
        report = verify_sync(f"{self._url}/manifest.json", storage_options=self._options)
        assert report.ok, str(report)

    def _remove_secured(self) -> None:
        """Removes the old objects that a writer killed within its replacement has secured, as
        `doctor` says to do.
        """
        for name in [name for name in self._names() if ".streamrec-old-" in name]:
            old, url = name.partition(".streamrec-old-")[0].removeprefix("."), f"{self._url}/{name}"
            if old.startswith("train-"):
                data = self._others.cat_file(url)
                assert any(data == version[old] for version in self._versions), (
                    f"{name} is not whole"
                )
            self._others.rm_file(url)

    def _names(self) -> list[str]:
        self._others.invalidate_cache()
        root = self._others._strip_protocol(self._url) + "/"
        found = self._others.find(self._url) if self._others.exists(self._url) else []
        return sorted(name.removeprefix(root) for name in found if name.startswith(root))

    def _orphans(self) -> list[str]:
        """Unfinished multipart uploads. The sessions of GCS cannot be listed; the store drops
        them.
        """
        if self._url.startswith("gs"):
            return []
        bucket, _, key = self._url.removeprefix("s3://").partition("/")
        page = self._others.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
        return [upload["Key"] for upload in page.get("Uploads", ())]


def soak(kind: str, kills: int, seed: int, store: Store) -> Seen:
    """Kills a number of writers at a store; see the top of this file.

    Args:
        kind: "s3" (SeaweedFS) or "gcs" (fake-gcs-server).
        kills: How many; those that come too late, after the writer's end, are not counted.
        seed: Of the random moments.
        store: The server.
    """
    proxy = FaultProxy(store.endpoint)
    with other_client(kind, store) as others, in_a_thread(proxy) as portal:
        rounds = Soak(store, others, proxy, portal, seed)
        while rounds.seen.killed < kills:
            try:
                rounds.round()
            except AssertionError as error:
                error.add_note(f"{kind}, seed {seed}, round {rounds.seen.rounds}")
                raise
    return rounds.seen
