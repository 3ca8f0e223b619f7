"""Helpers that decipher: they end when nobody waits, they outlive no process, and what they read is what was sent."""

import asyncio
import itertools
import os
import subprocess
import sys
import threading

import pytest

from streamrec import ShardWriter, TFRecordDataset
from streamrec.storage.backends.http import tls_body
from streamrec.storage.backends.http.helpers import Helpers, Load
from streamrec.testing.servers import Store
from tests.effort import OTHER_CLIENT
from tests.storage.backends.test_tls import relayed, store
from tests.storage.contract import QUICK

__all__ = ["store"]


async def test_a_read_that_is_cancelled_leaves_the_buffer_alone() -> None:
    """The cancellation follows when the helper is out of it."""
    helpers, began, cancelled, ended = Helpers(1), threading.Event(), threading.Event(), threading.Event()

    def read(target: memoryview) -> int:
        began.set()
        cancelled.wait()
        for index in range(len(target)):
            target[index] = 1
        ended.set()
        return len(target)

    task = asyncio.create_task(helpers.read(read, memoryview(bytearray(100_000))))
    waiting = asyncio.create_task(helpers.read(read, memoryview(bytearray(1))))
    await asyncio.to_thread(began.wait)
    for each in (waiting, task):  # the one that did not begin, and the one that did
        each.cancel()
    asyncio.get_running_loop().call_later(0, cancelled.set)
    threading.Thread(target=cancelled.set).start()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_no_thread_is_helped_that_has_time() -> None:
    clock = worked = 0.0
    load = Load(lambda: clock, lambda: worked)
    found = []
    for share in (0.5, 0.8, 0.9, 0.7, 0.5):
        clock, worked = clock + 1.0, worked + share
        found.append(load.is_busy())
    assert found == [False, False, True, True, False]
    for helped in (0.9, 0.2):  # what helpers do, it would do itself
        clock += 1.0
        load.helped(helped)
        found.append(load.is_busy())
    assert found[5:] == [True, False]


@pytest.fixture(scope="module")
def shards(store: Store) -> list[tuple[str, list[bytes]]]:
    """URLs, and their records."""
    made = [(f"{store.url}/helped-{index}.tfrecord", [os.urandom(50_000) for _ in range(60)]) for index in range(6)]

    async def write() -> None:
        for url, records in made:
            async with ShardWriter(url, storage_options=store.options) as writer:
                for record in records:
                    await writer.write(record)

    asyncio.run(write())
    return made


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_body, "HELPERS", Helpers(2))
    monkeypatch.setattr(Load, "is_busy", lambda _: True)


@pytest.mark.usefixtures("helped")
def test_a_storm_over_two_helpers_and_a_resume_in_it(store: Store, shards: list[tuple[str, list[bytes]]]) -> None:
    """Every third connection breaks within its body: the same records in the same order, also from a state on."""
    expected = [record for turn in zip(*(records for _, records in shards), strict=True) for record in turn]
    broken = itertools.count()

    def harm(number: int, came: int, chunk: bytes) -> bytes | None:
        if number % 3 == 1 and came > 400_000:
            next(broken)
            return None
        return chunk

    async def read() -> tuple[list[bytes], int]:
        async with relayed(store, harm) as options:
            dataset = TFRecordDataset(
                [url for url, _ in shards], num_parallel_reads=6, storage_options=options, retry=QUICK
            )

            def taken() -> tuple[list[bytes], int]:
                with dataset.iterate() as records:
                    first = list(itertools.islice(records, 133))
                    state = records.state_dict()
                with dataset.iterate(state=state) as records:
                    rest = list(records)
                    return first + rest, records.stats().storage.backends["s3"].helped_bytes

            return await asyncio.to_thread(taken)

    found, helped_bytes = asyncio.run(read())
    assert found == expected
    assert next(broken) > 0
    assert helped_bytes > 0


SCRIPT = """
import os, sys
from streamrec import TFRecordDataset
from streamrec.storage.backends.http.helpers import HELPERS, Load

Load.is_busy = lambda self: True
HELPERS.most = 2
dataset = TFRecordDataset({urls!r}, num_parallel_reads=6, storage_options={options!r})
assert len(list(dataset)) == {count}
child = os.fork()
with dataset.iterate() as records:
    assert len(list(records)) == {count}
    assert records.stats().storage.backends["s3"].helped_bytes > 0
if child:
    assert os.waitpid(child, 0)[1] == 0
    iterator = iter(dataset)
    next(iterator)
print("read", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_helpers_of_its_own_and_none_holds_an_exit_up(
    store: Store, shards: list[tuple[str, list[bytes]]]
) -> None:
    urls, count = [url for url, _ in shards], sum(len(records) for _, records in shards)
    script = SCRIPT.format(urls=urls, options=store.options, count=count)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], capture_output=True, text=True, timeout=90
    )
    assert (done.returncode, done.stdout) == (0, "read\n" * 2), done.stderr
    said = [line for line in done.stderr.splitlines() if not (OTHER_CLIENT and "repeated_gets" in line)]
    assert not said  # an old client has no GETs that can be repeated, which is said once
