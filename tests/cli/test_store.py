"""The commands on real object stores, as they are and as they should not be; bench, and what doctor
finds.
"""

import asyncio
import json
import os
import shlex
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import fsspec
import pytest

from streamrec import Dataset
from streamrec.storage import Storages
from streamrec.storage.backends.local.temporary_files import create_temporary
from tests.cli.conftest import (
    Bucket,
    CommandLine,
    Outcome,
    interrupt,
    run_command,
    start_command,
    still_running,
    typed_options,
)
from tests.effort import thorough
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.servers.real import SECRET, Running, Store, moto, rclone
from tests.storage.faultproxy import Fault, FaultProxy


def test_from_files_to_the_store_and_back(
    shard: Path, bucket: Bucket, tmp_path: Path, cli: CommandLine
) -> None:
    url, options = bucket.url, bucket.options
    done = run_command("reshard", *options, "--shards", "3", "--shuffle", "--seed", "1", shard, url)
    assert done.code == 0, done.err
    listed = cli("ls", *options, "--json", url).json
    names = [item["path"].removeprefix(url) for item in listed]
    assert names == ["manifest.json", *(f"shard-0000{number}.tfrecord" for number in range(3))]
    assert cli("verify", *options, f"{url}manifest.json").code == 0
    assert cli("count", *options, f"{url}*.tfrecord").out == "240\n"
    assert cli("info", *options, "--json", url).json["records"] == 240
    lines = cli("cat", *options, "--json", "--features", "label", url).out.splitlines()
    assert sorted(json.loads(line)["label"][0] for line in lines) == sorted(
        number % 4 for number in range(240)
    )
    assert cli("stat", *options, "--html", f"{url}page.html", url).code == 0
    assert cli("ls", *options, f"{url}page.html").code == 0
    assert cli("reshard", *options, f"{url}*.tfrecord", tmp_path / "back.tfrecord").code == 0


def test_a_refusal_of_the_store_says_what_to_check(bucket: Bucket, cli: CommandLine) -> None:
    url, options = bucket.url, bucket.options
    for arguments, said in (
        (["count", *options, f"{url}nothing.tfrecord"], "there is no such object"),
        (["count", *options, f"{url}*.tfrecord"], "no object matches this pattern"),
        (["ls", *options, url], "nothing is below this directory"),
        (["ls", *options, "s3://another-bucket/"], "NoSuchBucket"),
        (["ls", *options, "-o", "secret=wrong", url], "check the credentials"),
        (["info", *options, "-o", "endpiont_url=x", url], "endpoint_url"),
    ):
        done = cli.fails(3, said, *arguments)
        assert (done.err.startswith("streamrec: "), done.out) == (True, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["reshard", "SHARD", "TARGET/"],
        ["verify", "--repair", "TARGET/a", "SHARD"],
        *thorough(
            ["convert", "--to", "jsonl", "SHARD", "TARGET/"],
            ["reshard", "--shards", "2", "SHARD", "TARGET/"],
        ),
    ],
    ids=["reshard", "repair", "convert", "even"],
)
async def test_ctrl_c_takes_back_what_has_just_appeared(
    shard: Path, s3_store: Store, arguments: list[str]
) -> None:
    url = f"{s3_store.url}/{uuid4()}"
    silence = Fault(stall=0, head=lambda head: b"")  # the store does it, and its answer never comes
    async with (
        FaultProxy(
            s3_store.endpoint, lambda request: silence if request.method == "PUT" else None
        ) as proxy,
        Storages(s3_store.options) as storages,
    ):
        storage = await storages.at(url)
        options = typed_options({**s3_store.options, "endpoint_url": proxy.url})
        words = [part.replace("SHARD", str(shard)).replace("TARGET", url) for part in arguments]
        process = await asyncio.to_thread(start_command, words[0], *options, *words[1:])
        with anyio.fail_after(60):
            while not [found async for found in storage.list(url)]:
                await asyncio.to_thread(still_running, process)
        await asyncio.to_thread(interrupt, process)
        assert [found async for found in storage.list(url)] == []


def test_a_store_that_is_down_is_waited_for_with_a_warning(shard: Path) -> None:
    with ObjectStore(
        shard.parent.parent, replace(NO_FAULTS, unavailable=1.0, retry_after=60)
    ) as store:
        options = typed_options({"anon": True, "endpoint_url": store.url})
        with start_command("count", *options, f"s3://{shard.parent.name}/{shard.name}") as process:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            warning = next(line for line in lines if "no progress" in line)
            interrupt(process)
    assert warning.startswith(
        "streamrec: s3://data/train-0.tfrecord: the store asked for fewer requests"
    )
    assert "Retrying for 300 s more (RetryPolicy(patience=300))" in warning


