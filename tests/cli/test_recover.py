"""`streamrec recover`: after a kill at any step, the data set is the old one or the new one."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import streamrec
from streamrec.storage import Replacement, Storages
from tests.cli.conftest import CommandLine
from tests.effort import THOROUGH
from tests.steps import is_hidden, open_place, writing_children

WRITING_PROGRAM = """
import asyncio, os, signal, sys
from streamrec import ShardWriter
from tests.steps import HOOKS, Steps

async def write(folder, tag, count):
    names, manifest = f"{folder}/t-{{shard}}", f"{folder}/m.json"
    async with ShardWriter(names, max_shard_records=1, manifest=manifest) as shards:
        for number in range(count):
            await shards.write(b"%s %d" % (tag.encode(), number))

def child(folder, tag, count, at):
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    if at is not None:
        HOOKS.append(Steps(at, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    asyncio.run(write(folder, tag, count))
    os._exit(0)

for line in sys.stdin:
    folder, tag, count, at = line.split()
    print(child(folder, tag, int(count), None if at == "-" else int(at)), flush=True)
"""

Files = dict[str, bytes]


def files_in(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def visible_files(found: Files) -> Files:
    return {name: data for name, data in found.items() if not is_hidden(name)}


def restore_files(folder: Path, files: Files) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


WriteDataSet = Callable[[Path, str, int, int | None], int]


@pytest.fixture
def write_data_set() -> Iterator[WriteDataSet]:
    """Writes a data set in a process of its own, which may be killed at a step; its exit code."""
    with writing_children(WRITING_PROGRAM) as child:

        def run(folder: Path, tag: str, count: int, at: int | None = None) -> int:
            return child(folder, tag, count, at)

        yield run


def test_after_a_kill_at_any_step_the_data_set_is_whole(
    tmp_path: Path, cli: CommandLine, write_data_set: WriteDataSet
) -> None:
    """Doctor says which it will be, and changes nothing; a second recovery finds nothing to do."""
    folder = tmp_path / "d"
    folder.mkdir()
    seen = set()
    assert write_data_set(folder, "old", 2, None) == 0
    old = files_in(folder)
    assert write_data_set(folder, "new", 3, None) == 0
    new = files_in(folder)
    number = 0
    while True:
        restore_files(folder, old)
        if write_data_set(folder, "new", 3, number) == 0:
            break
        killed = files_in(folder)
        checked = cli("doctor", "--no-write", folder)
        assert files_in(folder) == killed
        half_way = "puts the old ones back" in checked.out
        complete = "removes the hidden old ones" in checked.out
        done = cli("recover", folder)
        assert done.code == 0, (number, done.err)
        found = visible_files(files_in(folder))
        assert found in (old, new), number
        assert not (half_way and found != old), number
        assert not (complete and found != new), number
        assert visible_files(killed) in (old, new) or half_way, number
        assert not [name for name in files_in(folder) if "-old-" in name or "-set-" in name]
        assert "there is nothing to recover" in cli("recover", folder).out
        seen.add((half_way, complete))
        number += 1 if THOROUGH else 3
    assert seen == {(False, False), (True, False), (False, True)}


def kill_between_two_shards(folder: Path, write: WriteDataSet) -> None:
    """Kills a writer of two new shards when the first of them is in place."""
    assert write(folder, "old", 2, None) == 0
    before, number = files_in(folder), 0
    while True:
        restore_files(folder, before)
        assert write(folder, "new", 2, number) != 0
        if files_in(folder)["t-0"] != before["t-0"]:
            return
        number += 1


def test_the_killed_writer_run_again_removes_what_it_left(
    tmp_path: Path, write_data_set: WriteDataSet
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    kill_between_two_shards(folder, write_data_set)
    assert any("-old-" in name for name in files_in(folder))
    assert write_data_set(folder, "new", 2, None) == 0
    assert not [name for name in files_in(folder) if "-old-" in name or "-set-" in name]
    assert visible_files(files_in(folder)).keys() == {"t-0", "t-1", "m.json"}


def test_recover_keeps_what_another_writer_has_written_since(
    tmp_path: Path, cli: CommandLine, write_data_set: WriteDataSet
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    kill_between_two_shards(folder, write_data_set)
    (folder / "t-0").unlink()
    (folder / "t-0").write_bytes(b"of another writer")
    done = cli("recover", folder)
    assert done.code == 1
    assert f"{folder}/t-0 was left as it is: another writer has written it since" in done.err
    assert (folder / "t-0").read_bytes() == b"of another writer"
    kept = [path for path in folder.iterdir() if path.name.startswith(".t-0.streamrec-old-")]
    assert [path.read_bytes() for path in kept] == [streamrec.encode_records([b"old 0"])]
    assert (folder / "t-1").read_bytes() == streamrec.encode_records([b"old 1"])


@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store"])
async def test_a_writer_that_is_at_work_is_not_disturbed(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """It recovers again and again while a live writer replaces a data set, at each of its steps."""
    from streamrec.storage import recover

    async with open_place(kind, request) as place:

        async def write(tag: bytes) -> None:
            async with Storages(place.options) as storages, Replacement(storages) as objects:
                for number in range(6):
                    async with await objects.upload(f"{place.url}/t-{number}") as upload:
                        await upload.write(b"%s %d" % (tag, number))

        await write(b"old")
        async with Storages(place.options) as storages:
            for turn in range(3):
                writing = asyncio.ensure_future(write(b"new %d" % turn))
                done = []
                while not writing.done():
                    done += [each async for each in recover(storages, f"{place.url}/")]
                await writing
                assert not done
                assert await place.snapshot() == {
                    f"/t-{number}": b"new %d %d" % (turn, number) for number in range(6)
                }
