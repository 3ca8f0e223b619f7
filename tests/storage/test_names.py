"""Names: every interface stores and finds the requested names, byte for byte."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import streamrec
from streamrec import (
    Dataset,
    ShardWriter,
    StorageError,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    matching_files,
)
from streamrec.cli import program
from streamrec.errors import PermissionDeniedError, UnsupportedOperationError
from streamrec.tfrecord import encode_records
from tests.servers.real import Store, sftp

NAMES = sorted(
    [
        *(
            "run",
            "run#1",
            "run#2",
            "#",
            "q",
            "q?x=1",
            "q?versionId=3",
            "p%20q",
            "p q",
            "p+q",
            "%",
            "%2F",
            "100%",
        ),
        *(
            "a*b",
            "axb",
            "a?b",
            "a#b?c",
            "a?b#c",
            "[1]",
            "1",
            "x[1]y",
            "x1y",
            "x[!1]y",
            "{a}",
            "{a,b}",
            "{1..3}",
            "{0}",
        ),
        *(
            "{}",
            "{shard",
            "%s",
            "a&b",
            "a;b",
            "a=b",
            "a,b",
            "a:b",
            "a@b",
            "user:pw@host",
            "~x",
            "$HOME",
            "a'b",
            'a"b',
        ),
        *(
            "<a>",
            "a|b",
            "a^b",
            "a`b",
            "(a)",
            "a!",
            "trailing ",
            " leading",
            "é-日本-🎉",
            "e\u0301",
            "-x",
            "x.",
            "..x",
        ),
        *(".hidden", "_x", "http:", "part.streamrec-1", ".q", "x" * 120),
    ]
)
"""Many of these are the result of decoding or truncating another one, or a match of it as a
pattern."""

ON_DISKS = ["a\nb", "a\tb", "a\rb", "a\\b", "a::b", "x" * 255, "é" * 127]
"""Names for stores whose server or client does not change them."""


@dataclass(frozen=True)
class Place:
    """Where names are written.

    Attributes:
        url: What stands before "/" and the name.
        stored: The names that the store itself tells, without any code of ours.
        names: The names that it can have.
        options: Storage options.
        filesystem: A filesystem of the user's.
    """

    url: str
    stored: Callable[[str], set[str]]
    names: list[str] = field(default_factory=lambda: NAMES)
    options: Mapping[str, Any] = field(default_factory=dict)
    filesystem: Any = None

    @property
    def stores(self) -> dict[str, Any]:
        return (
            {"filesystem": self.filesystem}
            if self.filesystem
            else {"storage_options": self.options}
        )

    def urls(self, names: Iterable[str], below: str = "d") -> list[str]:
        return [f"{self.url}/{below}/{name}" for name in names]


def files_below(root: Path, below: str) -> set[str]:
    return set(os.listdir(root / below))


def memory_keys(root: str, below: str) -> set[str]:
    start = f"{root}/{below}/"
    keys = [f"/{key.lstrip('/')}" for key in fsspec.filesystem("memory").store]
    return {key.removeprefix(start) for key in keys if key.startswith(start)}


def gcs_keys(store: Store, prefix: str, below: str) -> set[str]:
    start = f"{prefix}/{below}/"
    url = f"{store.endpoint}/storage/v1/b/streamrec/o?prefix={quote(start, safe='')}"
    with urllib.request.urlopen(url) as answer:
        return {item["name"].removeprefix(start) for item in json.load(answer)["items"]}


def s3_keys(store: Store, prefix: str, below: str) -> set[str]:
    filesystem = fsspec.filesystem("s3", **store.options, use_listings_cache=False)
    start = f"streamrec/{prefix}/{below}/"
    return {name.removeprefix(start) for name in filesystem.find(start)}


@pytest.fixture(scope="module")
def sftp_store() -> Iterator[Store]:
    with sftp() as store:
        yield store


@pytest.fixture(params=["local", "file", "memory", "s3", "gcs", "sftp", "dir"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store, with a directory of the test's own."""
    kind = request.param
    local = {"local": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory:/{tmp_path}"}
    if kind in local:
        stored = (
            partial(memory_keys, str(tmp_path))
            if kind == "memory"
            else partial(files_below, tmp_path)
        )
        return Place(local[kind], stored, [*NAMES, *ON_DISKS])
    if kind == "dir":
        filesystem = DirFileSystem(str(tmp_path), fsspec.filesystem("file"))
        return Place(
            "/up", partial(files_below, tmp_path / "up"), [*NAMES, *ON_DISKS], filesystem=filesystem
        )
    store: Store = request.getfixturevalue(f"{kind}_store")
    prefix = f"names-{tmp_path.name}"
    if kind == "sftp":
        return Place(
            f"{store.url}/{prefix}",
            partial(files_below, store.directory / prefix),
            [*NAMES, *(name for name in ON_DISKS if "::" not in name)],
            store.options,
        )
    keys = s3_keys if kind == "s3" else gcs_keys
    return Place(f"{store.url}/{prefix}", partial(keys, store, prefix), NAMES, store.options)


def example(name: str) -> bytes:
    return encode_example({"name": name})


async def write(place: Place, names: Iterable[str]) -> None:
    """A shard of each name, with one record that holds it."""
    gate = asyncio.Semaphore(8)

    async def one(name: str, url: str) -> None:
        async with gate, ShardWriter(url, **place.stores) as writer:
            await writer.write(example(name))

    names = list(names)
    await asyncio.gather(*map(one, names, place.urls(names)))


def names_in(dataset: Any) -> list[str]:
    batches = dataset.batch(1).parse_example({"name": streamrec.FixedLenFeature([], "string")})
    return [batch["name"][0].decode() for batch in batches]


def test_a_name_comes_back_as_it_went_out(place: Place) -> None:
    asyncio.run(write(place, place.names))
    assert place.stored("d") == set(place.names)
    urls = place.urls(place.names)
    assert names_in(TFRecordDataset(urls, num_parallel_reads=4, **place.stores)) == place.names
    for name, url in zip(place.names, urls, strict=True):
        if set(name) & set("*?[{#%"):
            assert names_in(TFRecordDataset(url, **place.stores)) == [name]


def test_a_writer_replaces_only_the_object_of_exactly_its_name(place: Place) -> None:
    names = [
        name
        for name in ("q", ".q", "q?x=1", "q?versionId=3", "run", "run#1")
        if name in place.names
    ]
    asyncio.run(write(place, names))
    urls = place.urls(names)
    for name, url in zip(names, urls, strict=True):
        again = Dataset.from_tensor_slices([example(f"new {name}")])
        assert [shard.path for shard in again.write_sync(url, **place.stores)] == [url]
    assert place.stored("d") == set(names)
    assert names_in(TFRecordDataset(urls, **place.stores)) == [f"new {name}" for name in names]


def test_patterns_find_each_name_and_what_they_find_is_read(place: Place) -> None:
    asyncio.run(write(place, place.names))
    found = matching_files(f"{place.url}/d/*", **place.stores)
    assert found == sorted(place.urls(place.names))
    assert names_in(TFRecordDataset(found, **place.stores)) == sorted(place.names)
    assert list(Dataset.list_files(f"{place.url}/d/*", **place.stores)) == [
        os.fsencode(url) for url in found
    ]
    assert matching_files(f"{place.url}/d/[[]1]", **place.stores) == place.urls(["[1]"])
    assert matching_files(f"{place.url}/d/a[*?]b", **place.stores) == place.urls(["a*b", "a?b"])
    assert matching_files(f"{place.url}/d/run#*", **place.stores) == place.urls(["run#1", "run#2"])
    assert matching_files(f"{place.url}/d/run#{{1,2}}", **place.stores) == place.urls(
        ["run#1", "run#2"]
    )
    assert matching_files(f"{place.url}/d/{{a,b}}", **place.stores) == place.urls(["{a,b}"])
    assert matching_files(f"{place.url}/d/[{{]a,b[}}]", **place.stores) == place.urls(["{a,b}"])


def check_manifest_and_index(
    place: Place, names: list[str], manifest: str, index: str, root: str | None
) -> None:
    """They are written, and lead to the shards of these names."""
    urls = place.urls(names)
    assert [
        shard.path for shard in streamrec.write_manifest_sync(urls, manifest, **place.stores)
    ] == urls
    report = streamrec.verify_sync(manifest, shard_root=root, **place.stores)
    assert report.ok, report
    assert report.shards == len(urls)
    streamrec.write_index_sync(urls, index, **place.stores)
    source = streamrec.RecordSource(index, shard_root=root, **place.stores)
    assert [source[number] for number in range(len(source))] == list(map(example, names))


def test_manifests_and_indexes_hold_each_name(place: Place) -> None:
    names = place.names[:: 1 if "://" not in place.url else 3]
    asyncio.run(write(place, names))
    urls = place.urls(names)
    for directory in ("d", "elsewhere"):
        manifest, index = (
            f"{place.url}/{directory}/{name}" for name in ("m{a,b}#1.json", "i[1]?#1.index")
        )
        check_manifest_and_index(
            place, names, manifest, index, None if directory == "d" else f"{place.url}/d"
        )
    halves = [
        TFRecordDataset(urls, **place.stores).distribute(
            rank=rank, world_size=2, even="pad", manifest=manifest
        )
        for rank in range(2)
    ]
    assert {name for half in halves for name in names_in(half)} == set(names)


def test_writers_change_nothing_but_the_number(place: Place) -> None:
    names = [name for name in place.names if len(name) < 100 and "::" not in name]
    written = []
    for name in names[:: 1 if "://" not in place.url else 3]:
        dataset = Dataset.from_tensor_slices([example(name), example(name)])
        shards = dataset.write_sync(f"{place.url}/d/{name}-{{shard}}", num_shards=2, **place.stores)
        written += [shard.path for shard in shards]
        assert [shard.path for shard in shards] == place.urls([f"{name}-0", f"{name}-1"])
    assert place.stored("d") == {path.removeprefix(f"{place.url}/d/") for path in written}


def test_saved_elements_come_back(place: Place) -> None:
    names = ("save#1", "save#2", "save?x=1", "save%20", "save [1] {a} é ~", "save")
    for name in names:
        Dataset.from_tensors(name).save(f"{place.url}/d/{name}", **place.stores)
        assert list(
            Dataset.from_tensors(0).cache(f"{place.url}/d/cache-{name}", **place.stores)
        ) == [0]
    for name in names:
        assert list(Dataset.load(f"{place.url}/d/{name}", **place.stores)) == [name.encode()]


@pytest.mark.parametrize("place", ["local", "file", "memory", "s3", "gcs"], indirect=True)
def test_the_command_line(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    options = [
        part
        for name, value in place.options.items()
        for part in ("-o", f"{name}={message_of(value)}")
    ]

    def call(command: str, *arguments: str) -> str:
        flags = [argument for argument in arguments if argument.startswith("--")]
        code = program.run(
            [command, *flags, *options, "--", *(each for each in arguments if each not in flags)]
        )
        out, err = capfd.readouterr()
        assert code == 0, (out, err)
        return out

    names = [name for name in place.names if name[0] not in "._" and "streamrec" not in name]
    asyncio.run(write(place, names))
    urls = place.urls(names)
    for sources in (urls, [f"{place.url}/d/"], [f"{place.url}/d/*"]):
        assert call("count", *sources).split()[-1] == str(len(names))
        assert str(len(names)) in call("verify", *sources)
    special = [name for name in names if set(name) & set("#?[{*%")]
    for name in special[:: 1 if "://" not in place.url else 4]:
        [url] = place.urls([name])
        assert json.loads(call("head", "--json", url)) == {"name": [name]}
    target = f"{place.url}/out #%20é/{{0}}-{{shard:02d}}.tfrecord"
    call("reshard", *urls, target)
    assert names_in(TFRecordDataset(target.replace("{shard:02d}", "00"), **place.stores)) == names
    assert place.stored("out #%20é") == {"{0}-00.tfrecord", "manifest.json"}
    call("convert", *urls, f"{place.url}/out #%20é/a?b#[1].jsonl")
    assert "a?b#[1].jsonl" in place.stored("out #%20é")


def message_of(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def test_a_web_url_is_spelt_as_the_web_does(http_store: Store, tmp_path: Path) -> None:
    directory = http_store.directory / tmp_path.name
    directory.mkdir()
    names = [name for name in [*NAMES, "a\nb", "a\\b", "x" * 255] if name != ".hidden"]
    for name in names:
        (directory / name).write_bytes(encode_records([example(name)]))
    url = f"{http_store.url}/{tmp_path.name}"
    assert names_in(TFRecordDataset([f"{url}/{quote(name)}" for name in names])) == names
    assert names_in(TFRecordDataset([f"{url}/é-日本-🎉", f"{url}/p q", f"{url}/p%20q"])) == [
        "é-日本-🎉",
        "p q",
        "p q",
    ]
    assert names_in(TFRecordDataset(f"{url}/q?x=1")) == ["q"]
    assert names_in(TFRecordDataset(f"{url}/run%23{{1,2}}")) == ["run#1", "run#2"]
    with pytest.raises(StorageError, match="write %23"):
        list(TFRecordDataset(f"{url}/run#1"))
    for asked in (
        lambda: matching_files(f"{url}/run*"),
        lambda: list(Dataset.list_files(f"{url}/*.rec")),
        lambda: list(TFRecordDataset(f"{url}/*.rec")),
    ):
        with pytest.raises(
            UnsupportedOperationError, match="cannot be asked which files a pattern matches"
        ):
            asked()
    assert matching_files(f"{url}/q?versions=[1]*") == [f"{url}/q?versions=[1]*"]


def test_a_bucket_that_must_not_be_listed_is_an_error_that_names_it(s3_store: Store) -> None:
    options = {**s3_store.options, "secret": "another"}
    with pytest.raises(PermissionDeniedError, match=r"s3://streamrec/d/x-"):
        matching_files("s3://streamrec/d/x-*.rec", storage_options=options)
    with pytest.raises(streamrec.NotFoundError, match=r"s3://nosuchbucket/d/x-"):
        list(TFRecordDataset("s3://nosuchbucket/d/x-*", storage_options=s3_store.options))


def test_names_that_begin_like_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["-x", "~x", "#", "%", " "]
    for name in names:
        Path(name).write_bytes(encode_records([example(name)]))
    found = matching_files("*")
    assert found == sorted(names)
    assert names_in(TFRecordDataset(found)) == found
    assert program.run(["count", "--", *names]) == 0


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128])
def test_a_name_that_is_too_long_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(StorageError, match="longer than its filesystem allows"):
        asyncio.run(write(Place(str(tmp_path), partial(files_below, tmp_path)), [name]))
    assert os.listdir(tmp_path / "d") == []


def test_the_next_writer_of_a_long_name_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    name = "x" * 255
    script = (
        "import os, sys, streamrec as s; w = s.TFRecordWriter(sys.argv[1]); w.write(b'x' * 2**23); "
        "os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path / name], check=False)
    [left] = os.listdir(tmp_path)
    assert left.startswith(".xxx")
    assert ".streamrec-" in left
    assert matching_files(f"{tmp_path}/*") == []
    with TFRecordWriter(str(tmp_path / name)) as writer:
        writer.write(b"x")
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("place", ["local", "file", "memory", "dir", "gcs"], indirect=True)
def test_a_scheme_within_a_name_is_a_part_of_it(place: Place) -> None:
    names = (
        ["s3://b/k", "a b://c", "x/s3://b"]
        if place.url.startswith(("memory", "gs"))
        else ["s3:/b/k", "x/s3:/b"]
    )
    asyncio.run(write(place, names))
    urls = place.urls(names)
    assert names_in(TFRecordDataset(urls, **place.stores)) == names
    assert matching_files(f"{place.url}/d/**", **place.stores) == sorted(urls)
    check_manifest_and_index(place, names, f"{place.url}/d/m.json", f"{place.url}/d/m.index", None)


def test_a_local_path_with_a_scheme_in_the_middle(tmp_path: Path) -> None:
    path = f"{tmp_path}/http://x/y"
    with TFRecordWriter(path) as writer:
        writer.write(example("here"))
    assert (
        names_in(TFRecordDataset(path))
        == names_in(TFRecordDataset(f"{tmp_path}/http:/*/y"))
        == ["here"]
    )
    assert program.run(["count", path]) == 0
