"""The reading soak: 32 shards through a proxy that breaks, refuses, stalls and delays, round after
round.

One body in five is reset, one request in ten is a 503, one body in twenty stalls, one request in
twenty is slow. In every other round the consumer rests now and then, for longer than a body may
stall, within a budget that holds a part of the shards. Each round draws from its seed, reads
everything through `TFRecordDataset`, and holds it to:

* All records come, byte for byte, in the order in which the same dataset reads the same shards from
  disk.
* Every fault was met, so that the round says something.
"""

import hashlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from streamrec import RetryPolicy, TFRecordDataset, encode_records
from tests.servers.faults import Faults
from tests.servers.real import Store
from tests.storage.faultproxy import DrawnFaults, FaultProxy, in_a_thread

SHARDS: Final = 32
FAULTS: Final = Faults(
    first_byte=0.002,
    jitter=0.002,
    reset=0.20,
    unavailable=0.10,
    stall=0.05,
    slow=0.05,
    slow_first_byte=0.5,
)
BUDGETS: Final = (8 << 20, 24 << 20, 64 << 20)
REST_SHARE: Final = 0.03
REST_SECONDS: Final = 2.0
POLICY: Final = RetryPolicy(attempts=10, backoff_base=0.02, backoff_cap=0.5, stall_timeout=1.0)


@dataclass
class Report:
    """Rounds that were read, records that were compared, requests for their bytes, and how often
    each fault was met.
    """

    rounds: int = 0
    records: int = 0
    requests: int = 0
    faults: Counter[str] = field(default_factory=Counter)


def soak(
    store: Store, seed: int, seconds: float = 0.0, rounds: int = 1, megabytes: float = 2.0
) -> Report:
    """Reads shards of that many megabytes each, until the time is over and so many rounds are read.

    Raises:
        AssertionError: A record is missing, altered or out of place, a request outlives the last
            one, or a fault was never met.
    """
    shards = [
        _shard(random.Random(f"{seed}/{index:03d}.tfrecord"), int(megabytes * 1e6))
        for index in range(SHARDS)
    ]
    urls = [f"{store.url}/soak-{seed}/{index:03d}.tfrecord" for index in range(SHARDS)]
    store.put(dict(zip(urls, shards, strict=True)))
    with tempfile.TemporaryDirectory(prefix="streamrec-soak-") as directory:
        paths = [Path(directory, f"{index:03d}.tfrecord") for index in range(SHARDS)]
        for path, data in zip(paths, shards, strict=True):
            path.write_bytes(data)
        wanted = _digest(list(map(str, paths)))
    report = Report()
    proxy = FaultProxy(store.endpoint)
    until = time.monotonic() + seconds
    with in_a_thread(proxy) as portal:
        while report.rounds < rounds or time.monotonic() < until:
            own = seed * 1_000_003 + report.rounds
            proxy.choose = drawn = DrawnFaults(replace(FAULTS, seed=own))
            rests = random.Random(own) if report.rounds % 2 else None
            found = _digest(
                urls,
                rests,
                storage_options={**store.options, "endpoint_url": proxy.url},
                retry=POLICY,
            )
            assert found == wanted, (
                f"seed {seed}, round {report.rounds}: other records than on disk"
            )
            portal.call(proxy.rest)  # no request is under way after the last record
            report.rounds += 1
            report.records += found[0]
            report.requests += sum(
                asked for (kind, _), asked in drawn.asked.items() if kind == "read"
            )
            report.faults.update(drawn.met)
    missing = {"reset", "unavailable", "stall", "slow"} - report.faults.keys()
    assert not missing, f"never met: {missing}"
    return report


def _digest(
    paths: Sequence[str], rests: random.Random | None = None, **options: Any
) -> tuple[int, str]:
    """How many records, and a hash of all of them in their order; read with rests, or without."""
    count, digest = 0, hashlib.blake2b()
    dataset = TFRecordDataset(paths, num_parallel_reads=16, **options).batch(64)
    for frames in (
        dataset if rests is None else dataset.with_options(memory_budget=rests.choice(BUDGETS))
    ):
        if rests is not None and rests.random() < REST_SHARE:
            time.sleep(rests.uniform(0, REST_SECONDS))
        count += len(frames)
        for record in frames:
            digest.update(len(record).to_bytes(8, "little"))
            digest.update(record)
    return count, digest.hexdigest()


def _shard(rng: random.Random, size: int) -> bytes:
    """A shard of about `size` bytes: records of 0 bytes to a good part of it."""
    records, total = [], 0
    while total < size:
        records.append(rng.randbytes(int(10 ** rng.uniform(0, 5.5))))
        total += len(records[-1])
    return encode_records(records)
