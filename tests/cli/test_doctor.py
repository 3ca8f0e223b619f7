"""`streamrec doctor` on each kind of store: what it finds, and that nothing of it stays."""

import os
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest

from streamrec import Dataset
from streamrec.storage.backends.local.temporary_files import create_temporary
from tests.cli.conftest import Call, Done, run, typed
from tests.servers.real import SECRET, Store, moto, rclone

SERVER = ["resolve", "connect", "TLS", "clock", "list"]
READING = ["get", "range", "version", "checksum", "latency", "speed"]
WRITING = ["write", "exclusive", "multipart", "remove"]


def rows(done: Done) -> dict[str, bool | None]:
    return {row["name"]: row["ok"] for row in done.json["checks"]}


def check_writable(store: Store, call: Call, unchecked: set[str], failed: frozenset[str] = frozenset()) -> None:
    url, options = f"{store.url}/{uuid4()}/", typed(store.options)
    assert call("demo", *options, url).code == 0
    before = call("ls", *options, "--json", url).json
    done = call("doctor", *options, "--json", "--write", url)
    assert done.code == (3 if failed else 0), done.out
    found = rows(done)
    assert {name for name, ok in found.items() if ok is False} == failed
    assert list(found) == [*SERVER, *READING, "leftovers", "replaced", *WRITING]
    assert {name for name, ok in found.items() if ok is None} == unchecked
    assert done.err == ""
    assert call("ls", *options, "--json", url).json == before
    assert SECRET not in done.out + done.err


def test_seaweedfs(s3_store: Store, called: Call) -> None:
    check_writable(s3_store, called, set())


def test_fake_gcs(gcs_store: Store) -> None:
    check_writable(gcs_store, run, {"leftovers"})


def test_moto(called: Call) -> None:
    with moto() as store:
        check_writable(store, called, set())


def test_rclone(called: Call) -> None:
    with rclone() as store:
        check_writable(store, called, set(), frozenset({"range", "multipart"}))  # it answers ranges with status 200


def test_http_is_read_only(http_store: Store, called: Call) -> None:
    name = f"{uuid4()}.bin"
    (http_store.directory / name).write_bytes(bytes(100_000))
    done = called("doctor", "--json", "--write", f"{http_store.url}/{name}")
    found = rows(done)
    assert done.code == 0, done.out
    assert {name for name, ok in found.items() if ok is None} == {"checksum", "leftovers", "replaced", "write"}


@pytest.mark.parametrize("name", ["d", "x::y", "file::file:", "p#q?versionId=3"])
def test_local_directory(name: str, tmp_path: Path, called: Call) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "a").write_bytes(bytes(100_000))
    done = called("doctor", "--json", "--write", str(directory))
    assert done.code == 0, done.out
    assert [path.name for path in directory.iterdir()] == ["a"]


def test_an_unfinished_upload_is_seen(s3_store: Store, called: Call) -> None:
    filesystem, inner = fsspec.url_to_fs(f"{s3_store.url}/{uuid4()}/a", **s3_store.options)
    bucket, _, key = inner.partition("/")
    filesystem.pipe_file(inner, bytes(1000))
    upload = filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{key}-b")["UploadId"]
    done = called("doctor", *typed(s3_store.options), "--json", "--no-write", f"s3://{inner}")
    filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=f"{key}-b", UploadId=upload)
    [said] = [row["found"] for row in done.json["checks"] if row["name"] == "leftovers"]
    assert said == "1 upload under way, none older than a day"


def test_without_a_terminal_nothing_is_written(tmp_path: Path, called: Call) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    assert "write" not in rows(called("doctor", "--json", str(tmp_path)))


def test_what_a_killed_run_was_to_replace(tmp_path: Path, called: Call) -> None:
    kept = tmp_path / ".x.streamrec-old-0123456789abcdef"
    kept.write_bytes(b"old")
    (tmp_path / "x").write_bytes(b"new")
    (tmp_path / ".x.streamrec-new-0000000000000000").write_bytes(b"never in place")
    left, handle = create_temporary(tmp_path / "y")
    os.close(handle)  # its writer is dead
    done = called("doctor", "--json", f"{tmp_path}/")
    assert done.code != 0
    [row] = [row for row in done.json["checks"] if row["name"] == "replaced"]
    assert row["found"].startswith(f"{kept} is what {tmp_path}/x was before a run that replaced it ended half way")
    assert "copy each over its name" in row["found"]
    assert f"streamrec-new-0000000000000000 (the next run that replaces {tmp_path}/x removes it)" in row["found"]
    assert f"{left} (the next run that writes {tmp_path}/y on the same machine removes it)" in row["found"]
    for name in ("x", "y"):
        Dataset.from_tensor_slices([b"new"]).write_sync(tmp_path / name, manifest=tmp_path / "m.json")
    assert sorted(os.listdir(tmp_path)) == [kept.name, "m.json", "x", "y"]
