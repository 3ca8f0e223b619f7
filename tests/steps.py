"""What a writer does, step by step: changes of names on the disk, requests to a store. Any step can
fail.
"""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from streamrec.storage import Storage, Storages
from tests.servers.real import Store
from tests.storage.faultproxy import Fault, FaultProxy, Request, status

Objects = dict[str, bytes]


@dataclass
class Place:
    """Where objects are written, and what lies there, hidden names included."""

    url: str
    options: dict[str, Any]
    storage: Storage
    step: Callable[[bool], None] = lambda removal: None

    async def snapshot(self) -> Objects:
        names = [info.path async for info in self.storage.list(f"{self.url}/", hidden=True)]
        return {
            name.removeprefix(self.url): await self.storage.read_range(name, 0, 1 << 20)
            for name in names
        }

    async def restore(self, objects: Objects, found: Objects) -> None:
        for name in found.keys() - objects.keys():
            await self.storage.remove(self.url + name)
        for name, data in objects.items():
            if found.get(name) != data:
                async with await self.storage.upload(self.url + name) as upload:
                    await upload.write(data)


HOOKS: list[Callable[[bool], None]] = []
CHANGES = {"os.rename", "os.link", "os.remove", "os.chmod"}


def note_change(event: str, arguments: tuple[Any, ...]) -> None:
    """The interpreter is about to change something on the disk."""
    if HOOKS and (event in CHANGES or (event == "open" and is_new(*arguments))):
        HOOKS[-1](event == "os.remove")


def is_new(path: object, mode: object, flags: object) -> bool:
    return not isinstance(path, int) and isinstance(flags, int) and bool(flags & os.O_CREAT)


sys.addaudithook(note_change)


@asynccontextmanager
async def place_on_disk(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """A directory; each change of a name is a step."""
    url = str(request.getfixturevalue("tmp_path") / "d")
    async with Storages() as storages:
        place = Place(url, {}, await storages.at(url))

        def change(removal: bool) -> None:
            place.step(removal)

        HOOKS.append(change)
        try:
            yield place
        finally:
            HOOKS.remove(change)


@asynccontextmanager
async def place_in_store(request: pytest.FixtureRequest, name: str) -> AsyncIterator[Place]:
    """A store behind a proxy; each request is a step."""
    real: Store = request.getfixturevalue(name)

    def choose(asked: Request) -> Fault | None:
        try:
            place.step(asked.method == "DELETE")
        except OSError:
            return status("403 Forbidden")
        return None

    async with FaultProxy(real.endpoint, choose) as proxy, Storages(real.options) as storages:
        options = {**real.options, "endpoint_url": proxy.url}
        place = Place(f"{real.url}/{uuid4()}", options, await storages.at(real.url))
        yield place


@asynccontextmanager
async def open_place(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with place_on_disk(request) if kind == "disk" else place_in_store(request, kind) as place:
        yield place


def is_hidden(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


@dataclass
class Steps:
    """Counts steps; something happens at one of them."""

    at: int | None = None
    happen: Callable[[], None] = lambda: None
    seen: int = 0
    removal: bool = False

    def __call__(self, removal: bool) -> None:
        self.seen += 1
        if self.seen - 1 == self.at:
            self.removal = removal
            self.happen()


def do_nothing(removal: bool) -> None:
    """Nothing happens."""


def refuse_permission() -> None:
    raise PermissionError("no")


@contextmanager
def writing_children(program: str) -> Iterator[Callable[..., int]]:
    """Runs a program that forks a writer for each line of words, which may be killed at a step.

    Gives a function that sends such words, of which None is "-", and returns the exit code that
    the program prints.
    """
    command = [sys.executable, "-W", "ignore", "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        words, codes = process.stdin, process.stdout

        def run(*given: object) -> int:
            line = " ".join("-" if word is None else str(word) for word in given)
            words.write(f"{line}\n")
            words.flush()
            return int(codes.readline())

        yield run
        words.close()
    assert process.returncode == 0
