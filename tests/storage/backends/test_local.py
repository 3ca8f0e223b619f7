"""Local files."""

# ruff: noqa: ASYNC240 (a test may block its own loop)

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec.errors import (
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage import Storage
from streamrec.storage.backends.local.backend import SHORT_BYTES, ReadTurns
from tests.storage.contract import (
    DATA,
    PART,
    Place,
    StorageTests,
    kill_while_writing,
    open_storage,
    read_all,
    write_object,
)


def overwrite_in_place(path: str) -> None:
    with open(path, "r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(1, 1))


class TestPlainPaths(StorageTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(str(tmp_path))

    async def check_nothing_is_left(self, storage: Storage, path: str) -> None:
        await super().check_nothing_is_left(storage, path)
        assert os.listdir(Path(path).parent) == []

    async def test_directories_are_made(self, storage: Storage, path: str) -> None:
        await self.put(storage, f"{path}/deep/er/file", DATA)
        assert Path(f"{path}/deep/er/file").read_bytes() == DATA

    async def test_a_directory_is_not_an_object(self, storage: Storage, tmp_path: Path) -> None:
        for call in (storage.stat(str(tmp_path)), storage.stream(str(tmp_path))):
            with pytest.raises(StorageError, match="directory"):
                await call

    @pytest.mark.parametrize("change", [lambda path: os.truncate(path, PART), overwrite_in_place])
    async def test_a_file_that_is_modified_while_read_is_an_error(
        self, storage: Storage, path: str, change: Callable[[str], None]
    ) -> None:
        await self.put(storage, path, DATA)
        stream = await storage.stream(path)
        await stream.readinto(memoryview(bytearray(PART)))
        change(path)
        with pytest.raises(ObjectChangedError) as caught:
            await read_all(stream)
        assert caught.value.offset == PART

    async def test_no_right_to_write(self, storage: Storage) -> None:
        with pytest.raises(PermissionDeniedError if os.geteuid() else StorageError):
            await storage.upload("/proc/1/streamrec-test")

    async def test_a_killed_process_leaves_no_object(self, storage: Storage, path: str) -> None:
        kill_while_writing([path], {}, PART)
        await super().check_nothing_is_left(storage, path)
        assert [info async for info in storage.list(str(Path(path).parent) + "/")] == []

    async def test_the_next_upload_removes_what_a_killed_one_left(
        self, storage: Storage, path: str
    ) -> None:
        kill_while_writing([path, path + "-longer"], {}, PART)
        await self.put(storage, path, DATA)
        [left, name] = sorted(os.listdir(Path(path).parent))
        assert name == Path(path).name
        assert left.startswith(f".{name}-longer.streamrec-")

    async def test_temporary_files_of_others_are_left_alone(
        self, storage: Storage, path: str
    ) -> None:
        elsewhere = Path(path).parent / f".{Path(path).name}.streamrec-01234567-0123456789abcdef"
        elsewhere.write_bytes(b"of another machine")
        alive = await storage.upload(path)
        await alive.write(b"first")
        await self.put(storage, path, b"second")
        assert await storage.read_range(path, 0, 10) == b"second"
        await alive.complete()
        assert await storage.read_range(path, 0, 10) == b"first"
        assert sorted(Path(path).parent.iterdir()) == [elsewhere, Path(path)]
        assert [info.path async for info in storage.list(str(Path(path).parent) + "/")] == [path]

    async def test_it_is_on_the_disk_before_it_has_its_name(
        self, storage: Storage, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []

        def spy(name: str, describe: Callable[..., str]) -> None:
            real = getattr(os, name)

            def call(*arguments: Any) -> Any:
                calls.append(describe(*arguments))
                return real(*arguments)

            monkeypatch.setattr(os, name, call)

        def name_of(handle: int) -> str:
            return os.path.basename(os.readlink(f"/proc/self/fd/{handle}")).partition(
                ".streamrec-"
            )[0]

        spy("fsync", lambda handle: f"fsync {name_of(handle)}")
        spy("replace", lambda old, new: f"rename to {os.path.basename(new)}")
        spy("link", lambda old, new: f"link to {os.path.basename(new)}")
        await self.put(storage, f"{path}/new/x", DATA)
        parent, base = Path(path).parent.name, Path(path).name
        assert calls == [f"fsync {base}", f"fsync {parent}", "fsync .x", "rename to x", "fsync new"]
        calls.clear()
        await write_object(storage, f"{path}/new/y", DATA, overwrite=False)
        assert calls == ["fsync .y", "link to y", "fsync new"]
        assert sorted(os.listdir(f"{path}/new")) == ["x", "y"]

    async def test_a_filesystem_without_hard_links_says_so(
        self, storage: Storage, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(old: Path, new: Path) -> None:
            raise OSError(errno.EPERM, "no hard links here")

        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(UnsupportedOperationError, match="overwrite=True"):
            await write_object(storage, path, DATA, overwrite=False)
        await self.check_nothing_is_left(storage, path)

    async def test_the_mode_follows_the_umask(self, storage: Storage, path: str) -> None:
        await self.put(storage, path, DATA)
        Path(path + "-other").touch()
        assert os.stat(path).st_mode == os.stat(path + "-other").st_mode

    async def test_relative_paths(
        self, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("train-1", "sub/train-2", "other"):
            await self.put(storage, name, DATA)
        assert [info.path async for info in storage.list("train-")] == ["train-1"]
        assert [info.path async for info in storage.list("sub/")] == ["sub/train-2"]
        assert await storage.read_range("sub/train-2", 5, 10) == DATA[5:10]


class TestFileUrls(StorageTests):
    LISTED = StorageTests.LISTED[:-2]  # the others are written percent-encoded in a URL

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"file://{tmp_path}")


async def test_a_tilde_is_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    async with streamrec.ShardWriter(
        "~/shards/x-{shard}.tfrecord", manifest="~/shards/manifest.json"
    ) as writer:
        await writer.write(b"a record")
    assert sorted(os.listdir(tmp_path / "shards")) == ["manifest.json", "x-0.tfrecord"]
    for name in (
        "~/shards/x-0.tfrecord",
        "~/shards/x-*.tfrecord",
        "~/**/x-*",
        "file://~/shards/x-?.tfrecord",
    ):
        assert [record async for record in streamrec.TFRecordDataset(name)] == [b"a record"]
    found = [bytes(name) async for name in streamrec.Dataset.list_files("~/shards/x-*")]
    assert found == [b"~/shards/x-0.tfrecord"]
    assert (await streamrec.verify("~/shards/manifest.json")).ok
    (tmp_path / "~x").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert [record async for record in streamrec.TFRecordDataset("~x")] == []


@pytest.mark.parametrize("size", [1, 100_000, SHORT_BYTES, SHORT_BYTES + 1])
async def test_a_short_file_is_read_whole_when_it_is_opened(tmp_path: Path, size: int) -> None:
    """It keeps its old content; a longer file that is truncated is an error."""
    path, data = tmp_path / "x", os.urandom(size)
    path.write_bytes(data)
    async with open_storage(str(path)) as storage:
        stream = await storage.stream(str(path))
        path.write_bytes(b"")
        if size > SHORT_BYTES:
            with pytest.raises(ObjectChangedError):
                await read_all(stream)
        else:
            assert await read_all(stream) == data


async def test_other_tasks_run_between_the_blocks_of_files(tmp_path: Path) -> None:
    """Each read in the loop's own thread has an iteration of the loop to itself."""
    (tmp_path / "x").write_bytes(bytes(20 * SHORT_BYTES))
    iterations = reads = 0

    async def read() -> None:
        nonlocal reads
        stream, buffer = (
            await storage.stream(str(tmp_path / "x")),
            memoryview(bytearray(SHORT_BYTES)),
        )
        while await stream.readinto(buffer):
            reads += 1
        await stream.aclose()

    async def count() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    async with open_storage(str(tmp_path)) as storage:
        counting = asyncio.ensure_future(count())
        await asyncio.gather(*(read() for _ in range(5)))
        counting.cancel()
    assert iterations >= reads >= 100


async def test_turns_come_in_order_one_in_each_iteration() -> None:
    turns = ReadTurns()
    asked: list[str] = []
    order: list[str] = []

    async def read(name: str) -> None:
        for _ in range(3):
            asked.append(name)
            await turns.take()
            order.append(name)

    reading = [asyncio.create_task(read(name)) for name in "abc"]
    counts = [0]
    while len(order) < 9:
        await asyncio.sleep(0)
        counts.append(len(order))
    await asyncio.gather(*reading)
    assert order == asked
    assert len(counts) <= 9 + 3, "a turn takes one iteration"
    # The loop may run this task before or after the one that has its turn.
    assert all(after - before <= 1 for before, after in zip(counts, counts[1:], strict=False))


@pytest.mark.parametrize("has_turn", [False, True])
async def test_who_is_cancelled_takes_the_turns_of_no_others(has_turn: bool) -> None:
    turns = ReadTurns()
    await turns.take()
    cancelled = asyncio.create_task(turns.take())
    other = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    if has_turn:
        turns._end()  # it has its turn, and does not run yet
    cancelled.cancel()
    await asyncio.wait_for(other, 10)
    await asyncio.wait_for(turns.take(), 10)


async def test_a_short_range_of_a_long_file(tmp_path: Path) -> None:
    path, data = tmp_path / "x", os.urandom(3 * SHORT_BYTES)
    path.write_bytes(data)
    async with open_storage(str(path)) as storage:
        version = (await storage.stat(str(path))).version
        for start, end in (
            (0, 10),
            (5, SHORT_BYTES + 5),
            (len(data) - 7, len(data) + 100),
            (10, len(data)),
        ):
            assert await storage.read_range(str(path), start, end, version) == data[start:end]
        path.write_bytes(data[:-1])
        with pytest.raises(ObjectChangedError):
            await storage.read_range(str(path), 0, 10, version)


async def test_a_written_buffer_may_be_used_again(tmp_path: Path) -> None:
    """Pieces of all lengths, across parts: the content of the buffer at the time of the write is
    stored.
    """
    path = str(tmp_path / "x")
    expected = bytearray()
    buffer = bytearray(1 << 20)
    async with open_storage(path) as storage, await storage.upload(path, part_size=PART) as upload:
        for size in (1, 70_000, 300_001, 5, 1 << 20, 0, 64 << 10, 3):
            buffer[:size] = os.urandom(size)
            await upload.write(memoryview(buffer)[:size])
            await upload.write(data := os.urandom(size))
            expected += buffer[:size] + data
            buffer[:size] = bytes(size)
    assert (tmp_path / "x").read_bytes() == expected


def test_the_tilde_of_a_pattern_is_the_beginning_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "~.tfrecord").touch()
    assert streamrec.matching_files("~*") == ["~.tfrecord"]
