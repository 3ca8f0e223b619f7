"""`--overwrite`, on local files and in a store, whatever fails at any step: the old objects, or
copies, are there.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamrec
from streamrec.storage import Storages, secured_object
from tests.cli.conftest import (
    Bucket,
    CommandLine,
    example_records,
    interrupt_after_first_shard,
    typed_options,
)
from tests.runs import flip_bit
from tests.servers.real import Store
from tests.steps import HOOKS, Objects, Place, Steps, is_hidden, refuse_permission
from tests.storage.faultproxy import Fault, FaultProxy, Request, status


def files_and_modes(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a directory, with their modes."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def visible_files(files: dict[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    return {name: found for name, found in files.items() if not is_hidden(name)}


SPELLINGS = {
    "as it is": "{d}",
    "dot": "{d}/.",
    "relative": "./d",
    "dots": "{d}/../d",
    "slashes": "{parent}//d",
    "file": "file://{d}",
    "local": "local://{d}",
    "link to the directory": "{parent}/link",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_command_never_replaces_its_own_source_in_any_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, spelling: str
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(folder)
    for number in range(3):
        (folder / f"train-{number:05d}").write_bytes(streamrec.encode_records(example_records(4)))
    (folder / "train-00000.jsonl").write_text("{}\n")
    (folder / "schema.json").write_text("{}")
    before = files_and_modes(folder)
    there = spelling.format(d=folder, parent=tmp_path)
    for command in (
        [
            "reshard",
            "--overwrite",
            "--shard-records",
            "2",
            "d/train-0000?",
            f"{there}/train-{{shard:05d}}",
        ],
        ["reshard", "--overwrite", "d/train-00001", f"{there}/train-00001"],
        [
            "reshard",
            "--overwrite",
            "--manifest",
            f"{there}/train-00001",
            "d/train-0000?",
            "new/x-{shard}",
        ],
        ["convert", "--overwrite", "d/train-0000?", f"{there}/train-{{shard:05d}}"],
        f"convert --overwrite --to jsonl --schema d/schema.json d/train-00001 {there}/schema.json".split(),  # noqa: E501
        ["verify", "--overwrite", "--repair", f"{there}/", "d/train-0000?"],
        ["verify", "--overwrite", "--repair", f"{there}/train-00001", "d/train-00001"],
        ["cp", "--overwrite", "d/train-0000?", f"{there}/"],
        ["cp", "--overwrite", "d/train-00001", f"{there}/train-00001"],
        ["stat", "--html", f"{there}/train-00001", "d/train-0000?"],
    ):
        cli.fails(2, "choose another name", *command)
        assert files_and_modes(folder) == before, command


@pytest.mark.parametrize("linked", ["hard", "symbolic"])
def test_a_link_to_what_is_read_is_not_replaced(
    tmp_path: Path, cli: CommandLine, linked: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(streamrec.encode_records(example_records(240)))
    target = tmp_path / "new" / "x-7"
    target.parent.mkdir()
    target.hardlink_to(source) if linked == "hard" else target.symlink_to(source)
    before = files_and_modes(tmp_path)
    done = cli("reshard", "--overwrite", "--shards", "20", source, f"{target.parent}/x-{{shard}}")
    assert done.code in (2, 3)
    assert "is read, and would be overwritten: choose another name" in done.err
    assert files_and_modes(tmp_path) == before


def test_one_object_is_not_written_twice(tmp_path: Path, cli: CommandLine) -> None:
    source = tmp_path / "source"
    source.write_bytes(streamrec.encode_records(example_records(10)))
    words = ["--shards", "2", "--manifest", f"{tmp_path}/./x-1", source, f"{tmp_path}/x-{{shard}}"]
    cli.fails(2, "would overwrite a shard", "reshard", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


COMMANDS = {
    "reshard limited": ["reshard", "--shard-records", "90", "SOURCE", "old/"],
    "reshard even": ["reshard", "--shards", "4", "SOURCE", "old/"],
    "convert": ["convert", "--to", "jsonl", "--shard-records", "90", "SOURCE", "old/"],
    "convert to shards": ["convert", "--to", "tfrecord", "--shard-records", "90", "SOURCE", "old/"],
    "repair": ["verify", "--repair", "old/", "SOURCE", "source-2"],
    "copy": ["cp", "SOURCE", "source-2", "old/"],
    "demo": ["demo", "old"],
}


@pytest.fixture
def old_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to write over, beside sources."""
    monkeypatch.chdir(tmp_path)
    for name in ("source", "source-2"):
        (tmp_path / name).write_bytes(streamrec.encode_records(example_records(240)))
    folder = tmp_path / "old"
    folder.mkdir()
    names = [f"shard-{number:05d}.{kind}" for number in range(2) for kind in ("tfrecord", "jsonl")]
    names += ["source", "train-00000.tfrecord", "train-00001.tfrecord", "manifest.json"]
    for number, name in enumerate(names):
        (folder / name).write_bytes(b"old %d" % number)
        (folder / name).chmod(0o604)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_fails_at_any_step_leaves_what_was_there(
    old_shards: Path, cli: CommandLine, name: str
) -> None:
    command = [COMMANDS[name][0], "--overwrite", *COMMANDS[name][1:]]
    command = [word.replace("SOURCE", "source") for word in command]
    before = files_and_modes(old_shards)
    number = failed = 0
    while True:
        HOOKS.append(steps := Steps(number, refuse_permission))
        try:
            done = cli(*command)
        finally:
            HOOKS.pop()
        found = files_and_modes(old_shards)
        if steps.seen <= number:
            break
        if done.code:
            failed += 1
            assert visible_files(found) == before, number
        assert steps.removal or found.keys() == visible_files(found).keys(), number
        if not done.code:
            for path in old_shards.iterdir():
                path.unlink()
            for there, (data, mode) in before.items():
                (old_shards / there).write_bytes(data)
                (old_shards / there).chmod(mode)
        number += 1
    assert done.code == 0
    assert failed > 5
    assert visible_files(found) == found
    assert {found[there][1] for there in before} == {before["manifest.json"][1]}
    assert any(found[there] != before[there] for there in before)