def test_the_commands_that_demo_proposes_run(
    bucket: Bucket, cli: CommandLine, tmp_path: Path
) -> None:
    """With the options that it was given, but for secrets."""
    done = cli("demo", *bucket.options, bucket.url)
    first, *lines = done.out.splitlines()
    assert first.startswith("4 shards, 1,000 records")
    assert SECRET not in done.out
    commands = [shlex.split(line.replace("secret=...", f"secret={SECRET}")) for line in lines]
    assert [command[1] for command in commands] == ["info", "head", "stat", "verify"]
    for _, *arguments in commands:
        cli.succeeds(
            *(str(tmp_path / word) if word == "flowers.html" else word for word in arguments)
        )
    found = cli("demo", *bucket.options, "--overwrite", "--json", bucket.url).json
    assert found["manifest"] == f"{bucket.url}manifest.json"
    assert sum(shard["records"] for shard in found["shards"]) == 1000
    assert cli("count", *bucket.options, found["shards"][0]["path"]).out == "250\n"


def test_a_file_of_credentials_that_is_not_there(cli: CommandLine, tmp_path: Path) -> None:
    name = str(tmp_path / "key.json")
    said = (
        f"streamrec: gs://bucket/: storage option token={name!r} names a file that does not exist"
    )
    assert cli.fails(3, said, "ls", "-o", f"token={name}", "gs://bucket/").out == ""


def test_bench_and_doctor(bucket: Bucket, cli: CommandLine) -> None:
    url, options = bucket.url, bucket.options
    assert cli("demo", *options, url).code == 0
    found = cli("bench", *options, "--json", "--seconds", "0.05", url).json
    assert len(found["measurements"]) == 24
    assert all(item["mb_per_second"] > 0 for item in found["measurements"])
    assert found["knee"] in (1, 2, 4, 8, 16, 32)
    assert found["dataset"]["mb_per_second"] > 0
    for option, said in (("secret=wrong", "list"), ("endpoint_url=http://127.0.0.1:1", "connect")):
        done = cli.fails(3, "", "doctor", *options, "-o", option, url)
        assert f"FAIL  {said}" in done.out


def test_bench_removes_what_it_wrote(bucket: Bucket, cli: CommandLine) -> None:
    done = cli.succeeds(
        "bench", *bucket.options, "--json", "--write", "--seconds", "0.05", bucket.url
    )
    assert len(done.json["measurements"]) == 24
    assert "nothing is below" in cli("ls", *bucket.options, bucket.url).err


@pytest.mark.parametrize("written", ["first", "all"])
def test_ctrl_c_leaves_nothing(bucket: Bucket, cli: CommandLine, written: str) -> None:
    wanted = 1 if written == "first" else 8
    with start_command(
        "bench", *bucket.options, "--write", "--seconds", "60", bucket.url
    ) as process:
        deadline = time.monotonic() + 60
        while cli("ls", *bucket.options, bucket.url).out.count("\n") < wanted:
            assert process.poll() is None
            assert time.monotonic() < deadline
        interrupt(process)
    assert "nothing is below" in run_command("ls", *bucket.options, bucket.url).err


def test_write_wants_a_directory(shard: Path, cli: CommandLine) -> None:
    cli.fails(2, "ends in /", "bench", "--write", shard)


CHECKS_OF_SERVER = ["resolve", "connect", "TLS", "clock", "list"]
CHECKS_OF_READING = ["get", "range", "version", "checksum", "latency", "speed"]
CHECKS_OF_WRITING = ["write", "exclusive", "multipart", "remove"]


def checks_by_name(done: Outcome) -> dict[str, bool | None]:
    return {row["name"]: row["ok"] for row in done.json["checks"]}


STORES: list[tuple[str | Callable[[], Running], set[str], set[str]]] = [
    ("s3_store", set(), set()),
    ("gcs_store", {"leftovers"}, set()),
    (moto, set(), set()),
    (rclone, set(), {"range", "multipart"}),  # it answers ranges with status 200
]


