"""A process stands still while it replaces objects, longer than its lock lasts. Another one takes
over; then the first one goes on. Nothing is mixed.
"""

import asyncio
import json
import os
import signal
import sys

import pytest

from streamrec.storage import Storages, directory_lock, recover
from tests.effort import THOROUGH
from tests.storage.faultproxy import Fault, Request
from tests.storage.uploads.test_every_request import Written, settled, shown, written

__all__ = ["written"]

LEASE = 2.0
WRITER = f"""
import asyncio, json, sys
from streamrec import ShardWriter
from streamrec.errors import StreamrecError
from streamrec.storage import directory_lock

directory_lock.LEASE_SECONDS = {LEASE}
directory_lock.BEAT_SECONDS = {LEASE / 6}

async def write(url, options):
    async with ShardWriter(
        f"{{url}}/t-{{{{shard}}}}", max_shard_records=1, manifest=f"{{url}}/m.json",
        storage_options=options,
    ) as writer:
        for number in range(3):
            await writer.write(b"first %d" % number)

for line in sys.stdin:
    try:
        asyncio.run(write(*json.loads(line)))
        print("ok", flush=True)
    except StreamrecError as error:
        print(type(error).__name__, flush=True)
"""
"""A process that writes each time it is told where to."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("late", [False, True], ids=["its request arrives", "it arrives late"])
async def test_a_process_that_stands_still_longer_than_its_lock_mixes_nothing(
    written: Written, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    if late and written.place.url.startswith("gs://"):
        pytest.skip("fake-gcs-server ignores the conditions of copies and removals")
    monkeypatch.setattr(directory_lock, "LEASE_SECONDS", LEASE)
    monkeypatch.setattr(directory_lock, "BEAT_SECONDS", LEASE / 6)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WRITER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    old = await written.write("old", 2)
    before = await written.place.snapshot()
    at = 0
    found = before
    taken = 0
    while True:
        await written.direct.restore(before, found)
        seen = 0
        locked = False
        second: list[asyncio.Task[list[bytes] | None]] = []
        ended = asyncio.Event()

        async def write_second() -> list[bytes] | None:
            """The first one goes on when this one has ended."""
            try:
                return await settled(written.write("second", 4, direct=True))
            finally:
                ended.set()  # noqa: B023
                os.kill(process.pid, signal.SIGCONT)

        def choose(request: Request) -> Fault | None:
            nonlocal seen, locked
            locked = locked or "streamrec-lock" in request.path
            seen += locked
            if seen == at + 1 and not second:  # noqa: B023
                os.kill(process.pid, signal.SIGSTOP)
                second.append(asyncio.ensure_future(write_second()))  # noqa: B023
                return Fault(until=ended) if late else None  # noqa: B023
            return None

        written.proxy.choose = choose
        process.stdin.write(json.dumps([written.place.url, written.place.options]).encode() + b"\n")
        said = (await process.stdout.readline()).decode().strip()
        if not second:
            break
        others = await second[0]
        await written.proxy.rest()
        first = [b"first %d" % number for number in range(3)]
        # a second one that fails, on a busy machine, has stood still itself
        good = others or (first if said == "ok" else old)
        taken += others is not None
        assert others is None or await written.read() == good, (at, said)
        async with Storages(written.direct.options) as storages:
            async for _ in recover(storages, f"{written.direct.url}/", lease=0.1):
                pass
        found = await written.direct.snapshot()
        assert found == shown(found), at
        assert await written.read() == good, (at, said)
        at += 1 if THOROUGH else 13
    process.stdin.close()
    await process.wait()
    assert taken > 1
