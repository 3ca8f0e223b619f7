"""The cache on disks that are full, become read-only or belong to others, and with processes that
are killed at any call or stand still: records are right, and there is one warning.
"""

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamrec import TFRecordDataset
from streamrec.storage.cache import close_caches, open_cache
from streamrec.storage.cache.names import is_lock, writer_of
from streamrec.storage.cache_settings import CacheSettings
from tests.effort import THOROUGH
from tests.servers.answering import Answer, Asked
from tests.servers.small_store import SmallStore
from tests.storage.cache.test_cache_faults import (
    MODULES,
    Disk,
    start_reading,
    store_of_three,
)
from tests.storage.cache.test_cached_reads import LONG, blocks, many_shards, records_of, shard

LIMIT = 64 << 20

FORK = multiprocessing.get_context("fork")

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can do this")


@pytest.fixture
def store() -> Iterator[SmallStore]:
    with store_of_three() as running:
        yield running
    close_caches()


@pytest.fixture
def options(store: SmallStore, tmp_path: Path) -> dict[str, Any]:
    return {**store.options("s3"), "cache_dir": str(tmp_path / "cache"), "cache_bytes": LIMIT}


def read(store: SmallStore, options: dict[str, Any]) -> dict[str, int]:
    """Reads all shards, checks the records, and returns how many bytes came from where."""
    records = TFRecordDataset(store.url("s3", "d/*"), storage_options=options).iterate()
    expected = [
        record for name in sorted(store.objects) for record in records_of(store.objects[name])
    ]
    assert list(records) == expected
    backends = records.stats().storage.backends
    return {
        "store": backends["s3"].bytes,
        "disk": backends["cache"].bytes if "cache" in backends else 0,
    }


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB, of its own."""
    where = tmp_path / "disk"
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(where)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("disks cannot be mounted here")
    try:
        yield where
    finally:
        close_caches()
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@only_root
def test_a_disk_that_is_really_full_keeps_what_it_has_and_grows_when_there_is_room(
    store: SmallStore, options: dict[str, Any], small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.objects = many_shards("d")  # 24 MB
    total = sum(map(len, store.objects.values()))
    filler = small_disk / "mine"
    filler.write_bytes(bytes(2 << 20))
    options["cache_dir"] = str(small_disk / "cache")
    assert read(store, options) == {"store": total, "disk": 0}
    assert ["without adding to it" in line for line in warned(caplog)] == [True]
    kept = read(store, options)["disk"]
    assert 0 < kept <= 2 << 20
    assert warned(caplog) == []  # once is enough
    filler.unlink()
    close_caches()
    read(store, options)
    assert read(store, options)["disk"] > kept
    # what was not complete is gone, so that its room is free
    assert not [path for path in small_disk.rglob("*") if writer_of(path.name)]


@only_root
def test_a_disk_that_becomes_read_only_under_a_running_job_is_one_warning(
    store: SmallStore, options: dict[str, Any], small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.objects = {f"d/s-{index:02d}": shard(index, LONG) for index in range(6)}
    options["cache_dir"] = str(small_disk / "cache")
    names = sorted(store.objects)
    first = [store.url("s3", name) for name in names[:2]]
    assert len(list(TFRecordDataset(first, storage_options=options))) == 2 * LONG
    close_caches()  # no file is open for writing
    dataset = TFRecordDataset(first[0], storage_options=options)
    assert len(list(dataset)) == LONG
    # open files keep a disk from becoming read-only, unless it is forced, as a fault does
    force = ["mount", "-o", "remount,ro,force", str(small_disk)]
    if subprocess.run(force, capture_output=True).returncode:
        close_caches()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for _ in range(2):
        read(store, options)
    assert len(warned(caplog)) == 1


@only_root
@pytest.mark.parametrize("mode", [0o700, 0o500, 0o000, 0o777])
def test_another_user_goes_on_without_the_cache(
    store: SmallStore, options: dict[str, Any], mode: int
) -> None:
    """Whatever that user may do with the directory: of one's own are only one's own."""
    directory = Path(options["cache_dir"])
    read(store, options)
    close_caches()
    before = blocks(directory)
    for parent in directory.parents:
        if parent.stat().st_uid == 0 and parent.name.startswith("pytest-"):
            parent.chmod(0o755)
    directory.parent.chmod(0o755)
    directory.chmod(mode)
    figures, warnings = as_another_user(read, store, options)
    assert figures == {"store": sum(map(len, store.objects.values())), "disk": 0}
    assert len(warnings) == 1
    assert "goes on without it" in warnings[0]
    assert blocks(directory) == before


@only_root
@pytest.mark.parametrize("mode", [0o500, 0o300, 0o000])
def test_a_directory_without_permissions_is_one_warning(
    store: SmallStore, options: dict[str, Any], tmp_path: Path, mode: int
) -> None:
    for parent in [tmp_path, *tmp_path.parents]:
        if parent.name.startswith(("pytest-", "test_")):
            parent.chmod(0o755)
    directory = Path(options["cache_dir"])
    directory.mkdir()
    os.chown(directory, OTHER_USER, OTHER_USER)
    directory.chmod(mode)
    figures, warnings = as_another_user(read, store, options)
    assert figures == {"store": sum(map(len, store.objects.values())), "disk": 0}
    assert len(warnings) == 1


OTHER_USER = 4321


def as_another_user(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """Calls a function in a process of another user; returns its answer, and the warnings."""
    answers = FORK.SimpleQueue()
    child = FORK.Process(target=answer_as, args=(OTHER_USER, answers, function, arguments))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    answer: tuple[Any, list[str]] = answers.get()
    return answer


def answer_as(user: int, answers: Any, function: Callable[..., Any], arguments: Any) -> None:
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("streamrec").addHandler(handler)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    answers.put((function(*arguments), warnings))


class DeadlyDisk(Disk):
    """Kills its process before the call of this number, as `kill -9` does."""

    def __init__(self, number: int) -> None:
        def die(at: int, name: str) -> None:
            if at == number:
                os.kill(os.getpid(), signal.SIGKILL)

        super().__init__(die)


def read_and_die(store: SmallStore, options: dict[str, Any], number: int) -> bool:
    """Reads twice in a process that dies at a call of this number; whether it did.

    It is forked without `multiprocessing`: else what it uses stays in use as long as this process
    lives, as that of the workers of a job does.
    """
    child = os.fork()
    if child == 0:
        disk = DeadlyDisk(number)
        for module in MODULES:
            module.os = disk  # type: ignore[attr-defined]
        status = 1
        try:
            for _ in range(2):
                read(store, options)
                close_caches()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@pytest.mark.timeout(600)
def test_a_process_that_is_killed_at_any_call_leaves_a_cache_that_is_right(
    store: SmallStore, options: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = 1 if THOROUGH else 9
    total = sum(map(len, store.objects.values()))
    killed = 0
    dies = True
    while dies:
        number = killed * step
        directory = tmp_path / str(number)
        options["cache_dir"] = str(directory)
        dies = read_and_die(store, options, number)
        read(store, options)
        close_caches()
        assert read(store, options) == {"store": 0, "disk": total}, number
        close_caches()
        assert warned(caplog) == [], number
        left = [path for path in directory.rglob("*") if writer_of(path.name)]
        assert left == [], number
        assert counted(directory) == stored(directory), number
        close_caches()
        killed += dies
    assert killed * step > 50  # else the calls were not met


def counted(directory: Path) -> int:
    """How many bytes the processes of a cache have counted."""
    cache = open_cache(CacheSettings(str(directory), LIMIT))
    assert cache is not None
    return cache.disk.usage.used()


def stored(directory: Path) -> int:
    """How many bytes its files count."""
    cache = open_cache(CacheSettings(str(directory), LIMIT))
    assert cache is not None
    return sum(block.charge for found in cache.disk.stored_sets() for block in found.blocks)


@pytest.mark.timeout(60)
def test_a_process_that_stands_still_is_overtaken_and_then_goes_on(
    store: SmallStore, options: dict[str, Any]
) -> None:
    """As in a container that is paused while it fetches."""
    store.objects = {"d/long": shard(5, 40, 100_000)}
    directory = Path(options["cache_dir"])
    stands_still: list[subprocess.Popen[str]] = []

    def answer(asked: Asked, found: Answer) -> Answer:
        """The first answer with bytes comes when its reader stands still."""
        if stands_still and store.kind(asked) == "read":
            process = stands_still.pop()
            assert any(is_lock(path.name) for path in directory.rglob("*"))
            process.send_signal(signal.SIGSTOP)
        return found

    store.replace = answer
    process = start_reading(store.url("s3", "d/*"), options)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        stands_still.append(process)
        while stands_still:
            time.sleep(0.01)
        began = time.monotonic()
        read(store, options)
        assert time.monotonic() - began < 20
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    [(nbytes, _)] = [json.loads(line) for line in out.splitlines()]
    assert nbytes == sum(map(len, records_of(store.objects["d/long"]))), err
    assert read(store, options)["store"] == 0
    assert len(blocks(directory)) == 1
