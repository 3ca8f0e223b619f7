"""`--overwrite-unsecured`: a command replaces objects that it may not read."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

import streamrec
from streamrec.storage import Storages
from tests.cli.conftest import CommandLine, example_records, typed_options
from tests.servers.real import Store
from tests.storage.faultproxy import FaultProxy, Request, in_a_thread, status

DENIED = status("403 Forbidden")
SUFFIXES = ("shard-00000.tfrecord", "source", "manifest.json", "data.index", "train-00000.tfrecord")


def reads_visible(request: Request) -> bool:
    """Whether a request reads an object of a visible name: by HEAD, GET, or as the source of a
    copy.
    """
    copied = request.headers.get("x-amz-copy-source", "")
    read = copied or (request.path if request.method in ("HEAD", "GET") else "")
    name = read.partition("?")[0].rpartition("/")[2]
    return name in SUFFIXES and "/source" not in request.path.rpartition("/")[0]


@dataclass
class Unreadable:
    """A prefix in S3 whose objects may be written and not read, and a readable directory."""

    url: str
    store: Store
    direct: tuple[str, ...]
    through: tuple[str, ...]
    proxy: FaultProxy


@pytest.fixture
def place(s3_store: Store) -> Iterator[Unreadable]:
    proxy = FaultProxy(s3_store.endpoint)
    with in_a_thread(proxy):
        options = {**s3_store.options, "endpoint_url": proxy.url}
        url = f"{s3_store.url}/{uuid4()}/"
        yield Unreadable(
            url, s3_store, typed_options(s3_store.options), typed_options(options), proxy
        )


COMMANDS = {
    "reshard": (["reshard", "SOURCE", "old/"], "shard-00000.tfrecord"),
    "convert": (["convert", "--to", "tfrecord", "SOURCE", "old/"], "shard-00000.tfrecord"),
    "cp": (["cp", "SOURCE", "old/"], "source"),
    "repair": (["verify", "--repair", "old/", "SOURCE"], "source"),
    "manifest": (["manifest", "SOURCE", "old/manifest.json"], "manifest.json"),
    "index": (["index", "SOURCE", "old/data.index"], "data.index"),
    "demo": (["demo", "old/"], "train-00000.tfrecord"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_flag_allows_to_replace_objects_that_cannot_be_read(
    place: Unreadable, tmp_path: Path, cli: CommandLine, name: str
) -> None:
    """Without the flag, the command names it, and leaves the object as it is."""
    words, replaced = COMMANDS[name]
    first, second = tmp_path / "1" / "source", tmp_path / "2" / "source"
    for path, count in ((first, 3), (second, 5)):
        path.parent.mkdir()
        path.write_bytes(streamrec.encode_records(example_records(count)))
    source = f"{place.url}source/source"
    cli.succeeds("cp", *place.direct, first, f"{place.url}source/")

    def run(options: tuple[str, ...], *more: str) -> list[str]:
        there = [word.replace("old/", f"{place.url}old/") for word in words[1:]]
        there = [source if word == "SOURCE" else word for word in there]
        return [words[0], *options, *more, *there]

    cli.succeeds(*run(place.direct))
    target = f"{place.url}old/{replaced}"
    before = content_of(place, target)
    cli.succeeds("cp", "--overwrite", *place.direct, second, f"{place.url}source/")
    place.proxy.choose = lambda request: DENIED if reads_visible(request) else None
    if name != "demo":
        cli.fails(3, "--overwrite-unsecured", *run(place.through, "--overwrite"))
        assert content_of(place, target) == before
    cli.succeeds(*run(place.through, "--overwrite-unsecured"))
    if name != "demo":  # its data is the same every time
        assert content_of(place, target) != before


def content_of(place: Unreadable, url: str) -> bytes:
    """What an object holds, read past the proxy."""

    async def read() -> bytes:
        async with Storages(place.store.options) as storages:
            return await (await storages.at(url)).read_range(url, 0, 1 << 20)

    return asyncio.run(read())
