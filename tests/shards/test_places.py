"""Names in a manifest or an index lead only to allowed places; a failed replacement leaves the old
objects.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.oauth2.credentials import Credentials

import streamrec
from streamrec import RecordSource, ShardWriter, StorageError, TFRecordDataset, bridge, verify_sync
from streamrec.errors import ManifestError
from streamrec.shards.places import absolute, portable, relative
from streamrec.storage import secured_object
from tests.effort import THOROUGH
from tests.servers.answering import Answer, Asked, answering
from tests.servers.real import Store
from tests.steps import Objects, Steps, do_nothing, is_hidden, open_place, refuse_permission

RECORDS = [b"%04d" % number for number in range(20)]
DATA = streamrec.encode_records(RECORDS)


def manifest_of(
    *names: str, data: bytes = DATA, records: int = len(RECORDS), pattern: str | None = None
) -> bytes:
    shards = [
        {"name": name, "records": records, "bytes": len(data), "crc32c": None} for name in names
    ]
    head = {
        "format": "streamrec manifest",
        "version": 1,
        "pattern": pattern or names[0],
        "compression_type": "",
    }
    return json.dumps({**head, "shards": shards}).encode()


@dataclass
class Server:
    """A web server that records its requests."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def __call__(self, request: Asked) -> Answer:
        self.asked.append((request.path, request.headers))
        if request.path in self.redirects:
            status = 200 if request.method == "POST" else 302
            return Answer(status, headers={"Location": self.redirects[request.path]})
        data = self.files.get(request.path)
        return Answer(404 if data is None else 200, data or b"")


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Two servers of two hosts."""
    found = [Server(""), Server("")]
    with answering(found[0]) as found[0].url, answering(found[1], "127.0.0.2") as found[1].url:
        yield found


SECRETS = {"headers": {"Authorization": "Bearer abc", "X-Token": "abc"}}


def test_names_in_a_manifest_cause_no_request_to_another_host(servers: list[Server]) -> None:
    ours, other = servers
    other.files["/x"] = DATA
    for name in (
        f"{other.url}/x",
        f"{ours.url}@{other.url.removeprefix('http://')}/x",
        "../x",
        "%2e%2e/x",
    ):
        ours.files["/d/m.json"] = manifest_of(name)
        with pytest.raises(ManifestError, match=r"m\.json: .*(not below|leads out)"):
            verify_sync(f"{ours.url}/d/m.json", storage_options=SECRETS)
    ours.files["/d/m.json"] = manifest_of(f"{other.url}/x")
    with pytest.raises(ManifestError, match="in another store"):
        verify_sync(f"{ours.url}/d/m.json", shard_root=other.url, storage_options=SECRETS)
    assert other.asked == []
    assert [path for path, _ in ours.asked if path != "/d/m.json"] == []


@pytest.mark.parametrize(
    "location", ["http://[bad", "file:///etc/passwd", "gopher://x/", "http://a:b:c/"]
)
def test_a_redirect_to_what_is_not_a_web_url_is_one_error(
    servers: list[Server], location: str
) -> None:
    ours, _ = servers
    ours.redirects = {"/x": location}
    with pytest.raises(StorageError, match=f"{ours.url}/x"):
        list(TFRecordDataset(f"{ours.url}/x", retry=streamrec.RetryPolicy(attempts=1)))


def test_a_redirect_carries_no_credentials_to_another_host(servers: list[Server]) -> None:
    ours, other = servers
    ours.redirects = {"/x": f"{ours.url}/y", "/y": f"{other.url}/z?signature=1"}
    other.files["/z?signature=1"] = DATA
    options = {
        **SECRETS,
        "cookies": {"session": "abc"},
        "client_kwargs": {"headers": {"X-Session": "abc"}},
    }
    assert list(TFRecordDataset(f"{ours.url}/x", storage_options=options)) == RECORDS
    for path, headers in ours.asked:
        wanted = {
            "authorization": "Bearer abc",
            "x-token": "abc",
            "cookie": "session=abc",
            "x-session": "abc",
        }
        assert headers.items() >= wanted.items(), path
    assert other.asked
    for _, headers in other.asked:
        assert "abc" not in str(headers)
        assert headers["range"]


def test_s3_credentials_go_to_no_other_host(servers: list[Server]) -> None:
    ours, other = servers
    ours.redirects = {"/b/x": f"{other.url}/b/x"}
    other.files["/b/x"] = DATA
    options = {"key": "abc", "secret": "abc", "token": "abc", "endpoint_url": ours.url}
    with pytest.raises(StorageError, match=rf"redirects to {other.url}/b/x.*pass the endpoint_url"):
        list(TFRecordDataset("s3://b/x", storage_options=options))
    assert ours.asked
    assert not other.asked


def test_an_upload_to_gcs_that_continues_at_another_host_gets_no_token(
    servers: list[Server],
) -> None:
    ours, other = servers
    ours.redirects = {
        "/upload/storage/v1/b/b/o?uploadType=resumable&name=x": f"{other.url}/session"
    }
    token = Credentials("abc")  # type: ignore[no-untyped-call]

    async def write() -> None:
        options = {"token": token, "endpoint_url": ours.url}
        async with ShardWriter("gs://b/x", storage_options=options) as writer:
            for _ in range(20):
                await writer.write(b"x" * 2_000_000)

    with pytest.raises(StorageError, match="gs://b/x"):
        bridge.run(write)
    assert ours.asked[-1][1]["authorization"] == "Bearer abc"
    assert other.asked
    assert not any("authorization" in headers for _, headers in other.asked)


def test_shards_of_a_web_server_by_a_local_manifest(servers: list[Server], tmp_path: Path) -> None:
    """Nothing can be written next to them: the manifest is local, and the options are for the one
    remote store.
    """
    ours, other = servers
    ours.files["/d/x"] = other.files["/d/x"] = DATA
    manifest = str(tmp_path / "m.json")
    streamrec.write_manifest_sync(f"{ours.url}/d/x", manifest, storage_options=SECRETS)
    with pytest.raises(ManifestError, match=f"shard_root='{ours.url}/d/'"):
        verify_sync(manifest, storage_options=SECRETS)
    assert verify_sync(manifest, shard_root=f"{ours.url}/d/", storage_options=SECRETS).ok
    with pytest.raises(ManifestError, match="is not below"):
        verify_sync(manifest, shard_root=f"{other.url}/d/", storage_options=SECRETS)
    assert other.asked == []


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"])
def test_a_remote_manifest_reads_no_local_file(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place: Store = request.getfixturevalue(store)
    folder = f"{place.url}/{uuid4().hex}"
    local = tmp_path / "secret"
    local.write_bytes(DATA)
    place.put({f"{folder}/d/x": DATA})
    for name in (
        str(local),
        local.as_uri(),
        f"local://{local}",
        f"memory://{local}",
        f"{folder}/x",
        f"{folder}/dx",
    ):
        for names in ([name], ["x", name]):
            place.put({f"{folder}/d/m.json": manifest_of(*names, pattern="x")})
            with pytest.raises(ManifestError, match="is not below the manifest's directory"):
                verify_sync(f"{folder}/d/m.json", storage_options=place.options)
    for name in ("x", f"{folder}/d/x"):
        place.put({f"{folder}/d/m.json": manifest_of(name)})
        assert verify_sync(f"{folder}/d/m.json", storage_options=place.options).ok


async def test_a_manifest_and_an_index_elsewhere_stay_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if paths are relative, and spelled in several ways."""
    monkeypatch.chdir(tmp_path)
    async with ShardWriter(
        "data/x-{shard}",
        max_shard_records=8,
        manifest="other/dir/m.json",
        index="other/dir/x.index",
    ) as writer:
        for record in RECORDS:
            await writer.write(record)
    for name in ("other/dir/m.json", "other/dir/x.index"):
        with pytest.raises(ManifestError, match=rf"shard_root='{tmp_path}/data/'"):
            verify_sync(name)
        for root in ("data", "./data/", str(tmp_path / "data"), (tmp_path / "data").as_uri()):
            assert verify_sync(name, shard_root=root).ok
        for root in ("dat", "data/x-0/", str(tmp_path / "data" / "..")[:-3] + "/d"):
            with pytest.raises(ManifestError, match="is not below"):
                verify_sync(name, shard_root=root)
        for spelled in (
            "data/x-*",
            f"{tmp_path}/data/x-*",
            "./data/x-{0..2}",
            f"file://{tmp_path}/data/x-*",
        ):
            halves = [
                TFRecordDataset(spelled).distribute(rank, 2, even="drop", manifest=name)
                for rank in range(2)
            ]
            assert sorted([*halves[0], *halves[1]]) == RECORDS
            assert len(list(halves[0])) == 10
    with pytest.raises(ManifestError, match="is not below"):
        RecordSource("other/dir/x.index")
    assert list(RecordSource("other/dir/x.index", shard_root="data")[:]) == RECORDS
    assert list(TFRecordDataset("./data/x-{0..2}").global_shuffle(1, index="other/dir/x.index"))


