"""Chained URLs, and filesystems that only fsspec knows: shards are read through them as through any
store.
"""

import asyncio
import gzip
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem

import streamrec
from streamrec.errors import (
    CorruptRecordError,
    NotFoundError,
    StorageError,
    UnsupportedOperationError,
    install_command,
)
from streamrec.storage import Storages
from tests.effort import thorough
from tests.runs import tarred
from tests.servers.real import Store, ftp, sftp
from tests.servers.resuming import stop_after
from tests.storage.backends.hugging_face import REPOSITORY, Hub, hub
from tests.storage.contract import QUICK_RETRIES, read_all

RECORDS = [b"%d " % number * 200 for number in range(3_000)]
WHOLE = streamrec.encode_records(RECORDS)
HALF = WHOLE[: len(streamrec.encode_records(RECORDS[:1500]))]
DAMAGED = bytearray(WHOLE)
DAMAGED[len(WHOLE) // 2] ^= 1
FILES = {
    "a/x-0.tfrecord": WHOLE,
    "a/x-1.tfrecord": HALF,
    "a/deep/x-2.tfrecord": HALF,
    "a/ü %20.tfrecord": HALF,
    "b/damaged.tfrecord": bytes(DAMAGED),
    "b/empty.tfrecord": b"",
}
TARRED = tarred(*FILES.items())


@dataclass(frozen=True)
class Place:
    """Where FILES can be read.

    Attributes:
        url: The URL of a name; with a pattern for a name, a pattern.
        options: Storage options.
        missing: A URL of which a link is missing.
    """

    url: Callable[[str], str]
    options: Mapping[str, Any] = field(default_factory=dict)
    missing: str | None = None

    def storages(self) -> Storages:
        return Storages(self.options, retry=QUICK_RETRIES)

    def dataset(self, *names: str, **arguments: Any) -> streamrec.TFRecordDataset:
        return streamrec.TFRecordDataset(
            list(map(self.url, names)), storage_options=self.options, **arguments
        )


def write_files(directory: Path) -> None:
    for name, data in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def zipped(compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    return file.getvalue()


class SyncOnly(AbstractFileSystem):  # type: ignore[misc]
    """A sync filesystem that no backend knows."""

    protocol = "synconly"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        prefix = f"{path.strip('/')}/".lstrip("/")
        below = {
            prefix + name.removeprefix(prefix).partition("/")[0]
            for name in FILES
            if name.startswith(prefix)
        }
        return [self.info(name) if detail else name for name in sorted(below)]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        if path in FILES:
            return {"name": path, "size": len(FILES[path]), "type": "file"}
        if any(name.startswith(f"{path}/") for name in FILES):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def _open(self, path: str, *_: Any, **__: Any) -> io.BytesIO:
        return io.BytesIO(FILES[path])


class OnlyCatFile(AsyncFileSystem):  # type: ignore[misc]
    """An async filesystem that cannot open files."""

    protocol = "onlycat"

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        found: dict[str, Any] = SyncOnly().info(self._strip_protocol(path))
        return found

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return SyncOnly().ls(path, detail)

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        return FILES[path][start:end]


class Sizeless(OnlyCatFile):
    """One that cannot tell sizes either."""

    protocol = "sizeless"

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {**await super()._info(path), "size": None}


@pytest.fixture(scope="module")
def ftp_store() -> Iterator[Store]:
    with ftp() as store:
        write_files(store.directory)
        yield store


@pytest.fixture(scope="module")
def sftp_store() -> Iterator[Store]:
    pytest.importorskip("paramiko")
    with sftp() as store:
        write_files(store.directory)
        yield store


@pytest.fixture(scope="module")
def hf_hub() -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with hub(FILES) as server:
        yield server


def archived(protocol: str, url: str, options: Mapping[str, Any]) -> Place:
    return Place(
        lambda file: f"{protocol}://{file}::{url}",
        options,
        f"{protocol}://a/x-0.tfrecord::{url}-missing",
    )


def client_scope(kind: str, directory: Path, request: pytest.FixtureRequest) -> Place:
    archives = {"q.zip": zipped, "d.zip": lambda: zipped(zipfile.ZIP_DEFLATED)}
    archives |= {"q.tar": lambda: TARRED, "q.tar.gz": lambda: gzip.compress(TARRED)}
    for name, make in archives.items():
        if kind.endswith(name):
            (directory / name).write_bytes(make())
            return archived(name.split(".")[1], f"file://{directory}/{name}", {})
    if kind == "zip on s3":
        store: Store = request.getfixturevalue("s3_store")
        store.put({f"{store.url}/chains.zip": zipped()})
        return archived("zip", f"{store.url}/chains.zip", {"s3": store.options})
    if kind == "zip on http":
        store = request.getfixturevalue("http_store")
        (store.directory / "chains.zip").write_bytes(zipped())
        return archived("zip", f"{store.url}/chains.zip", {})
    if kind == "simplecache on s3":
        store = request.getfixturevalue("s3_store")
        store.put({f"{store.url}/chains/{name}": data for name, data in FILES.items()})
        return Place(lambda file: f"simplecache::{store.url}/chains/{file}", {"s3": store.options})
    if kind in ("ftp", "sftp"):
        store = request.getfixturevalue(f"{kind}_store")
        return Place(lambda file: f"{store.url}/{file}")
    if kind == "hf":
        found: Hub = request.getfixturevalue("hf_hub")
        return Place(
            lambda file: f"hf://datasets/{REPOSITORY}/{file}",
            {"endpoint": found.endpoint, "token": False},
        )
    if kind == "sync":
        fsspec.register_implementation("synconly", SyncOnly, clobber=True)
        return Place(lambda file: f"synconly://{file}")
    if kind in ("onlycat", "sizeless"):
        fsspec.register_implementation(
            kind, Sizeless if kind == "sizeless" else OnlyCatFile, clobber=True
        )
        return Place(lambda file: f"{kind}://{file}")
    write_files(directory)
    if kind == "dir":
        return Place(lambda file: f"dir://{file}::file://{directory}", {"dir": {}})
    if kind == "simplecache on a zip":
        (directory / "q.zip").write_bytes(zipped())
        return Place(lambda file: f"simplecache::zip://{file}::file://{directory}/q.zip")
    return Place(lambda file: f"{kind}::{directory}/{file}")


KINDS = [
    "q.zip",
    *thorough("d.zip"),
    "zip on s3",
    *thorough("zip on http"),
    "q.tar",
    *thorough("q.tar.gz"),
]
KINDS += [
    "simplecache",
    "simplecache on s3",
    *thorough("simplecache on a zip"),
    *thorough("filecache"),
]
KINDS += ["dir", "ftp", "sftp", "hf", "sync", "onlycat", "sizeless"]


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return client_scope(request.param, tmp_path_factory.mktemp("chains"), request)


async def read(place: Place, *names: str, **arguments: Any) -> list[bytes]:
    return [record async for record in place.dataset(*names, **arguments)]


async def test_whole_shards_are_read_through_a_chain(place: Place) -> None:
    assert await read(place, "a/x-0.tfrecord") == RECORDS
    assert await read(place, "b/empty.tfrecord") == []
    assert await read(place, "a/ü %20.tfrecord") == RECORDS[:1500]


async def test_ranges_are_read_through_a_chain(place: Place) -> None:
    async with place.storages() as storages:
        url = place.url("a/x-0.tfrecord")
        storage = await storages.at(url)
        for start, end in [
            (0, 10),
            (5, 5),
            (7, 300_000),
            (len(WHOLE) - 1, None),
            (9, 10**9),
            (len(WHOLE), None),
        ]:
            stream = await storage.stream(url, start, end)
            assert stream.info.path == url
            assert await read_all(stream) == WHOLE[start:end]
        streams = await asyncio.gather(*[storage.stream(url, start) for start in range(5)])
        assert await asyncio.gather(*map(read_all, streams)) == [
            WHOLE[start:] for start in range(5)
        ]


async def test_a_pattern_in_a_chain_lists_whole_urls(place: Place) -> None:
    names = streamrec.Dataset.list_files(
        place.url("a/x-*.tfrecord"), shuffle=False, storage_options=place.options
    )
    found = [bytes(name).decode() async for name in names]
    assert found == [place.url("a/x-0.tfrecord"), place.url("a/x-1.tfrecord")]
    assert sorted(await read(place, "a/x-?.tfrecord")) == sorted(RECORDS + RECORDS[:1500])
    assert len(await read(place, "**/x-*.tfrecord")) == 6_000
    assert len(await read(place, "a/x-{0,1}.tfrecord", num_parallel_reads=2)) == 4_500
    with pytest.raises(NotFoundError, match="no object matches"):
        await read(place, "a/none-*.tfrecord")


def test_going_on_from_a_state(place: Place) -> None:
    dataset = place.dataset("a/x-*.tfrecord", num_parallel_reads=2)
    before, state = stop_after(dataset, 2_000)
    assert before + list(dataset.iterate(state)) == list(dataset)


async def test_a_missing_object_or_archive_is_a_not_found_error_with_the_whole_url(
    place: Place,
) -> None:
    with pytest.raises(NotFoundError, match="there is no such object") as caught:
        await read(place, "a/missing.tfrecord")
    assert caught.value.path == place.url("a/missing.tfrecord")
    if place.missing is not None:
        with pytest.raises(NotFoundError) as caught:
            [
                _
                async for _ in streamrec.TFRecordDataset(
                    place.missing, storage_options=place.options
                )
            ]
        assert caught.value.path == place.missing


async def test_a_directory_in_a_chain_says_which_pattern_to_write(place: Place) -> None:
    with pytest.raises(StorageError) as caught:
        await read(place, "a")
    wanted = place.url("a/*.tfrecord*").replace(":any@", ":***@")
    assert f"this is a directory: write {wanted} for the shards in it" in str(caught.value)


async def test_damage_in_a_chain_names_the_whole_url(place: Place) -> None:
    found = []
    with pytest.raises(CorruptRecordError, match="the CRC32C of") as caught:
        async for record in place.dataset("b/damaged.tfrecord"):
            found.append(record)
    assert caught.value.path == place.url("b/damaged.tfrecord")
    assert found == RECORDS[: len(found)]
    assert len(found) == caught.value.record
    assert len(await read(place, "b/damaged.tfrecord", on_error="skip_record")) == len(RECORDS) - 1


async def test_nothing_is_written_to_a_chain(tmp_path: Path) -> None:
    (tmp_path / "q.zip").write_bytes(zipped())
    for url in (f"zip://x::{tmp_path}/q.zip", f"simplecache::{tmp_path}/x"):
        with pytest.raises(UnsupportedOperationError, match="write to the store itself"):
            async with streamrec.ShardWriter(url) as writer:
                await writer.write(b"a record")
    assert os.listdir(tmp_path) == ["q.zip"]


async def test_a_file_that_is_not_an_archive_is_an_error_with_the_whole_url(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(WHOLE)
    for protocol in ("zip", "tar"):
        with pytest.raises(StorageError, match=r"BadZipFile|ReadError") as caught:
            [_ async for _ in streamrec.TFRecordDataset(f"{protocol}://a::{tmp_path}/x")]
        assert caught.value.path == f"{protocol}://a::{tmp_path}/x"


async def test_an_unknown_link(tmp_path: Path) -> None:
    for url in (f"nosuch::file://{tmp_path}/x", f"zip://x::nosuch://{tmp_path}/x"):
        with pytest.raises(StorageError, match="no filesystem is known for nosuch://"):
            [_ async for _ in streamrec.TFRecordDataset(url)]


async def test_options_of_a_link_stand_under_its_protocol() -> None:
    with pytest.raises(
        StorageError, match=r"'key', which zip does not know.*storage_options={'s3': {'key': ...}}"
    ):
        [
            _
            async for _ in streamrec.TFRecordDataset(
                "zip://x::s3://b/c.zip", storage_options={"key": "k"}
            )
        ]


async def test_a_link_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fsspec.get_filesystem_class

    def missing(protocol: str) -> Any:
        if protocol == "simplecache":
            return found(protocol)
        raise ImportError(f"Install what {protocol} needs")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    for url, command in {
        "simplecache::s3://b/x": install_command("s3"),
        "simplecache::gs://b/x": install_command("gcs"),
        "simplecache::https://b/x": install_command("http"),
        "abfs://container/x": install_command("azure"),
        "sftp://host/x": "pip install paramiko",
        "hf://datasets/x": "pip install huggingface_hub",
    }.items():
        with pytest.raises(streamrec.errors.MissingExtraError) as caught:
            [_ async for _ in streamrec.TFRecordDataset(url)]
        assert command in str(caught.value)


async def test_a_server_that_is_down() -> None:
    with pytest.raises(StorageError, match=r"no connection .* in 3 attempts") as caught:
        [_ async for _ in streamrec.TFRecordDataset("ftp://127.0.0.1:1/x", retry=QUICK_RETRIES)]
    assert caught.value.path == "ftp://127.0.0.1:1/x"


async def test_a_data_set_with_its_manifest_in_an_archive(tmp_path: Path) -> None:
    async with streamrec.ShardWriter(
        f"{tmp_path}/x-{{shard}}.tfrecord",
        max_shard_records=1_000,
        manifest=f"{tmp_path}/manifest.json",
    ) as writer:
        for record in RECORDS:
            await writer.write(record)
    with zipfile.ZipFile(tmp_path / "q.zip", "w") as archive:
        for name in ("manifest.json", "x-0.tfrecord", "x-1.tfrecord", "x-2.tfrecord"):
            archive.write(tmp_path / name, f"data/{name}")
        archive.write(tmp_path / "x-2.tfrecord", "data/x-3.tfrecord")
    report = await streamrec.verify(f"zip://data/manifest.json::{tmp_path}/q.zip")
    assert report.shards == 3
    assert [(problem.path, problem.kind) for problem in report.problems] == [
        (f"zip://data/x-3.tfrecord::{tmp_path}/q.zip", "extra")
    ]