@pytest.mark.parametrize("name", ["reshard limited", "reshard even", "convert to shards"])
def test_damage_in_the_last_record_leaves_what_was_there(
    old_shards: Path, cli: CommandLine, name: str
) -> None:
    flip_bit(old_shards.parent / "source", -10)
    before = files_and_modes(old_shards)
    command = [word.replace("SOURCE", "source") for word in COMMANDS[name]]
    assert cli(command[0], "--overwrite", *command[1:]).code == 1
    assert files_and_modes(old_shards) == before


def test_an_interrupted_command_leaves_what_was_there(old_shards: Path) -> None:
    before = files_and_modes(old_shards)
    interrupt_after_first_shard("reshard", "--overwrite", "--shards", "240", "source", "old/")
    assert files_and_modes(old_shards) == before


def test_a_page_does_not_replace_a_spelling_in_a_store(
    shard: Path, bucket: Bucket, cli: CommandLine
) -> None:
    source = f"{bucket.url}x"
    assert cli("reshard", *bucket.options, shard, source).code == 0
    inner = source.removeprefix("s3://")
    for name in (f"s3a://{inner}", f"s3://{inner.replace('/', '//')}", f"s3://{inner[:-1]}y/../x"):
        cli.fails(2, "choose another name", "reshard", *bucket.options, "--overwrite", source, name)