@pytest.mark.parametrize(
    ("path", "url", "name"),
    [
        ("s3://b/d/m.json", "s3://b/d/x", "x"),
        ("s3://b/d/m.json", "s3://b/dx", "s3://b/dx"),
        ("s3://b/d/m.json", "s3://b/d/../x", "s3://b/d/../x"),
        ("m.json", "x", "x"),
        ("zip://d/m.json::s3://b/c.zip", "zip://d/x::s3://b/c.zip", "x"),
        ("https://h/d/m.json?v=a/b", "https://h/d/x", "x"),
    ],
)
def test_a_relative_name_leads_back_to_its_url(path: str, url: str, name: str) -> None:
    assert relative(path, portable(path, url)) == name
    assert absolute(path, name) == url


def test_a_password_in_the_url_stays_with_its_host(servers: list[Server]) -> None:
    ours, other = servers
    ours.redirects = {"/x": "/y", "/y": f"{other.url}/z"}
    other.files["/z"] = DATA
    assert list(TFRecordDataset(ours.url.replace("//", "//user:pass@") + "/x")) == RECORDS
    assert [headers["authorization"] for _, headers in ours.asked] == ["Basic dXNlcjpwYXNz"] * 2
    assert all("authorization" not in headers for _, headers in other.asked)


def visible_objects(objects: Objects) -> Objects:
    return {name: data for name, data in objects.items() if not is_hidden(name)}