@pytest.mark.parametrize(("where", "unchecked", "failed"), STORES)
def test_doctor_checks_all_that_a_store_can(
    request: pytest.FixtureRequest,
    cli: CommandLine,
    where: Any,
    unchecked: set[str],
    failed: set[str],
) -> None:
    call = run_command if where == "gcs_store" else cli
    with (
        nullcontext(request.getfixturevalue(where)) if isinstance(where, str) else where() as store
    ):
        url, options = f"{store.url}/{uuid4()}/", typed_options(store.options)
        assert call("demo", *options, url).code == 0
        before = call("ls", *options, "--json", url).json
        done = call("doctor", *options, "--json", "--write", url)
        assert done.code == (3 if failed else 0), done.out
        found = checks_by_name(done)
        assert {name for name, ok in found.items() if ok is False} == failed
        assert list(found) == [
            *CHECKS_OF_SERVER,
            *CHECKS_OF_READING,
            "leftovers",
            "replaced",
            *CHECKS_OF_WRITING,
        ]
        assert {name for name, ok in found.items() if ok is None} == unchecked
        assert done.err == ""
        assert call("ls", *options, "--json", url).json == before
        assert SECRET not in done.out + done.err


def test_http_is_read_only(http_store: Store, cli: CommandLine) -> None:
    name = f"{uuid4()}.bin"
    (http_store.directory / name).write_bytes(bytes(100_000))
    found = checks_by_name(cli.succeeds("doctor", "--json", "--write", f"{http_store.url}/{name}"))
    assert {name for name, ok in found.items() if ok is None} == {
        "checksum",
        "leftovers",
        "replaced",
        "write",
    }


@pytest.mark.parametrize("name", ["d", "x::y", "file::file:", "p#q?versionId=3"])
def test_local_directory(name: str, tmp_path: Path, cli: CommandLine) -> None:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "a").write_bytes(bytes(100_000))
    cli.succeeds("doctor", "--json", "--write", str(directory))
    assert [path.name for path in directory.iterdir()] == ["a"]


def test_an_unfinished_upload_is_seen(s3_store: Store, cli: CommandLine) -> None:
    filesystem, inner = fsspec.url_to_fs(f"{s3_store.url}/{uuid4()}/a", **s3_store.options)
    bucket, _, key = inner.partition("/")
    filesystem.pipe_file(inner, bytes(1000))
    upload = filesystem.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{key}-b")[
        "UploadId"
    ]
    done = cli("doctor", *typed_options(s3_store.options), "--json", "--no-write", f"s3://{inner}")
    filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=f"{key}-b", UploadId=upload)
    [said] = [row["found"] for row in done.json["checks"] if row["name"] == "leftovers"]
    assert said == "1 upload under way, none older than a day"


def test_doctor_reports_a_refused_listing_once(s3_store: Store, cli: CommandLine) -> None:
    done = cli(
        "doctor",
        *typed_options({**s3_store.options, "secret": "wrong"}),
        "--json",
        f"{s3_store.url}/",
    )
    assert list(checks_by_name(done)) == CHECKS_OF_SERVER
    assert done.json["checks"][-1]["found"].count("check the credentials") == 1


def test_without_a_terminal_nothing_is_written(tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    assert "write" not in checks_by_name(cli("doctor", "--json", str(tmp_path)))


def test_doctor_names_the_objects_that_a_killed_run_was_replacing(
    tmp_path: Path, cli: CommandLine
) -> None:
    kept = tmp_path / ".x.streamrec-old-0123456789abcdef"
    kept.write_bytes(b"old")
    (tmp_path / "x").write_bytes(b"new")
    (tmp_path / ".x.streamrec-new-0000000000000000").write_bytes(b"never in place")
    left, handle = create_temporary(tmp_path / "y")
    os.close(handle)  # its writer is dead
    done = cli("doctor", "--json", f"{tmp_path}/")
    assert done.code != 0
    [row] = [row for row in done.json["checks"] if row["name"] == "replaced"]
    assert row["found"].startswith(
        f"{kept} is what {tmp_path}/x was before a run replaced it, and nothing says whether"
    )
    assert "compare them with the new ones" in row["found"]
    assert (
        f"streamrec-new-0000000000000000 (the next run that replaces {tmp_path}/x removes it)"
        in row["found"]
    )
    assert (
        f"{left} (the next run that writes {tmp_path}/y on the same machine removes it)"
        in row["found"]
    )
    for name in ("x", "y"):
        Dataset.from_tensor_slices([b"new"]).write_sync(
            tmp_path / name, manifest=tmp_path / "m.json"
        )
    assert sorted(os.listdir(tmp_path)) == [kept.name, "m.json", "x", "y"]