FORK_SERVER = """
import json, os, sys
from importlib import import_module
import gcsfs, s3fs
from streamrec.cli import program

for name in ("reshard", "convert", "verify", "doctor"):
    import_module(f"streamrec.cli.commands.{name}")
for line in sys.stdin:
    process = os.fork()
    if not process:
        words, output = json.loads(line)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = program.run(words)
        sys.stdout.flush()
        os._exit(code)
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
"""Commands, each in a process of its own that has imported all it needs."""

OVERWRITING = {
    "reshard": ["reshard", "--shard-records", "5"],
    "convert": ["convert", "--to", "tfrecord", "--shard-records", "5"],
    "repair": ["verify", "--repair"],
}
DISTURBANCES = ["fault", "outage", "interrupt", "kill"]


@dataclass
class Commands:
    """Runs commands against one place, through a proxy; something happens at one of the
    requests.
    """

    place: Place
    proxy: FaultProxy
    forks: Any  # a subprocess with pipes
    output: Path
    kind: str = ""
    at: int | None = None
    asked: list[Request] = field(default_factory=list)
    process: int = 0
    hit: Request | None = None

    def choose(self, request: Request) -> Fault | None:
        number = len(self.asked)
        self.asked.append(request)
        if self.at is None or number < self.at or (number > self.at and self.kind != "outage"):
            return None
        if number == self.at:
            self.hit = request
        if self.kind in ("fault", "outage"):
            return status("403 Forbidden")
        os.kill(self.process, signal.SIGKILL if self.kind == "kill" else signal.SIGINT)
        return None

    async def run(self, *words: str, kind: str = "", at: int | None = None) -> tuple[int, str]:
        """The exit code, and all that was said."""
        self.kind = kind
        self.at = at
        self.asked = []
        self.hit = None
        self.forks.stdin.write(json.dumps([words, str(self.output)]).encode() + b"\n")
        self.process = int(await self.forks.stdout.readline())
        code = int(await self.forks.stdout.readline())
        await self.proxy.rest()
        said = self.output.read_text()
        assert "Traceback" not in said, said
        return code, said


@asynccontextmanager
async def commands_at(store: Store, output: Path) -> AsyncIterator[Commands]:
    forks = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "ignore",
        "-c",
        FORK_SERVER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with FaultProxy(store.endpoint) as proxy, Storages(store.options) as storages:
        options = {**store.options, "endpoint_url": proxy.url}
        place = Place(f"{store.url}/{uuid4()}", options, await storages.at(store.url))
        commands = Commands(place, proxy, forks, output)
        proxy.choose = commands.choose
        yield commands
    commands.forks.stdin.close()
    assert await forks.wait() == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("name", OVERWRITING)
@pytest.mark.parametrize("where", ["s3_store", "gcs_store"])
async def test_a_fault_at_any_request_leaves_the_old_objects_or_their_copies(
    request: pytest.FixtureRequest, tmp_path: Path, where: str, name: str, kind: str
) -> None:
    async with commands_at(request.getfixturevalue(where), tmp_path / "said") as commands:
        place = commands.place
        sources = {f"/source/{each}": streamrec.encode_records(example_records(6)) for each in "ab"}
        names = (
            ["a", "b"]
            if name == "repair"
            else ["shard-00000.tfrecord", "shard-00001.tfrecord", "manifest.json"]
        )
        before = sources | {f"/old/{each}": b"old %d" % number for number, each in enumerate(names)}
        await place.restore(before, {})
        words = [
            OVERWRITING[name][0],
            *typed_options(place.options),
            "--overwrite",
            *OVERWRITING[name][1:],
        ]
        target, read = f"{place.url}/old/", [place.url + each for each in sources]
        words += [target, *read] if name == "repair" else [*read, target]
        assert (await commands.run(*words))[0] == 0
        count = len(commands.asked)
        found = after = await place.snapshot()
        assert not any(map(is_hidden, after))
        assert all(after[each] != before[each] for each in before if each not in sources)
        step = int(os.environ.get("STREAMREC_STEP", 13 + DISTURBANCES.index(kind)))
        for number in range(step // 2, count, step):
            await place.restore(before, found)
            code, said = await commands.run(*words, kind=kind, at=number)
            found = await place.snapshot()
            if commands.hit is None:
                assert code == 0, said
                continue
            met = (
                f"{kind} at {number} of {count}: {commands.hit.method} {commands.hit.path}: "
                f"{code}, {said}"
            )
            check_that_nothing_is_lost(
                before, after, found, kind, code, commands.hit.method == "DELETE", met
            )
            if any(map(secured_object, found)):
                code, said = await commands.run(
                    "doctor", "--no-write", *typed_options(place.options), f"{place.url}/old/"
                )
                assert code == 3, (met, said)
                assert f"streamrec recover {place.url}/old/" in said, (met, said)
                code, said = await commands.run(
                    "recover", "--wait", "0.5", *typed_options(place.options), f"{place.url}/old/"
                )
                recovered = await place.snapshot()
                assert code == 0, (met, said)
                assert not any(map(secured_object, recovered)), met
                shown = {name: data for name, data in recovered.items() if not is_hidden(name)}
                assert shown in (before, after), (met, said)
                found = recovered


def check_that_nothing_is_lost(
    before: Objects, after: Objects, found: Objects, kind: str, code: int, removal: bool, met: str
) -> None:
    """Nothing old is lost."""
    shown = {name: data for name, data in found.items() if not is_hidden(name)}
    copies = {secured_object(name): data for name, data in found.items() if secured_object(name)}
    if code == 0:
        assert shown == after, met
        return
    assert code == {"interrupt": 130, "kill": -9}.get(kind, 3), met
    if kind in ("fault", "interrupt"):
        assert shown == before or (kind == "interrupt" and shown == after), met
        assert removal or not copies, (met, copies)
        assert kind == "interrupt" or removal or found == shown, met
    elif shown != after:
        assert all(data in (found.get(name), copies.get(name)) for name, data in before.items()), (
            met
        )