Write = Callable[[str, dict[str, Any], int], Awaitable[object]]


async def with_writer(place: str, options: dict[str, Any], salt: int) -> None:
    """Two shards one after the other, then three, and an index."""
    pattern, index = f"{place}/x-{{shard}}", f"{place}/all.index"
    async with ShardWriter(
        pattern, max_shard_records=2, index=index, storage_options=options
    ) as writer:
        for number in range(4 + salt):
            await writer.write(b"%d of %d" % (number, salt))


async def with_dataset(place: str, options: dict[str, Any], salt: int) -> None:
    """Two shards at the same time, then three, and a manifest."""
    records = [b"%d of %d" % (number, salt) for number in range(4 + salt)]
    await streamrec.Dataset.from_tensor_slices(records).write(
        f"{place}/x-{{shard}}",
        num_shards=2 + salt,
        manifest=f"{place}/manifest.json",
        storage_options=options,
    )


WRITERS = [with_writer, with_dataset]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store"])
@pytest.mark.parametrize("cancels", [False, True])
async def test_a_failure_at_any_step_leaves_the_old_objects(
    request: pytest.FixtureRequest, kind: str, write: Write, cancels: bool
) -> None:
    async with open_place(kind, request) as place:
        await write(place.url, place.options, 0)
        old = await place.snapshot()
        place.step = count = Steps()
        await write(place.url, place.options, 1)
        place.step = do_nothing
        found = new = await place.snapshot()
        assert set(old) < set(new)
        assert not any(map(is_hidden, new))
        failed = 0
        for number in range(
            int(cancels), count.seen, 1 if kind == "disk" else 2 if THOROUGH else 4
        ):
            await place.restore(old, found)
            writing = asyncio.ensure_future(write(place.url, place.options, 1))
            cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, writing.cancel)
            place.step = steps = Steps(number, cancel if cancels else refuse_permission)
            try:
                await writing
                kept = new
            except (asyncio.CancelledError, streamrec.StorageError):
                failed += 1
                kept = old
            place.step = do_nothing
            found = await place.snapshot()
            shown = {name: data for name, data in found.items() if not is_hidden(name)}
            assert shown == kept or (cancels and shown == new), (
                number
            )  # it may come when all is done
            left = [name for name in found if is_hidden(name)]
            if kind != "disk":  # a store may still carry out what nobody waits for any more
                left = [name for name in left if secured_object(name)]
            assert steps.removal or not left, number
        assert failed > 5


