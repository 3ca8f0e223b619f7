"""Names, values, answers and files of strangers: shown, not obeyed, and what is wrong is one clear
error.
"""

import io
import json
import os
import random
import re
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import streamrec
from streamrec import CorruptRecordError, FeatureError, NotFoundError, StreamrecError
from streamrec.cli.formats import Reading, codec_of
from streamrec.shards import ShardInfo
from tests.cli.conftest import CommandLine, peak_bytes, run_command
from tests.runs import tarred
from tests.servers.answering import Answer, answering

HOSTILE = "x\x1b]0;PWN\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u200f\u061c\u2028y\tz"
HOSTILE += "\u200b\ufeff\U000e0041\u3164"
"""Controls (C0, DEL, C1), marks of direction, separators of lines, and what is not seen: spaces
without width, a tag, a filler. A name of a file too."""

HARMLESS = "naïve e\u0301 \U0001f469\u200d\U0001f4bb שלום مرحبا 日本語\u3000"
OBEYED_BY_TERMINALS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff"
    "\u200b\ufeff\U000e0041\u3164]"
)

READING_COMMANDS = ["ls", "info", "head", "cat", "count", "verify", "stat"]
COMMANDS = [
    *(
        f"{name} {{{what}}}"
        for name in READING_COMMANDS
        for what in ("shard", "damaged", "missing", "dir")
    ),
    *(f"{name} --json {{shard}}" for name in ("ls", "head", "cat", "count", "verify", "stat")),
    *(f"convert {{shard}} {{new}}.{ending}" for ending in ("jsonl", "parquet", "tar")),
    *(
        "bench {missing}",
        "doctor {dir}",
        "doctor {missing}",
        "verify {manifest}",
        "verify {broken}",
    ),
    "ls {dir}/*{evil}*",
    "info --python {shard}",
    "cat --features {evil} {shard}",
    "cat --features {evil}1 {shard}",
    "cat --index {missing}.index 5",
    "count --each {shard} {shard}",
    "verify --json {damaged}",
    "verify --repair {shard} {shard}",
    "verify --repair {new} {damaged}",
    "-v verify {damaged}",
    "stat --html {new}.html {shard}",
    "index {shard} {new}",
    "index {shard} {new}.index",
    "index --check {missing}.index",
    "index {damaged} {new}.index",
    "convert {tar} {new}.tfrecord",
    "convert {damaged} {new}.jsonl",
    "convert {shard} {dir}",
    "-v convert {shard} {new}.jsonl",
    "reshard {shard} {new}-{{shard}}.tfrecord",
    "reshard {shard} {shard}",
    "reshard --shards 2 {shard} {new}.tfrecord",
    "-v reshard {damaged} {new}-{{shard}}.tfrecord",
    "{evil}",
    "ls --{evil}",
    "ls -o {evil} {dir}",
    "ls -o {evil}=1 s3://bucket/{evil}",
    "ls {evil}://bucket/x",
    "head -n {evil} {dir}",
    "head --as {evil} {dir}",
    "reshard --shard-bytes {evil} {shard} {new}",
]


def check_text(text: str) -> str:
    assert not OBEYED_BY_TERMINALS.search(text), text
    return text


@pytest.fixture
def hostile_names(tmp_path: Path) -> dict[str, str]:
    """A directory with shards of such names, and such features in them."""
    folder = tmp_path / HOSTILE
    folder.mkdir()
    found = {name: f"{folder}/{name}{HOSTILE}" for name in ("missing", "new", "tar")}
    found |= {name: f"{folder}/{name}{HOSTILE}.tfrecord" for name in ("shard", "damaged")}
    found |= {name: f"{folder}/{name}{HOSTILE}.json" for name in ("manifest", "broken")}
    record = streamrec.encode_example(
        {HOSTILE: HOSTILE.encode(), "ok": HARMLESS.encode(), f"{HOSTILE}\n2": [1, 2]}
    )
    data = streamrec.encode_records([record] * 3)
    Path(found["shard"]).write_bytes(data)
    Path(found["damaged"]).write_bytes(data[:-30])
    shards = [{"path": f"{HOSTILE}.tfrecord", "records": 1, "bytes": 9, "crc32c": "00000000"}]
    Path(found["manifest"]).write_text(
        json.dumps({"format": HOSTILE, "version": HOSTILE, "shards": shards})
    )
    Path(found["broken"]).write_text(f"{{{HOSTILE}")
    found["tar"] += ".tar"
    Path(found["tar"]).write_bytes(
        tarred(*((f"a{HOSTILE}.{kind}", b"\x1b[2") for kind in ("json", "npy", "cls")))
    )
    return {**found, "dir": str(folder), "evil": HOSTILE}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_obeys_no_name(
    hostile_names: dict[str, str], cli: CommandLine, command: str
) -> None:
    done = cli(*(word.format(**hostile_names) for word in command.split(" ")))
    check_text(done.out)
    check_text(done.err)


