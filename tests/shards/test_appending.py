"""A service that appends events: rotation, names of its own, and what a killed process leaves."""

import asyncio
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streamrec import ShardWriter, TFRecordDataset
from streamrec.errors import NotFoundError
from streamrec.shards import ShardTarget
from streamrec.shards.patterns import fill_run, has_own_names
from streamrec.shards.rotation import Rotation
from streamrec.tfrecord import TFRecordOptions
from tests.servers.real import Store
from tests.storage.contract import wait_until

# Names


def test_a_run_has_names_that_no_other_run_has(tmp_path: Path) -> None:
    pattern = f"{tmp_path}/{{time:%Y}}/events-{{time}}-{{uuid}}-{{shard:05d}}.tfrecord"
    first, second = (ShardWriter(pattern).pattern for _ in range(2))
    assert first != second
    year = datetime.now(UTC).year
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path))}/{year}/events-\d{{8}}T\d{{6}}Z-[0-9a-f]{{32}}-{{shard:05d}}.tfrecord",
        first,
    )


@pytest.mark.parametrize("pattern", ["a-{shard}", "{timer}-{uuids}", "{uuid:x}", "{Time}"])
def test_other_braces_stay_as_they_are(pattern: str) -> None:
    assert not has_own_names(pattern)
    assert fill_run(pattern, datetime(2026, 1, 1, tzinfo=UTC), "0a") == pattern


def target(pattern: str, **more: Any) -> ShardTarget:
    return ShardTarget(pattern=pattern, options=TFRecordOptions.of(None), **more)


def test_names_of_its_own_replace_nothing_by_default() -> None:
    assert target("a-{shard}").overwrite is True
    assert target("a-{uuid}-{shard}").overwrite is False
    assert target("a-{time}").overwrite is False
    assert target("a-{uuid}", overwrite=True).overwrite is True


# Rotation


async def test_rotate_makes_the_records_so_far_visible(tmp_path: Path) -> None:
    async with ShardWriter(f"{tmp_path}/{{uuid}}-{{shard}}.tfrecord") as writer:
        assert await writer.rotate() is None
        for number in range(3):
            await writer.write(b"%d" % number)
        shard = await writer.rotate()
        assert shard is not None
        assert shard.records == 3
        assert list(TFRecordDataset(shard.path)) == [b"0", b"1", b"2"]
        assert await writer.rotate() is None
        await writer.write(b"3")
    assert [found.records for found in writer.shards] == [3, 1]


def has_shards(writer: ShardWriter, count: int) -> bool:
    """Whether a writer has finished so many shards."""
    return len(writer.shards) == count


async def test_a_shard_is_finished_when_it_is_old_enough(tmp_path: Path) -> None:
    pattern = f"{tmp_path}/{{uuid}}-{{shard}}.tfrecord"
    async with ShardWriter(pattern, max_shard_seconds=0.05) as writer:
        for expected in (1, 2):  # no call comes meanwhile
            await writer.write(b"event")
            await wait_until(partial(has_shards, writer, expected))
            assert len(list(TFRecordDataset(f"{tmp_path}/*.tfrecord"))) == expected
    assert [shard.records for shard in writer.shards] == [1, 1]


async def test_a_rotated_shard_is_not_finished_again_by_its_timer() -> None:
    began: list[object] = []

    async def finish(shard: object) -> None:
        began.append(shard)

    rotation = Rotation(0.0, finish)
    rotation.watch("first")
    rotation.watch(None)
    rotation.watch("second")
    rotation.watch("second")
    await wait_until(lambda: bool(began))
    assert began == ["second"]