@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store"])
async def test_two_writers_at_the_same_time_do_not_mix(
    request: pytest.FixtureRequest, kind: str
) -> None:
    async with open_place(kind, request) as place:
        await with_writer(place.url, place.options, 0)
        old = await place.snapshot()
        first, second = (
            ShardWriter(
                f"{place.url}/x-{{shard}}", max_shard_records=1, storage_options=place.options
            )
            for _ in range(2)
        )
        await first.__aenter__()
        await second.__aenter__()
        for writer, records in ((first, b"abc"), (second, b"de")):
            for record in records:
                await writer.write(bytes([record]))
        with pytest.raises(
            streamrec.errors.ObjectChangedError, match="another writer writes this object"
        ):
            await first.close()
        assert visible_objects(await place.snapshot()) == old
        await second.close()
        expected = {f"/x-{n}": streamrec.encode_records([b"de"[n : n + 1]]) for n in range(2)}
        assert await place.snapshot() == old | expected


PROGRAM_THAT_IS_KILLED = """
import asyncio, os, signal, sys
from tests.effort import THOROUGH
from tests.shards.test_places import with_writer
from tests.steps import HOOKS, Steps, do_nothing

folder = sys.argv[1]

def child(steps, salt):
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    HOOKS.append(steps)
    asyncio.run(with_writer(folder, {}, salt))
    os._exit(0)

child(do_nothing, 0)
number = 0
while child(Steps(number, lambda: os.kill(os.getpid(), signal.SIGKILL)), 1):
    print(number, flush=True)
    sys.stdin.readline()
    number += 1 if THOROUGH else 3
"""


def new_objects(folder: Path) -> Objects:
    """What replaces the old objects."""
    for salt in (0, 1):
        asyncio.run(with_writer(str(folder), {}, salt))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_killed_writer_leaves_all_old_objects_or_complete_copies(tmp_path: Path) -> None:
    folder, new = tmp_path / "d", new_objects(tmp_path / "other")
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM_THAT_IS_KILLED, str(folder)]
    half_way = 0
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        old: Objects = {}
        for number in process.stdout:
            found = {path.name: path.read_bytes() for path in folder.iterdir()}
            shown = {name: data for name, data in found.items() if not is_hidden(name)}
            old = old or shown
            copies = {
                secured_object(name): data for name, data in found.items() if secured_object(name)
            }
            if shown != new:
                assert all(old[name] in (found.get(name), copies.get(name)) for name in old), number
                half_way += shown != old
            for path in folder.iterdir():
                path.unlink()
            for name, data in old.items():
                (folder / name).write_bytes(data)
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    assert half_way > 2


async def test_the_next_writer_reports_what_a_killed_one_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = tmp_path / ".x-0.streamrec-old-0123456789abcdef"
    left.write_bytes(b"the only copy")
    await with_writer(str(tmp_path), {}, 0)
    assert not caplog.messages
    await with_writer(str(tmp_path), {}, 1)
    [said] = [each for each in caplog.messages if "is the old content" in each]
    assert said.startswith(
        f"{left} is the old content of {tmp_path}/x-0: a run that replaces it was killed"
    )
    assert f"streamrec recover {tmp_path}/ puts them back" in said
    assert left.read_bytes() == b"the only copy"
    assert [
        shard.path for shard in streamrec.write_manifest_sync(f"{tmp_path}/*x-?", f"{tmp_path}/m")
    ] == [f"{tmp_path}/x-{number}" for number in range(3)]