@pytest.mark.parametrize("command", ["-v verify {damaged}", "cat --json {shard}", "ls {missing}"])
def test_bytes_of_a_process(hostile_names: dict[str, str], command: str) -> None:
    done = run_command(*(word.format(**hostile_names) for word in command.split(" ")))
    assert r"\x1b]0;PWN\x07" in check_text(done.err) or r"\u001b]0;PWN\u0007" in check_text(
        done.out
    )


def test_json_is_read_as_what_it_was(hostile_names: dict[str, str], cli: CommandLine) -> None:
    [listed] = [
        item
        for item in cli("ls", "--json", hostile_names["dir"]).json
        if item["path"] == hostile_names["shard"]
    ]
    assert listed["bytes"] == os.path.getsize(hostile_names["shard"])
    assert list(cli("head", "-n", "1", "--json", hostile_names["shard"]).json) == sorted(
        [HOSTILE, f"{HOSTILE}\n2", "ok"]
    )
    features = cli("info", "--json", hostile_names["shard"]).json["features"]
    assert [item["name"] for item in features] == sorted([HOSTILE, f"{HOSTILE}\n2", "ok"])


def test_a_line_stays_a_line(tmp_path: Path, cli: CommandLine) -> None:
    name = str(tmp_path / "a\nstreamrec: all is well.tfrecord")
    Path(name).write_bytes(b"no shard at all")
    for done in (
        cli("count", name),
        cli("ls", name),
        cli("ls", f"{name}x"),
        cli("convert", name, name),
    ):
        assert "\nstreamrec: all" not in done.out + done.err
        assert r"a\nstreamrec: all is well" in done.out + done.err


def test_text_of_all_scripts_is_printed_unchanged(tmp_path: Path, cli: CommandLine) -> None:
    path = f"{tmp_path}/{HARMLESS}.tfrecord"
    Path(path).write_bytes(
        streamrec.encode_records([streamrec.encode_example({HARMLESS: HARMLESS.encode()})])
    )
    assert cli("ls", path).out.rstrip("\n").endswith(path)
    assert f"{HARMLESS}: '{HARMLESS}'" in cli("head", path).out
    assert cli("head", "--json", path).out == f'{{"{HARMLESS}": ["{HARMLESS}"]}}\n'
    assert f"{path}x: " in cli("ls", f"{path}x").err