async def test_an_error_of_the_timer_is_raised_by_the_next_call(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    async with ShardWriter(f"{folder}/{{uuid}}-{{shard}}.tfrecord", max_shard_seconds=0) as writer:
        await writer.write(b"event")
        shutil.rmtree(folder)  # the shard cannot get its name any more
        await wait_until(lambda: not writer._turns.are_taken and writer._rotation.has_ended)
        with pytest.raises(NotFoundError):
            await writer.write(b"event")
        await writer.abort()


@pytest.mark.parametrize("what", ["max_shard_seconds", "rotate()"])
async def test_rotate_and_timers_are_refused_where_shards_appear_only_at_the_end(
    tmp_path: Path, what: str
) -> None:
    pattern = f"{tmp_path}/events-{{shard}}.tfrecord"
    with pytest.raises(ValueError, match=re.escape(f"{what} makes each shard visible at once")):
        if what == "rotate()":
            async with ShardWriter(pattern) as writer:
                await writer.rotate()
        else:
            ShardWriter(pattern, max_shard_seconds=1)


async def test_rotation_needs_several_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gives all shards the same name"):
        ShardWriter(f"{tmp_path}/{{uuid}}", max_shard_seconds=1)
    async with ShardWriter(f"{tmp_path}/{{uuid}}") as writer:
        with pytest.raises(ValueError, match="gives all shards the same name"):
            await writer.rotate()


async def test_a_writer_of_months_keeps_nothing_of_its_finished_shards(tmp_path: Path) -> None:
    async with ShardWriter(f"{tmp_path}/{{uuid}}-{{shard}}.tfrecord") as writer:
        for _ in range(20):
            await writer.write(b"event")
            await writer.rotate()
        objects = writer._output._own_objects
        assert (objects._members, objects._names) == ([], {})


# A killed process


EVENTS = """
import asyncio, json, sys
from streamrec import ShardWriter

async def serve(pattern, options, first):
    writer = ShardWriter(pattern, max_shard_records=7, storage_options=options)
    async with writer:
        waiting = []
        for number in range(first, first + 100_000):
            await writer.write(b"%d" % number)
            waiting.append(number)
            if number % 5 == 0:
                await writer.rotate()
                print(*waiting, flush=True)  # acknowledged
                waiting = []

asyncio.run(serve(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))
"""


def killed_runs(pattern: str, options: Mapping[str, Any], runs: int = 3) -> tuple[set[int], int]:
    """Runs the service several times and kills each at a random moment; the events that it has
    acknowledged, and how many it may have written at all.
    """
    acknowledged: set[int] = set()
    draw = random.Random(7)
    first = 0
    for _ in range(runs):
        command = [sys.executable, "-c", EVENTS, pattern, json.dumps(dict(options)), str(first)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(draw.randrange(2, 12)):
                acknowledged.update(map(int, process.stdout.readline().split()))
            process.send_signal(signal.SIGKILL)
            rest = process.stdout.read()
            complete = rest[: rest.rfind("\\n") + 1] if "\\n" in rest else ""
            acknowledged.update(map(int, complete.split()))
        first += 100_000
    return acknowledged, first


def check_events(pattern: str, options: Mapping[str, Any]) -> None:
    """Each acknowledged event is there once, and none is there twice."""
    acknowledged, _ = killed_runs(pattern, options)
    written = re.sub(r"\{\w+(:\w+)?\}", "*", pattern)
    found = Counter(map(int, TFRecordDataset(written, storage_options=dict(options))))
    assert len(acknowledged) >= 3
    assert not acknowledged - set(found)
    assert set(found.values()) == {1}


NAMES = "events-{time}-{uuid}-{shard:06d}.tfrecord"


def test_a_killed_service_loses_no_acknowledged_event(tmp_path: Path) -> None:
    check_events(f"{tmp_path}/{NAMES}", {})


def test_a_killed_service_loses_no_acknowledged_event_on_s3(s3_store: Store) -> None:
    check_events(f"{s3_store.url}/{uuid4()}/{NAMES}", s3_store.options)


def test_a_killed_service_loses_no_acknowledged_event_on_gcs(gcs_store: Store) -> None:
    check_events(f"{gcs_store.url}/{uuid4()}/{NAMES}", gcs_store.options)


# Many writers


async def test_a_thousand_writers_share_one_loop(tmp_path: Path) -> None:
    """Each has a file of its own open, and all records arrive."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(1000, descriptors // 4)
    writers = [ShardWriter(f"{tmp_path}/{n}-{{uuid}}-{{shard}}.tfrecord") for n in range(count)]
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.__aenter__())
    for number in range(3):
        await asyncio.gather(*[writer.write(b"%d" % number) for writer in writers])
    shards = await asyncio.gather(*[writer.rotate() for writer in writers])
    assert [shard.records for shard in shards if shard] == [3] * len(writers)
    await asyncio.gather(*[writer.close() for writer in writers])
    assert len(list(TFRecordDataset(f"{tmp_path}/*.tfrecord"))) == 3 * len(writers)
    assert len(os.listdir(tmp_path)) == len(writers)
