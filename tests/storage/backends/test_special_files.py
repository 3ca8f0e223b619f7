"""Special files and limits: pipes, devices, links, /proc, many parts; and listings of
directories.
"""

import gzip
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import streamrec
from streamrec import (
    ShardWriter,
    StorageError,
    TFRecordDataset,
    encode_records,
    matching_files,
)
from streamrec.errors import ObjectChangedError, StorageTimeoutError
from streamrec.storage import RetryPolicy, Storages, part_cutter, part_sender, retry
from tests.servers.real import Store
from tests.storage.contract import open_storage, read_all

RECORDS = [b"%d" % number * (number % 50) for number in range(20_000)]
DATA = encode_records(RECORDS)
ONE_PAGE = "/sys/devices/system/cpu/online"
"""A file that is shorter than the page that it says it has."""


def fed(path: Path, data: bytes) -> threading.Thread:
    """Writes into a named pipe in a thread."""
    thread = threading.Thread(target=path.write_bytes, args=(data,))
    thread.start()
    return thread


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_named_pipe_is_read_to_its_end(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    thread = fed(path, compress(DATA))
    assert list(TFRecordDataset(path)) == RECORDS
    thread.join()


async def test_an_opening_that_hangs_is_reported_and_ends_at_its_time_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a mount whose server does not answer: here of a pipe that is not opened for writing."""
    monkeypatch.setattr(retry, "MIN_WARNING_SECONDS", 0.02)
    os.mkfifo(tmp_path / "pipe")
    policy = RetryPolicy(attempts=1, connect_timeout=0.05, first_byte_timeout=0.05)
    async with Storages(retry=policy) as storages:
        with pytest.raises(StorageTimeoutError, match=r"opening: nothing for 0\.1 s"):
            await (await storages.at(str(tmp_path))).stream(str(tmp_path / "pipe"))
    assert "opening: no answer yet" in caplog.text


@pytest.mark.skipif(not Path(ONE_PAGE).exists(), reason="only Linux has it")
async def test_a_file_that_ends_before_its_size_is_an_error() -> None:
    async with open_storage(ONE_PAGE) as storage:
        with pytest.raises(ObjectChangedError):
            await read_all(await storage.stream(ONE_PAGE))


def test_a_read_of_a_pipe_cannot_be_resumed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    thread = fed(tmp_path / "pipe", DATA)
    dataset = TFRecordDataset(tmp_path / "pipe")
    iterator = dataset.iterate()
    for _ in range(15_000):
        next(iterator)
    state = iterator.state_dict()
    assert len(list(iterator)) == 5_000
    thread.join()
    with pytest.raises(StorageError, match="not a plain file: it is read once, from its beginning"):
        list(dataset.iterate(state))


def test_leaving_a_pipe_without_a_writer(tmp_path: Path) -> None:
    """Before its other end is opened, and while no bytes come."""
    os.mkfifo(tmp_path / "pipe")
    iterator = TFRecordDataset(tmp_path / "pipe").iterate()
    iterator.close()
    iterator = TFRecordDataset(tmp_path / "pipe").iterate()
    with open(tmp_path / "pipe", "wb", buffering=0) as other:
        other.write(DATA[:30])
        iterator.close()


COPY = """
import sys, streamrec
with streamrec.TFRecordWriter("/dev/stdout") as writer:
    for record in streamrec.TFRecordDataset("/dev/stdin"):
        writer.write(record)
"""


def test_standard_input_and_output(tmp_path: Path) -> None:
    """They may be pipes or files; devices are not replaced."""
    done = subprocess.run(
        [sys.executable, "-c", COPY], input=DATA, capture_output=True, check=False, timeout=60
    )
    assert done.stderr == b""
    assert done.stdout == DATA
    (tmp_path / "in").write_bytes(DATA)
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as target:
        subprocess.run(
            [sys.executable, "-c", COPY], stdin=source, stdout=target, check=True, timeout=60
        )
    assert (tmp_path / "out").read_bytes() == DATA
    assert not Path("/dev/stdout").is_file() or Path("/dev/stdout").is_symlink()


def test_devices_are_not_replaced() -> None:
    with streamrec.TFRecordWriter("/dev/null") as writer:
        writer.write(b"x")
    assert Path("/dev/null").is_char_device()
    assert list(TFRecordDataset("/dev/null")) == []


def test_files_of_proc_have_bytes_though_their_size_is_0() -> None:
    """They are not records, which is an error and not the end."""
    with pytest.raises(streamrec.CorruptRecordError):
        list(TFRecordDataset("/proc/self/status", ""))


async def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    async with ShardWriter(link) as writer:
        await writer.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == encode_records([b"new"])
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "there" / "later")
    async with ShardWriter(dangling) as writer:
        await writer.write(b"new")
    assert dangling.is_symlink()
    assert (tmp_path / "there" / "later").exists()
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["later", "target"]


def test_parts_grow_up_to_what_s3_takes() -> None:
    sizes = [part_cutter.part_bytes(index, part_cutter.PART_SIZE, True) for index in range(10_000)]
    assert sum(sizes) > 5 * 10**12
    assert sizes == sorted(sizes)
    assert set(sizes[: part_cutter.GROWTH_AFTER]) == {part_cutter.PART_SIZE}
    assert max(sizes) < 5 << 30
    assert all(size % (1 << 18) == 0 for size in sizes)
    assert part_cutter.part_bytes(9_999, part_cutter.PART_SIZE, False) == part_cutter.PART_SIZE


async def test_parts_that_grow_are_put_together(
    s3_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_cutter, "GROWTH_AFTER", 1)
    monkeypatch.setattr(part_cutter, "GROWTH_EVERY", 1)
    monkeypatch.setattr(part_sender, "LARGE_BYTES", 8 << 20)
    data = os.urandom(70_000_001)
    path = f"{s3_store.url}/{uuid4().hex}"
    async with open_storage(path, s3_store.options) as storage:
        async with await storage.upload(path, part_size=5 << 20) as upload:
            for start in range(0, len(data), 3_333_333):
                await upload.write(data[start : start + 3_333_333])
            assert upload._cutter.part_size > 10 << 20
        assert await read_all(await storage.stream(path)) == data


MANY = """
import resource, sys, streamrec
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder, reads = sys.argv[1], int(sys.argv[2])
print(sum(map(len, streamrec.TFRecordDataset(folder + "/*", num_parallel_reads=reads).batch(2000))))
"""


def test_too_many_files_say_what_lowers_them(tmp_path: Path) -> None:
    """The default stays well below the limit of the process."""
    (tmp_path / "0").write_bytes(
        encode_records([bytes(150)] * 2000)
    )  # shorter ones are read as they are opened
    for number in range(1, 300):
        os.link(tmp_path / "0", tmp_path / f"{number}")
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    few = subprocess.run([*command, "16"], capture_output=True, text=True, check=False, timeout=60)
    assert few.stdout == "600000\n", few.stderr
    many = subprocess.run(
        [*command, "200"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (
        "this process has reached its limit of 64 open files and connections: lower" in many.stderr
    )


def tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_records([name.encode()]))


def found(root: Path, pattern: str) -> list[str]:
    return [path.removeprefix(f"{root}/") for path in matching_files(f"{root}/{pattern}")]


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What is listed and looked at below the test's directory, by the name of the call."""
    seen: dict[str, list[str]] = {}

    def count(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if str(path).startswith(str(tmp_path)):
                seen.setdefault(name, []).append(str(path).removeprefix(str(tmp_path)).strip("/"))
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("scandir", "listdir", "stat", "lstat"):
        count(name)
    return seen


def test_a_pattern_lists_only_the_directories_that_it_can_match(
    tmp_path: Path, looked: dict[str, list[str]]
) -> None:
    tree(
        tmp_path,
        *(f"{top}/{below}/x.rec" for top in "abc" for below in ("train", "test", "other")),
        "top.rec",
    )
    for pattern, listed, matched in (
        ("*.rec", [""], ["top.rec"]),
        ("a/train/*.rec", ["a/train"], ["a/train/x.rec"]),
        (
            "*/test/*.rec",
            ["", "a", "b", "c", "a/test", "b/test", "c/test"],
            [f"{top}/test/x.rec" for top in "abc"],
        ),
        (
            "[ab]/t*/x.*",
            ["", "a", "b", *(f"{top}/{x}" for top in "ab" for x in ("train", "test"))],
            None,
        ),
        (
            "b/**",
            ["b", "b/train", "b/test", "b/other"],
            [f"b/{x}/x.rec" for x in ("other", "test", "train")],
        ),
        ("a/t*/**", ["a", "a/test", "a/train"], ["a/test/x.rec", "a/train/x.rec"]),
        ("nothing/here/*", [], []),
    ):
        looked.clear()
        names = found(tmp_path, pattern)
        assert sorted(looked.get("scandir", [])) == sorted(listed), pattern
        assert matched is None or names == matched


def test_one_match_among_very_many_files_costs_a_few_calls(
    tmp_path: Path, looked: dict[str, list[str]]
) -> None:
    tree(
        tmp_path,
        "x.tfrecord",
        *(f"{number}.txt" for number in range(300)),
        *(f"logs/{n}/y" for n in range(30)),
    )
    looked.clear()
    assert found(tmp_path, "*.tfrecord") == ["x.tfrecord"]
    assert sum(map(len, looked.values())) < 5, looked


def test_links(tmp_path: Path) -> None:
    tree(tmp_path, "d/x.rec", "far/y.rec", "far/deep/z.rec")
    for name, target in {
        "unrelated/dangling": "nowhere",
        "d/loop": ".",
        "d/up": "..",
        "d/far": "../far",
        "d/itself": "itself",
        "far/deep/back": "../../d",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
    assert found(tmp_path, "d/*.rec") == ["d/x.rec"]
    assert found(tmp_path, "*/*.rec") == ["d/x.rec", "far/y.rec"]
    assert found(tmp_path, "d/*/y.rec") == ["d/far/y.rec"]
    # Links are followed unless they lead to a directory that is being walked: each path is found
    # once, and it ends.
    expected = [
        "d/far/deep/z.rec",
        "d/far/y.rec",
        "d/itself",
        "d/up/far/deep/z.rec",
        "d/up/far/y.rec",
    ]
    assert found(tmp_path, "d/**") == sorted([*expected, "d/up/unrelated/dangling", "d/x.rec"])


def test_a_link_that_leads_nowhere_matters_where_it_matches(tmp_path: Path) -> None:
    tree(tmp_path, "a.rec", "c.rec")
    (tmp_path / "b.rec").symlink_to("gone")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").symlink_to("gone")
    assert found(tmp_path, "*.rec") == ["a.rec", "b.rec", "c.rec"]
    assert list(TFRecordDataset(f"{tmp_path}/[ac].rec")) == [b"a.rec", b"c.rec"]
    read = iter(TFRecordDataset(f"{tmp_path}/*.rec"))
    assert next(read) == b"a.rec"
    with pytest.raises(streamrec.NotFoundError, match=r"b\.rec.*leads nowhere"):
        next(read)


PROGRAM = textwrap.dedent("""
    import os, sys, streamrec
    open_file, *patterns = sys.argv[1:]
    streamrec.matching_files(patterns[0]), list(streamrec.TFRecordDataset(open_file))  # loads all modules
    if not os.geteuid():
        os.setgroups([]), os.setegid(65534), os.seteuid(65534)  # no permission is waived for this user
    for pattern in patterns:
        try:
            names = streamrec.matching_files(pattern)
            print(*names)
            list(streamrec.TFRecordDataset(names))
        except streamrec.errors.PermissionDeniedError as error:
            print("refused:", error)
""")  # noqa: E501


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that all users may enter; pytest's directories are for one user."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)
        for path in Path(directory).iterdir():
            path.chmod(0o755)


def refusals(root: Path, *patterns: str) -> list[str]:
    """The result of each pattern for a user without rights."""
    urls = [f"{root}/{pattern}" for pattern in patterns]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{root}/top.rec", *urls],
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.replace(f"{root}/", "").splitlines()


def test_a_directory_that_cannot_be_listed_is_an_error_that_names_it(public: Path) -> None:
    tree(public, "open/x.rec", "closed/x.rec", "passed/inner/x.rec", "top.rec")
    (public / "closed").chmod(0)
    (public / "passed").chmod(0o111)
    patterns = [
        "*.rec",
        "open/*",
        "passed/inner/*",
        "closed/*",
        "**/x.rec",
        "[c]*/x.rec",
        "pass*/inner/*",
    ]
    lines = refusals(public, *patterns)
    assert lines[:3] == ["top.rec", "open/x.rec", "passed/inner/x.rec"]
    for line, directory in zip(lines[3:], ("closed", "", "closed", "passed"), strict=True):
        assert line.startswith("refused: ")
        assert f"'{directory}" in line.partition("Permission denied")[2]


def test_a_file_that_must_not_be_looked_at_is_listed_and_refused_when_it_is_opened(
    public: Path,
) -> None:
    tree(public, "d/x.rec", "top.rec")
    (public / "d").chmod(0o744)
    found, refused = refusals(public, "d/*")
    assert found == "d/x.rec"
    assert refused.startswith("refused: d/x.rec")


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/x-\xff\xfe.rec"
    with open(name, "wb") as file:
        file.write(encode_records([b"here"]))
    assert [os.fsencode(path) for path in matching_files(f"{tmp_path}/x-*")] == [name]
    assert list(streamrec.Dataset.list_files(f"{tmp_path}/*")) == [name]
    assert list(TFRecordDataset(name)) == list(TFRecordDataset(f"{tmp_path}/*")) == [b"here"]
    with pytest.raises(StorageError, match="UTF-8"):
        list(TFRecordDataset("memory://b/x-\udcff"))
    with pytest.raises(StorageError, match="UTF-8"):
        list(TFRecordDataset(f"{tmp_path}/x-\ud800"))


@pytest.mark.parametrize("url", ["{}/a\0b", "file://{}/a\0b", "memory:/{}/a\0b", "{}/a\0*"])
def test_a_name_with_a_nul(tmp_path: Path, url: str) -> None:
    with pytest.raises(StorageError, match="NUL"):
        list(TFRecordDataset(url.format(tmp_path)))
