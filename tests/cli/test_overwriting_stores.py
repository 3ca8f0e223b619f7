"""`--overwrite` in a store, whatever happens at any of its requests (STREAMREC_STEP=1): the old objects, or copies."""

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
from streamrec.storage import Storages, secured_of
from tests.cli.conftest import examples, typed
from tests.effort import THOROUGH
from tests.servers.real import Store
from tests.steps import Objects, Place, hidden
from tests.storage.faultproxy import Fault, FaultProxy, Request, status

FORKS = """
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

COMMANDS = {
    "reshard": ["reshard", "--shard-records", "5"],
    "convert": ["convert", "--to", "tfrecord", "--shard-records", "5"],
    "repair": ["verify", "--repair"],
}
KINDS = ["fault", "outage", "interrupt", "kill"]


@dataclass
class Commands:
    """Runs commands against one place, through a proxy; something happens at one of the requests."""

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
        self.kind, self.at, self.asked, self.hit = kind, at, [], None
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
        sys.executable, "-W", "ignore", "-c", FORKS, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
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
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("where", ["s3_store", "gcs_store"])
async def test_what_happens_at_any_request_leaves_the_old_objects_or_copies(
    request: pytest.FixtureRequest, tmp_path: Path, where: str, name: str, kind: str
) -> None:
    async with commands_at(request.getfixturevalue(where), tmp_path / "said") as commands:
        place = commands.place
        sources = {f"/source/{each}": streamrec.encode_records(examples(6)) for each in "ab"}
        names = ["a", "b"] if name == "repair" else ["shard-00000.tfrecord", "shard-00001.tfrecord", "manifest.json"]
        before = sources | {f"/old/{each}": b"old %d" % number for number, each in enumerate(names)}
        await place.restore(before, {})
        words = [COMMANDS[name][0], *typed(place.options), "--overwrite", *COMMANDS[name][1:]]
        target, read = f"{place.url}/old/", [place.url + each for each in sources]
        words += [target, *read] if name == "repair" else [*read, target]
        assert (await commands.run(*words))[0] == 0
        count = len(commands.asked)
        found = after = await place.snapshot()
        assert not any(map(hidden, after))
        assert all(after[each] != before[each] for each in before if each not in sources)
        step = int(os.environ.get("STREAMREC_STEP", (8 if THOROUGH else 13) + KINDS.index(kind)))
        for number in range(step // 2, count, step):
            await place.restore(before, found)
            code, said = await commands.run(*words, kind=kind, at=number)
            found = await place.snapshot()
            if commands.hit is None:
                assert code == 0, said
                continue
            met = f"{kind} at {number} of {count}: {commands.hit.method} {commands.hit.path}: {code}, {said}"
            check(before, after, found, kind, code, commands.hit.method == "DELETE", met)
            if copies := list(filter(secured_of, found)):
                code, said = await commands.run("doctor", "--no-write", *typed(place.options), f"{place.url}/old/")
                assert code == 3, (met, said)
                assert f"there are {len(copies)} such objects: copy each over its name" in said, (met, said)


def check(before: Objects, after: Objects, found: Objects, kind: str, code: int, removal: bool, met: str) -> None:
    """Nothing old is lost."""
    shown = {name: data for name, data in found.items() if not hidden(name)}
    copies = {secured_of(name): data for name, data in found.items() if secured_of(name)}
    if code == 0:
        assert shown == after, met
        return
    assert code == {"interrupt": 130, "kill": -9}.get(kind, 3), met
    if kind in ("fault", "interrupt"):
        assert shown == before or (kind == "interrupt" and shown == after), met
        assert removal or not copies, (met, copies)
        assert kind == "interrupt" or removal or found == shown, met
    elif shown != after:
        assert all(data in (found.get(name), copies.get(name)) for name, data in before.items()), met
