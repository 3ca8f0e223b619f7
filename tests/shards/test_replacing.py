"""Objects that replace others: whatever fails, and wherever, what was there before is as it was."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import Dataset, ShardWriter
from streamrec.storage import secured_of
from tests.effort import THOROUGH
from tests.steps import Objects, Steps, hidden, opened, quiet, refuse

Write = Callable[[str, dict[str, Any], int], Awaitable[object]]


async def with_writer(place: str, options: dict[str, Any], salt: int) -> None:
    """Two shards one after the other, then three, and an index."""
    pattern, index = f"{place}/x-{{shard}}", f"{place}/all.index"
    async with ShardWriter(pattern, max_shard_records=2, index=index, storage_options=options) as writer:
        for number in range(4 + salt):
            await writer.write(b"%d of %d" % (number, salt))


async def with_dataset(place: str, options: dict[str, Any], salt: int) -> None:
    """Two shards beside each other, then three, and a manifest."""
    records = [b"%d of %d" % (number, salt) for number in range(4 + salt)]
    await Dataset.from_tensor_slices(records).write(
        f"{place}/x-{{shard}}", num_shards=2 + salt, manifest=f"{place}/manifest.json", storage_options=options
    )


WRITERS = [with_writer, with_dataset]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store"])
@pytest.mark.parametrize("cancels", [False, True])
async def test_a_failure_at_any_step_leaves_the_old_objects(
    request: pytest.FixtureRequest, kind: str, write: Write, cancels: bool
) -> None:
    async with opened(kind, request) as place:
        await write(place.url, place.options, 0)
        old = await place.snapshot()
        place.step = count = Steps()
        await write(place.url, place.options, 1)
        place.step = quiet
        found = new = await place.snapshot()
        assert set(old) < set(new)
        assert not any(map(hidden, new))
        failed = 0
        for number in range(0, count.seen, 1 if THOROUGH or kind == "disk" else 4):
            await place.restore(old, found)
            writing = asyncio.ensure_future(write(place.url, place.options, 1))
            cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, writing.cancel)
            place.step = steps = Steps(number, cancel if cancels else refuse)
            try:
                await writing
                kept = new
            except (asyncio.CancelledError, streamrec.StorageError):
                failed += 1
                kept = old
            place.step = quiet
            found = await place.snapshot()
            shown = {name: data for name, data in found.items() if not hidden(name)}
            assert shown == kept or (cancels and shown == new), number  # it may come when all is done
            left = [name for name in found if hidden(name)]
            if kind != "disk":  # a store may still carry out what nobody waits for any more
                left = [name for name in left if secured_of(name)]
            assert steps.removal or not left, number
        assert failed > 5


@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store"])
async def test_two_writers_at_the_same_time_do_not_mix(request: pytest.FixtureRequest, kind: str) -> None:
    async with opened(kind, request) as place:
        await with_writer(place.url, place.options, 0)
        old = await place.snapshot()
        first, second = (
            ShardWriter(f"{place.url}/x-{{shard}}", max_shard_records=1, storage_options=place.options)
            for _ in range(2)
        )
        await first.__aenter__()
        await second.__aenter__()
        for writer, records in ((first, b"abc"), (second, b"de")):
            for record in records:
                await writer.write(bytes([record]))
        for writer in (first, second):
            with pytest.raises(streamrec.errors.ObjectChangedError, match="another writer writes this object"):
                await writer.close()
        assert await place.snapshot() == old


KILLED = """
import asyncio, os, signal, sys
from tests.effort import THOROUGH
from tests.shards.test_replacing import with_writer
from tests.steps import HOOKS, Steps, quiet

folder = sys.argv[1]

def child(steps, salt):
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    HOOKS.append(steps)
    asyncio.run(with_writer(folder, {}, salt))
    os._exit(0)

child(quiet, 0)
number = 0
while child(Steps(number, lambda: os.kill(os.getpid(), signal.SIGKILL)), 1):
    print(number, flush=True)
    sys.stdin.readline()
    number += 1 if THOROUGH else 3
"""


def written_anew(folder: Path) -> Objects:
    """What replaces the old objects."""
    for salt in (0, 1):
        asyncio.run(with_writer(str(folder), {}, salt))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_writer_leaves_all_old_objects_or_complete_copies(tmp_path: Path) -> None:
    folder, new = tmp_path / "d", written_anew(tmp_path / "other")
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(folder)]
    half_way = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        old: Objects = {}
        for number in process.stdout:
            found = {path.name: path.read_bytes() for path in folder.iterdir()}
            shown = {name: data for name, data in found.items() if not hidden(name)}
            old = old or shown
            copies = {secured_of(name): data for name, data in found.items() if secured_of(name)}
            if shown != new:
                assert all(old[name] in (found.get(name), copies.get(name)) for name in old), number
                half_way += shown != old
            for path in folder.iterdir():
                path.unlink()
            for name, data in old.items():
                (folder / name).write_bytes(data)
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    assert half_way > 2


async def test_the_next_writer_tells_of_what_a_killed_one_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / ".x-0.streamrec-old-0123456789abcdef"
    left.write_bytes(b"the only copy")
    await with_writer(str(tmp_path), {}, 0)
    assert not caplog.messages
    await with_writer(str(tmp_path), {}, 1)
    [said] = caplog.messages
    assert said.startswith(f"{left} is what {tmp_path}/x-0 was before a run that was to replace it ended half way")
    assert left.read_bytes() == b"the only copy"
    assert [shard.path for shard in streamrec.write_manifest_sync(f"{tmp_path}/*x-?", f"{tmp_path}/m")] == [
        f"{tmp_path}/x-{number}" for number in range(3)
    ]
