"""How commands end: exit codes, messages, Ctrl-C, a closed pipe, a missing package."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from streamrec import encode_record, encode_records
from tests.cli.conftest import COMMAND, Call, Done, examples, interrupt_stalled, interrupted, run, start


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["count"], "Missing argument 'SOURCE...'"),
        (["cuont", "x"], "Did you mean count?"),
        (["ls", "-o", "anon", "x"], "write -o endpoint_url="),
        (["reshard", "--shards", "3", "SHARD", "out"], "write out-{shard:05d}"),
        (["convert", "SHARD", "{shard}-of-{shards}"], "not known before they are written: leave it out"),
        (["reshard", "--shard-bytes", "many", "SHARD", "out/"], "write 200MB"),
        (["reshard", "SHARD", "out-{n}"], "write train-{shard:05d}.tfrecord"),
        (["reshard", "--seed", "3", "SHARD", "out"], "--shuffle"),
        (["head", "--features", "colour", "SHARD"], "they have image, label, score, words"),
        (["stat", "--features", "colour", "SHARD"], "there are image, label, score, words"),
        (["cat", "--from-byte", "9", "SHARD", "SHARD"], "name one of them"),
        (["convert", "SHARD", "out.json"], "use .tfrecord, .parquet, .jsonl, .tar, or --to"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_usage_says_what_to_type(shard: Path, called: Call, arguments: list[str], said: str) -> None:
    done = called(*[shard if part == "SHARD" else part for part in arguments])
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize("command", ["count", "info", "head", "cat", "stat", "verify"])
def test_a_missing_file(tmp_path: Path, called: Call, command: str) -> None:
    said = f"streamrec: {tmp_path}/nothing.tfrecord: there is no such file: check the path\n"
    assert called(command, tmp_path / "nothing.tfrecord") == Done(3, "", said)


def test_records_before_the_damage_are_printed(damaged: Path) -> None:
    done = run("cat", "--json", damaged)
    assert done.code == 1
    assert len(done.out.splitlines()) == 100
    assert "record 100, byte " in done.err


def test_ctrl_c_leaves_nothing(shard: Path, tmp_path: Path) -> None:
    interrupted("reshard", "--shards", "240", shard, f"{tmp_path}/new/")
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("convert", ["--to", "jsonl", "s3://data/*.tfrecord", "TARGET/"]),
        ("index", ["s3://data/*.tfrecord", "TARGET/a.index"]),
        ("verify", ["--repair", "TARGET/", "s3://data/*.tfrecord"]),
        pytest.param("reshard", ["s3://data/*.tfrecord", "TARGET/"], marks=pytest.mark.thorough),
        pytest.param("doctor", ["--no-write", "s3://data/train-0.tfrecord"], marks=pytest.mark.thorough),
        pytest.param("stat", ["s3://data/*.tfrecord"], marks=pytest.mark.thorough),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_ctrl_c_while_a_store_is_silent(shard: Path, tmp_path: Path, command: str, target: list[str]) -> None:
    shard.write_bytes(encode_records(examples(240) * 100))
    (tmp_path / "new").mkdir()
    interrupt_stalled(command, *[part.replace("TARGET", f"{tmp_path}/new") for part in target], root=tmp_path)
    assert list((tmp_path / "new").iterdir()) == []


def test_a_closed_pipe_ends_quietly(shard: Path) -> None:
    with start("cat", *[shard] * 40) as process:
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
    assert run("verify", shard).err == ""


def test_without_the_extra_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['click'] = None; from streamrec.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "the streamrec command needs the package click: pip install 'streamrec[cli]'\n"


LOADED = """
import sys
from streamrec.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def loaded_by(*arguments: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it loads."""
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_help_loads_little() -> None:
    printed, loaded = loaded_by("--help")
    assert "reshard" in printed
    assert "click" in loaded
    assert loaded.isdisjoint({"numpy", "asyncio", "fsspec", "rich", "google.protobuf", "streamrec.storage"})


def test_head_loads_little(tmp_path: Path) -> None:
    """No tables and bars where there is no terminal, no datasets, nothing that writes."""
    path = tmp_path / "one.tfrecord"
    path.write_bytes(encode_record(b"hello"))
    printed, loaded = loaded_by("head", str(path))
    assert "hello" in printed
    assert "streamrec.shards.reader" in loaded
    assert loaded.isdisjoint({"rich", "streamrec.pipeline", "streamrec.shards.shard_writer", "streamrec.example.parse"})


def test_the_shell_completes() -> None:
    environment = {
        **os.environ,
        "_STREAMREC_COMPLETE": "bash_complete",
        "COMP_WORDS": "streamrec re",
        "COMP_CWORD": "1",
    }
    done = subprocess.run([COMMAND], capture_output=True, text=True, env=environment)
    assert done.stdout == "plain,reshard\n"


def test_every_command_has_help_and_module_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "streamrec", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("streamrec")