@pytest.mark.parametrize(
    "error",
    [
        StreamrecError(f"{HOSTILE} and\nmore"),
        CorruptRecordError(f"broken {HOSTILE}\n", f"/tmp/{HOSTILE}\n", 1, 2),
        NotFoundError(f"the store said {HOSTILE}\n", f"s3://{HOSTILE}\n"),
        FeatureError(f"{HOSTILE}\n", f"{HOSTILE}\n", 1, f"{HOSTILE}\n"),
        streamrec.tfrecord.Loss(HOSTILE, 0, 1, f"{HOSTILE}\n", 0),
        ShardInfo(HOSTILE, 1, 2, 3, 4),
        streamrec.TFRecordDataset(f"{HOSTILE}\n").map(len).batch(2),
        streamrec.FixedLenFeature([], "string", HOSTILE.encode()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_and_reprs(error: object) -> None:
    assert "\n" not in check_text(repr(error)) + check_text(str(error))


@pytest.fixture
def refusing_store() -> Iterator[str]:
    """A store that says no, in words of its own."""
    body = (
        b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code>"
        b"<Message>\xc2\x9b31m \xe2\x80\xae no\nstreamrec: all is well</Message></Error>"
    )
    with answering(lambda asked: Answer(403, body)) as url:
        yield url


def test_a_servers_answer_cannot_add_lines_to_the_output(
    refusing_store: str, cli: CommandLine
) -> None:
    options = ["-o", f"endpoint_url={refusing_store}", "-o", "key=k", "-o", "secret=s"]
    done = cli.fails(3, "AccessDenied", "-v", "ls", *options, "s3://b/x/")
    assert "\nstreamrec: all is well" not in done.err


@pytest.mark.parametrize(
    "command", ["ls", "head", "verify", "doctor", "convert", "reshard", "index", "-v count"]
)
def test_no_command_shows_a_secret(
    refusing_store: str, tmp_path: Path, cli: CommandLine, command: str
) -> None:
    secret = "C4n4ry-pA55"
    targets = {"convert": "x.tfrecord", "reshard": "x.tfrecord", "index": "x.index"}
    target = [f"{tmp_path}/{targets[command]}"] if command in targets else []
    host = refusing_store.removeprefix("http://")
    options = ["-o", f"secret={secret}", "-o", f"token={secret}", "-o", f"nothing={secret}"]
    for url in (
        f"http://{secret}@{host}/a?key={secret}",
        f"http://{host}/a?jwt={secret}#{secret}",
        "s3://b/a",
    ):
        done = cli.fails(
            3, "", *command.split(), *(options if url == "s3://b/a" else ()), url, *target
        )
        assert secret not in done.out + done.err
    done = cli.fails(2, "", *command.split(), "-o", f"secret:{secret}", "s3://b/a", *target)
    assert secret not in done.out + done.err


def test_notebooks(tmp_path: Path) -> None:
    batch = {HOSTILE: [HOSTILE.encode()]}
    html = streamrec.TFRecordDataset(f"{tmp_path}/{HOSTILE}").batch(1)._repr_html_()
    assert not OBEYED_BY_TERMINALS.search(html)
    shown_batch = __import__("streamrec.notebook").notebook.show(batch)
    assert not OBEYED_BY_TERMINALS.search(shown_batch._repr_html_())
    assert "\n" not in check_text(repr(shown_batch))


if sys.platform == "linux":

    def test_a_name_that_is_not_text(tmp_path: Path) -> None:
        path = os.fsencode(tmp_path) + b"/\xff\x9b.tfrecord"
        Path(os.fsdecode(path)).write_bytes(b"")
        for more in ((), ("--json",)):
            done = run_command("ls", *more, tmp_path)
            assert r"\udcff\udc9b" in check_text(done.out)


TAR_HEADERS = {"STREAMREC.members": "key.feature.type"}
DEEP_JSON = b"[" * 200_000 + b"]" * 200_000


tar = partial(tarred, headers=TAR_HEADERS)


def npy_bytes(shape: str, dtype: str = "'<i8'") -> bytes:
    head = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def with_header(data: bytes, at: int, start: int, field: bytes) -> bytes:
    """A tar of which a header was changed, and has the checksum of what it is now."""
    changed = bytearray(data)
    changed[at + start : at + start + len(field)] = field
    total = sum(changed[at : at + 148]) + 8 * 32 + sum(changed[at + 156 : at + 512])
    changed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(changed)


GOOD_TAR = tar(("1.a.npy", npy_bytes("(2,)") + bytes(16)), ("1.b.txt", b"hi"), ("2.a.json", b"[1]"))
HEADER_BYTES = 1024
"""Where the first member begins: before it stands the header of all."""

SHAPES = [
    "(1000000000000,)",
    "(-1,)",
    "(9223372036854775807,)",
    "(99999999999999999999999,)",
    "(((",
    "'a'",
    "5",
]

FILES: dict[str, tuple[str, bytes]] = {
    "json, deep": ("jsonl", b'{"a": ' + DEEP_JSON + b"}\n"),
    "json, many digits": ("jsonl", b'{"a": [' + b"9" * 5000 + b"]}\n"),
    "json, a float beyond all": ("jsonl", b'{"a": {"float32": [%d]}}\n' % 10**400),
    "json, an int beyond all": ("jsonl", b'{"a": [%d]}\n' % 2**70),
    "json, half a letter": ("jsonl", b'{"a": ["\\udc00"]}\n'),
    "json, half a letter as name": ("jsonl", b'{"\\ud800": [1]}\n'),
    "json in a tar, deep": ("tar", tar(("1.a.json", DEEP_JSON))),
    **{f"npy {shape}": ("tar", tar(("1.a.npy", npy_bytes(shape) + bytes(16)))) for shape in SHAPES},
    "npy, a zip": ("tar", tar(("1.a.npy", b"PK\x03\x04" + bytes(50)))),
    "npy, a pickle": ("tar", tar(("1.a.npy", b"\x80\x04."))),
    "npy, a header of 4 GB": ("tar", tar(("1.a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff"))),
    "tar, a member of 2**88 bytes": (
        "tar",
        with_header(GOOD_TAR, HEADER_BYTES, 124, b"\x80" + b"\xff" * 11),
    ),
    "tar, a member of -1 bytes": ("tar", with_header(GOOD_TAR, HEADER_BYTES, 124, b"\xff" * 12)),
    "tar, a sparse member": ("tar", with_header(GOOD_TAR, HEADER_BYTES, 156, b"S")),
    "tar, a name of 8 GB": (
        "tar",
        with_header(
            with_header(GOOD_TAR, HEADER_BYTES, 156, b"L"), HEADER_BYTES, 124, b"77777777777\0"
        ),
    ),
    "tar, a damaged header": (
        "tar",
        GOOD_TAR[: HEADER_BYTES + 512 + 512] + b"?" + GOOD_TAR[HEADER_BYTES + 512 + 513 :],
    ),
    "tar, cut off": ("tar", GOOD_TAR[: HEADER_BYTES + 512 + 20]),
    "tar, cls of many digits": ("tar", tar(("1.cls", b"9" * 5000), headers=None)),
    "parquet, cut off": ("parquet", b"PAR1" + bytes(20)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_one_error(name: str, tmp_path: Path, cli: CommandLine) -> None:
    ending, data = FILES[name]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(data)
    done = cli("convert", path, tmp_path / "b.tfrecord")
    assert done.code in (1, 3), done
    assert done.err.startswith("streamrec: ")
    assert str(path) in done.err
    assert not (tmp_path / "b.tfrecord").exists()


def test_two_columns_of_one_name(tmp_path: Path, cli: CommandLine) -> None:
    parquet.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
        tmp_path / "a.parquet",
    )
    said = "several columns have this name"
    cli.fails(1, said, "convert", tmp_path / "a.parquet", tmp_path / "b.tfrecord")


def parquet_bytes(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


TABLE = parquet_bytes(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [[1.0], [], [2.0]]}))


@pytest.mark.parametrize(("name", "good"), [("webdataset", GOOD_TAR), ("parquet", TABLE)])
def test_damage_anywhere(name: str, good: bytes) -> None:
    """Bytes that were changed give other records or a StreamrecError."""
    drawn = random.Random(5)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(drawn.choice([1, 2, 8])):
            data[drawn.randrange(len(data))] = drawn.choice(
                [0, 0x30, 0x80, 0xFF, drawn.randrange(256)]
            )
        with suppress(StreamrecError):
            list(codec_of(name).decode(io.BytesIO(data), Reading()))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory")
def test_a_large_member_is_not_held_many_times(tmp_path: Path) -> None:
    """A member of 300 MB as a record, and as it is encoded and written."""
    size, piece = 300 << 20, bytes(1 << 20)
    info = tarfile.TarInfo("1.a.bin")
    info.size = size
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(info.tobuf())
        for _ in range(size >> 20):
            file.write(piece)
        file.write(bytes(1024))
    limit = ("--record-limit", "400MB")
    assert peak_bytes("convert", *limit, tmp_path / "a.tar", tmp_path / "b.tfrecord") < 4.4 * size


@pytest.mark.parametrize(
    "record",
    [b"\x0b" * 100_000, b"\x0b" * 50_000 + b"\x0c" * 50_000, b"\x0a\xff" * 1000],
    ids=["open groups", "deep groups", "nonsense"],
)
def test_messages(record: bytes) -> None:
    features: dict[str, Any] = {"a": streamrec.FixedLenFeature([], "int64", 0)}
    for call in (
        lambda: streamrec.parse_example([record], features),
        lambda: streamrec.parse_sequence_example([record], features, {}),
        lambda: streamrec.infer_features([record]),
        lambda: streamrec.parse_tensor(record, "int64"),
        lambda: streamrec.decode_json_example(record),
    ):
        with pytest.raises(FeatureError):
            call()
