"""How commands end: exit codes, messages, Ctrl-C, a closed pipe; on each store where nothing is, or
damage.
"""

import itertools
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.registry import _registry
from gcsfs.core import GCSFileSystem

from streamrec import encode_record, encode_records
from streamrec.cli import output
from streamrec.errors import install_command
from tests.cli.conftest import (
    COMMAND,
    Bucket,
    CommandLine,
    example_records,
    interrupt_stalled,
    run_command,
    start_command,
    typed_options,
)
from tests.runs import in_new_interpreter
from tests.servers.real import Store


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["count"], "Missing argument 'SOURCE...'"),
        (["cuont", "x"], "Did you mean count?"),
        (["ls", "-o", "anon", "x"], "write -o endpoint_url="),
        (["reshard", "--shards", "3", "SHARD", "out"], "write out-{shard:05d}"),
        (
            ["convert", "SHARD", "{shard}-of-{shards}"],
            "not known before they are written: leave it out",
        ),
        (["reshard", "--shard-bytes", "many", "SHARD", "out/"], "write 200MB"),
        (["reshard", "SHARD", "out-{n}"], "write train-{shard:05d}.tfrecord"),
        (["reshard", "--seed", "3", "SHARD", "out"], "--shuffle"),
        (["head", "--features", "colour", "SHARD"], "they have image, label, score, words"),
        (["stat", "--features", "colour", "SHARD"], "they have image, label, score, words"),
        (["cat", "--from-byte", "9", "SHARD", "SHARD"], "name one of them"),
        (["convert", "SHARD", "out.json"], "use .tfrecord, .parquet, .jsonl, .tar, or choose"),
        (["convert", "SHARD", "SHARD"], "choose another name for"),
        (["convert", "SHARD", "out/"], "choose the format of its files with --to"),
        (
            ["convert", "--shard-records", "3", "SHARD", "out.parquet"],
            "write out.parquet-{shard:05d}",
        ),
        (
            ["convert", "--schema", "there.jsonl", "SHARD", "a.parquet"],
            "streamrec info --json SOURCE > there.jsonl",
        ),
        (
            ["convert", "--text", "wrods", "SHARD", "a.parquet"],
            "no record has wrods: they have image, label, score",
        ),
        (
            ["convert", "--text", "label", "SHARD", "a.parquet"],
            "label is int64, and only bytes become text",
        ),
        (
            ["convert", "--text", "words", "SHARD", "a.jsonl"],
            "--text is for Parquet, which a.jsonl is not",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_usage_says_what_to_type(
    shard: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.jsonl").write_text("")
    cli.fails(2, said, *[shard if part == "SHARD" else part for part in arguments])


def test_records_before_the_damage_are_printed(damaged: Path) -> None:
    done = run_command("cat", "--json", damaged)
    assert done.code == 1
    assert len(done.out.splitlines()) == 100
    assert "record 100, byte " in done.err


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("convert", ["--to", "jsonl", "s3://data/*.tfrecord", "TARGET/"]),
        ("index", ["s3://data/*.tfrecord", "TARGET/a.index"]),
        ("verify", ["--repair", "TARGET/", "s3://data/*.tfrecord"]),
        pytest.param(
            "doctor", ["--no-write", "s3://data/train-0.tfrecord"], marks=pytest.mark.thorough
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ctrl_c_while_a_store_is_silent(
    shard: Path, tmp_path: Path, command: str, target: list[str]
) -> None:
    shard.write_bytes(encode_records(example_records(240) * 100))
    (tmp_path / "new").mkdir()
    interrupt_stalled(
        command, *[part.replace("TARGET", f"{tmp_path}/new") for part in target], root=tmp_path
    )
    assert list((tmp_path / "new").iterdir()) == []


def test_a_closed_pipe_ends_quietly(shard: Path) -> None:
    with start_command("cat", *[shard] * 40) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_progress_is_shown_in_a_terminal_alone(shard: Path) -> None:
    terminal, inside = pty.openpty()
    subprocess.run([COMMAND, "verify", shard], stdout=subprocess.DEVNULL, stderr=inside, check=True)
    os.close(inside)
    assert b"verifying" in os.read(terminal, 4096)
    os.close(terminal)
    assert run_command("verify", shard).err == ""


def test_progress_in_a_file_is_plain_lines(
    shard: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "monotonic", itertools.count(0, 20).__next__)
    lines = cli("verify", shard).err.splitlines()
    size = output.format_bytes(shard.stat().st_size)
    assert re.fullmatch(
        rf"streamrec: verifying: [\d.]+ kB of {size}, [\d.]+ k?B/s, \d+ s left", lines[0]
    )
    for quiet in (["--progress", "never"], ["-q"]):
        assert cli("verify", *quiet, shard).err == ""
    (shard.parent / "notes.txt").write_text("text")
    assert "left out 1 object" in cli("count", "--progress", "never", shard.parent).err
    assert cli("count", "-q", shard.parent).err == cli("ls", "-q", shard.parent).err == ""
    assert "no such file" in cli("count", "-q", "nothing").err


@pytest.mark.parametrize(
    ("words", "code", "found"),
    [
        ("cat SHARD", 1, {"error": "CorruptRecordError", "record": 100}),
        ("count", 2, {"error": "MissingParameter"}),
        ("info nothing", 3, {"error": "NotFoundError", "path": "nothing"}),
        ("convert SHARD SHARD.jsonl", 4, {"error": "AlreadyExistsError", "path": "SHARD.jsonl"}),
        ("reshard SHARD SHARD.jsonl", 4, {"error": "AlreadyExistsError", "path": "SHARD.jsonl"}),
    ],
)
def test_errors_are_json_on_request(
    damaged: Path, cli: CommandLine, words: str, code: int, found: dict[str, Any]
) -> None:
    Path(f"{damaged}.jsonl").write_text("")
    done = cli(*words.replace("SHARD", str(damaged)).split(), "--json")
    error = json.loads(done.err.replace(str(damaged), "SHARD"))
    assert found.items() <= error.items()
    assert (done.code, error["exit_code"], error["notes"]) == (code, code, [])


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_the_extra_one_line_says_what_to_install(package: str, tmp_path: Path) -> None:
    shard = tmp_path / "shard"
    shard.write_bytes(encode_records([b"record"]))
    code = f"import sys; sys.modules['{package}'] = None; from streamrec.cli import main; main()"
    words = [sys.executable, "-c", code, "stat", str(shard)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    message = f"the streamrec command needs the package {package}: {install_command('cli')}\n"
    assert done.stderr.endswith(message)
    assert "Traceback" not in done.stderr


PROGRAM_THAT_PRINTS_MODULES = """
import sys
from streamrec.cli import main
try:
    main()
finally:
    print("loaded:", *sys.modules)
"""


def output_and_modules(*arguments: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it loads."""
    printed, _, modules = in_new_interpreter(PROGRAM_THAT_PRINTS_MODULES, *arguments).rpartition(
        "loaded: "
    )
    return printed, set(modules.split())


def test_help_loads_little() -> None:
    printed, loaded = output_and_modules("--help")
    assert "reshard" in printed
    assert "click" in loaded
    assert loaded.isdisjoint(
        {"numpy", "asyncio", "fsspec", "rich", "google.protobuf", "streamrec.storage"}
    )


def test_head_loads_little(tmp_path: Path) -> None:
    """No tables and bars where there is no terminal, no datasets, nothing that writes."""
    path = tmp_path / "one.tfrecord"
    path.write_bytes(encode_record(b"hello"))
    printed, loaded = output_and_modules("head", str(path))
    assert "hello" in printed
    assert "streamrec.shards.reader" in loaded
    assert loaded.isdisjoint(
        {"rich", "streamrec.pipeline", "streamrec.shards.shard_writer", "streamrec.example.parse"}
    )


@pytest.mark.parametrize(
    "words", ["re", "info fl", "convert flowers/ fl", "index fl", "doctor fl", "stat --html fl"]
)
def test_the_shell_completes_commands_and_files(words: str) -> None:
    typed = {"COMP_WORDS": f"streamrec {words}", "COMP_CWORD": str(len(words.split()))}
    environment = {**os.environ, "_STREAMREC_COMPLETE": "bash_complete", **typed}
    done = subprocess.run([COMMAND], capture_output=True, text=True, env=environment)
    assert done.stdout == ("plain,reshard\nplain,recover\n" if words == "re" else "file,fl\n")


def test_every_command_has_help_and_module_runs() -> None:
    assert in_new_interpreter(
        "import runpy; runpy.run_module('streamrec')", "--version"
    ).startswith("streamrec")


READING_COMMANDS = ["ls", "info", "head", "cat", "count", "verify", "stat", "bench", "doctor"]
REWRITING_COMMANDS = [
    "index {source} {new}a.index",
    "verify --repair {new}",
    "stat --html {new}page.html",
    "reshard {source} {new}",
    "convert {source} {new}a.jsonl",
]


@pytest.fixture(params=["local", "s3", "gcs"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Bucket, Any]]:
    """A place of its own in each kind of store, and a filesystem that looks at it."""
    for protocol in (
        "gs",
        "gcs",
    ):  # no probes for buckets of other kinds, as in the program's environment
        monkeypatch.setitem(_registry, protocol, GCSFileSystem)
    if request.param == "local":
        yield Bucket(f"{tmp_path}/{uuid4()}/", ()), fsspec.filesystem("file")
        return
    store: Store = request.getfixturevalue(f"{request.param}_store")
    filesystem = fsspec.filesystem(request.param, **store.options, use_listings_cache=False)
    yield Bucket(f"{store.url}/{uuid4()}/", typed_options(store.options)), filesystem


def arguments_of(command: str, bucket: Bucket, source: str) -> list[str]:
    """What is typed: the command, its options, where to look, and where a new copy would go."""
    name, *rest = command.replace("{new}", f"{bucket.url}new/").replace("{source}", source).split()
    where = [] if source in rest else [source]
    return [name, *bucket.options, *rest, *where]


def names_below(filesystem: Any, url: str) -> list[str]:
    filesystem.invalidate_cache()
    return sorted(filesystem.find(url))


@pytest.mark.parametrize("command", [*READING_COMMANDS, *REWRITING_COMMANDS])
@pytest.mark.parametrize(
    ("place", "missing"),
    [
        *(("local", missing) for missing in ("nothing.tfrecord", "")),
        *(("s3", missing) for missing in ("*.tfrecord", "")),
        *(("gcs", missing) for missing in ("nothing.tfrecord", "*.tfrecord")),
    ],
    indirect=["place"],
)
def test_a_source_that_matches_nothing_has_its_exit_code(
    place: tuple[Bucket, Any], cli: CommandLine, command: str, missing: str
) -> None:
    """A missing object, a pattern that matches none, and an empty directory or bucket."""
    bucket, filesystem = place
    source = (
        bucket.url if command == "doctor" and "*" in missing else f"{bucket.url}{missing}"
    )  # it looks at places
    done = cli(*arguments_of(command, bucket, source))
    empty = (
        command == "doctor" and done.code == 0 and "0 objects" in done.out
    )  # a store that works, with nothing in it
    assert empty or done.code == 3, done
    assert command == "doctor" or done.err.startswith("streamrec: "), done.err
    assert (
        empty
        or bucket.url.partition("://")[2] in done.err + done.out
        or bucket.url in done.err + done.out
    )
    assert names_below(filesystem, bucket.url) == []


@pytest.mark.parametrize("command", [*READING_COMMANDS, *REWRITING_COMMANDS])
def test_a_wrong_key(s3_store: Store, cli: CommandLine, command: str) -> None:
    bucket = Bucket(
        f"{s3_store.url}/{uuid4()}/", typed_options({**s3_store.options, "secret": "wrong"})
    )
    filesystem = fsspec.filesystem("s3", **s3_store.options, use_listings_cache=False)
    with filesystem.open(f"{bucket.url}a.tfrecord", "wb") as file:
        file.write(b"")
    done = cli.fails(3, "", *arguments_of(command, bucket, f"{bucket.url}a.tfrecord"))
    assert "check the credentials" in done.err + done.out
    assert "wrong" not in done.err + done.out
    assert len(names_below(filesystem, bucket.url)) == 1


@pytest.mark.parametrize("command", ["count", "doctor"])
def test_a_wrong_token_is_not_shown(gcs_store: Store, cli: CommandLine, command: str) -> None:
    """A client asks Google about a token, and its error names the URL with the token in it: not in
    what we say.
    """
    bucket = Bucket(
        f"{gcs_store.url}/{uuid4()}/", typed_options({**gcs_store.options, "token": "ya29.wrong"})
    )
    done = cli.fails(3, "", *arguments_of(command, bucket, f"{bucket.url}a.tfrecord"))
    assert "ya29" not in done.err + done.out


@pytest.mark.parametrize(
    "command", ["info", "head", "cat", "count", "verify", "stat", *REWRITING_COMMANDS]
)
def test_damage_is_exit_code_1(
    place: tuple[Bucket, Any], cli: CommandLine, damaged: Path, command: str
) -> None:
    """A damaged record and an end that is cut off: the exit code is 1 for all that read so far."""
    bucket, filesystem = place
    source = f"{bucket.url}bad.tfrecord"
    if not bucket.options:
        Path(bucket.url).mkdir()
    filesystem.put_file(str(damaged), source)
    reads_all = command != "head"
    done = cli.fails(1 if reads_all else 0, "", *arguments_of(command, bucket, source))
    if reads_all and not command.startswith("verify"):
        lengths_only = command.startswith(("count", "index"))  # payloads are not checked
        assert ("record 239, byte " if lengths_only else "record 100, byte ") in done.err
    copy = ["new/bad.tfrecord"] if command.startswith("verify --repair") else []
    left = [
        name.partition(bucket.url.partition("://")[2] or bucket.url)[2]
        for name in names_below(filesystem, bucket.url)
    ]
    assert [name for name in left if name] == ["bad.tfrecord", *copy]
