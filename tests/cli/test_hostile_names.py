"""Names, values and answers of strangers in a terminal: they are shown, and nothing of them is obeyed."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import streamrec
from streamrec import CorruptRecordError, FeatureError, NotFoundError, StreamrecError
from streamrec.shards import ShardInfo
from tests.cli.conftest import Call, run
from tests.servers.answering import Answer, answering

EVIL = "x\x1b]0;PWN\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u200f\u061c\u2028y\tz"
"""Controls (C0, DEL, C1), marks of direction, separators of lines; a name of a file too."""

LEGIT = "naïve e\u0301 \U0001f469\u200d\U0001f4bb שלום مرحبا 日本語\u3000"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")

COMMANDS = [
    "ls {dir}",
    "ls --json {dir}",
    "ls {missing}",
    "ls {dir}/*{evil}*",
    "info {shard}",
    "info --python {shard}",
    "info {missing}",
    "head {shard}",
    "head --as json {shard}",
    "head {damaged}",
    "cat {shard}",
    "cat --as json {shard}",
    "cat {dir}",
    "cat --features {evil} {shard}",
    "cat --features {evil}1 {shard}",
    "cat --index {missing}.index 5",
    "count --each {shard} {shard}",
    "count --json {shard}",
    "count {damaged}",
    "verify {damaged}",
    "verify --json {damaged}",
    "verify {manifest}",
    "verify {broken}",
    "verify --repair {shard} {shard}",
    "verify --repair {new} {damaged}",
    "-v verify {damaged}",
    "stat {shard}",
    "stat --json {shard}",
    "stat --html {new}.html {shard}",
    "stat {missing}",
    "index {shard} {new}",
    "index {shard} {new}.index",
    "index --check {missing}.index",
    "index {damaged} {new}.index",
    "convert {shard} {new}.jsonl",
    "convert {shard} {new}.parquet",
    "convert {shard} {new}.tar",
    "convert {tar} {new}.tfrecord",
    "convert {damaged} {new}.jsonl",
    "convert {shard} {dir}",
    "-v convert {shard} {new}.jsonl",
    "reshard {shard} {new}-{{shard}}.tfrecord",
    "reshard {shard} {shard}",
    "reshard --shards 2 {shard} {new}.tfrecord",
    "-v reshard {damaged} {new}-{{shard}}.tfrecord",
    "doctor {dir}",
    "doctor {missing}",
    "bench {missing}",
    "{evil}",
    "ls --{evil}",
    "ls -o {evil} {dir}",
    "ls -o {evil}=1 s3://bucket/{evil}",
    "ls {evil}://bucket/x",
    "head -n {evil} {dir}",
    "head --as {evil} {dir}",
    "reshard --shard-bytes {evil} {shard} {new}",
]


def shown(text: str) -> str:
    assert not OBEYED.search(text), text
    return text


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    """A directory with shards of such names, and such features in them."""
    folder = tmp_path / EVIL
    folder.mkdir()
    found = {name: f"{folder}/{name}{EVIL}" for name in ("missing", "new", "tar")}
    found |= {name: f"{folder}/{name}{EVIL}.tfrecord" for name in ("shard", "damaged")}
    found |= {name: f"{folder}/{name}{EVIL}.json" for name in ("manifest", "broken")}
    record = streamrec.encode_example({EVIL: EVIL.encode(), "ok": LEGIT.encode(), f"{EVIL}\n2": [1, 2]})
    data = streamrec.encode_records([record] * 3)
    Path(found["shard"]).write_bytes(data)
    Path(found["damaged"]).write_bytes(data[:-30])
    shards = [{"path": f"{EVIL}.tfrecord", "records": 1, "bytes": 9, "crc32c": "00000000"}]
    Path(found["manifest"]).write_text(json.dumps({"format": EVIL, "version": EVIL, "shards": shards}))
    Path(found["broken"]).write_text(f"{{{EVIL}")
    found["tar"] += ".tar"
    with tarfile.open(found["tar"], "w") as tar:
        for name in (f"a{EVIL}.json", f"b{EVIL}.npy", f"c{EVIL}.cls"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"\x1b[2"))
    return {**found, "dir": str(folder), "evil": EVIL}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_obeys_no_name(words: dict[str, str], called: Call, command: str) -> None:
    done = called(*(word.format(**words) for word in command.split(" ")))
    shown(done.out)
    shown(done.err)


@pytest.mark.parametrize("command", ["-v verify {damaged}", "cat --as json {shard}", "ls {missing}"])
def test_bytes_of_a_process(words: dict[str, str], command: str) -> None:
    done = run(*(word.format(**words) for word in command.split(" ")))
    assert r"\x1b]0;PWN\x07" in shown(done.err) or r"\u001b]0;PWN\u0007" in shown(done.out)


def test_json_is_read_as_what_it_was(words: dict[str, str], called: Call) -> None:
    [listed] = [item for item in called("ls", "--json", words["dir"]).json if item["path"] == words["shard"]]
    assert listed["bytes"] == os.path.getsize(words["shard"])
    assert list(called("head", "-n", "1", "--as", "json", words["shard"]).json) == sorted([EVIL, f"{EVIL}\n2", "ok"])
    features = called("info", "--json", words["shard"]).json["features"]
    assert [item["name"] for item in features] == sorted([EVIL, f"{EVIL}\n2", "ok"])


def test_a_line_stays_a_line(tmp_path: Path, called: Call) -> None:
    name = str(tmp_path / "a\nstreamrec: all is well.tfrecord")
    Path(name).write_bytes(b"no shard at all")
    for done in (called("count", name), called("ls", name), called("ls", f"{name}x"), called("convert", name, name)):
        assert "\nstreamrec: all" not in done.out + done.err
        assert r"a\nstreamrec: all is well" in done.out + done.err


def test_text_of_all_scripts_is_shown_as_it_is(tmp_path: Path, called: Call) -> None:
    path = f"{tmp_path}/{LEGIT}.tfrecord"
    Path(path).write_bytes(streamrec.encode_records([streamrec.encode_example({LEGIT: LEGIT.encode()})]))
    assert called("ls", path).out.rstrip("\n").endswith(path)
    assert f"{LEGIT}: '{LEGIT}'" in called("head", path).out
    assert called("head", "--as", "json", path).out == f'{{"{LEGIT}": ["{LEGIT}"]}}\n'
    assert f"{path}x: " in called("ls", f"{path}x").err


@pytest.mark.parametrize(
    "error",
    [
        StreamrecError(f"{EVIL} and\nmore"),
        CorruptRecordError(f"broken {EVIL}\n", f"/tmp/{EVIL}\n", 1, 2),
        NotFoundError(f"the store said {EVIL}\n", f"s3://{EVIL}\n"),
        FeatureError(f"{EVIL}\n", f"{EVIL}\n", 1, f"{EVIL}\n"),
        streamrec.tfrecord.Loss(EVIL, 0, 1, f"{EVIL}\n", 0),
        ShardInfo(EVIL, 1, 2, 3, 4),
        streamrec.TFRecordDataset(f"{EVIL}\n").map(len).batch(2),
        streamrec.FixedLenFeature([], "string", EVIL.encode()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_and_reprs(error: object) -> None:
    assert "\n" not in shown(repr(error)) + shown(str(error))


@pytest.fixture
def refusing() -> Iterator[str]:
    """A store that says no, in words of its own."""
    body = (
        b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code>"
        b"<Message>\xc2\x9b31m \xe2\x80\xae no\nstreamrec: all is well</Message></Error>"
    )
    with answering(lambda asked: Answer(403, body)) as url:
        yield url


def test_what_a_server_says(refusing: str, called: Call) -> None:
    done = called("-v", "ls", "-o", f"endpoint_url={refusing}", "-o", "key=k", "-o", "secret=s", "s3://b/x/")
    assert done.code == 3
    assert "AccessDenied" in shown(done.err)
    assert "\nstreamrec: all is well" not in done.err


@pytest.mark.parametrize("command", ["ls", "head", "verify", "doctor", "convert", "reshard", "index", "-v count"])
def test_no_command_shows_a_secret(refusing: str, tmp_path: Path, called: Call, command: str) -> None:
    secret = "C4n4ry-pA55"
    target = [f"{tmp_path}/x.index"] if command in ("convert", "reshard", "index") else []
    host = refusing.removeprefix("http://")
    options = ["-o", f"secret={secret}", "-o", f"token={secret}", "-o", f"nothing={secret}"]
    for url in (f"http://{secret}@{host}/a?key={secret}", f"http://{host}/a?jwt={secret}#{secret}", "s3://b/a"):
        done = called(*command.split(), *(options if url == "s3://b/a" else ()), url, *target)
        assert done.code == 3
        assert secret not in done.out + done.err
    done = called(*command.split(), "-o", f"secret:{secret}", "s3://b/a", *target)
    assert done.code == 2
    assert secret not in done.out + done.err


def test_notebooks(tmp_path: Path) -> None:
    batch = {EVIL: [EVIL.encode()]}
    html = streamrec.TFRecordDataset(f"{tmp_path}/{EVIL}").batch(1)._repr_html_()
    assert not OBEYED.search(html)
    shown_batch = __import__("streamrec.notebook").notebook.show(batch)
    assert not OBEYED.search(shown_batch._repr_html_())
    assert "\n" not in shown(repr(shown_batch))


if sys.platform == "linux":

    def test_a_name_that_is_no_text(tmp_path: Path) -> None:
        path = os.fsencode(tmp_path) + b"/\xff\x9b.tfrecord"
        Path(os.fsdecode(path)).write_bytes(b"")
        for more in ((), ("--json",)):
            done = run("ls", *more, tmp_path)
            assert r"\udcff\udc9b" in shown(done.out)
