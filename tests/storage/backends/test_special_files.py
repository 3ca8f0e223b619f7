"""What is not a plain file, and limits: pipes, devices, links, /proc, many parts, many files."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from uuid import uuid4

import pytest

import streamrec
from streamrec import ShardWriter, StorageError, TFRecordDataset, TFRecordWriter, encode_records
from streamrec.storage import Storages
from streamrec.storage import upload as uploads
from tests.servers.real import Store
from tests.storage.contract import read_all

RECORDS = [b"%d" % number * (number % 50) for number in range(20_000)]
DATA = encode_records(RECORDS)


def fed(path: Path, data: bytes) -> threading.Thread:
    """Somebody who writes into a named pipe."""
    thread = threading.Thread(target=path.write_bytes, args=(data,))
    thread.start()
    return thread


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    thread = fed(path, DATA)
    assert list(TFRecordDataset(path)) == RECORDS
    thread.join()


def test_a_compressed_one_too(tmp_path: Path) -> None:
    with TFRecordWriter(tmp_path / "x.gz", "GZIP") as writer:
        for record in RECORDS:
            writer.write(record)
    os.mkfifo(tmp_path / "pipe")
    thread = fed(tmp_path / "pipe", (tmp_path / "x.gz").read_bytes())
    assert list(TFRecordDataset(tmp_path / "pipe")) == RECORDS
    thread.join()


def test_it_cannot_be_gone_on_with(tmp_path: Path) -> None:
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


def test_leaving_a_pipe_that_nobody_feeds(tmp_path: Path) -> None:
    """Before its other end was opened, and while nothing comes."""
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
    """Behind pipes and with files; devices stay what they are."""
    done = subprocess.run([sys.executable, "-c", COPY], input=DATA, capture_output=True, check=False, timeout=60)
    assert done.stderr == b""
    assert done.stdout == DATA
    (tmp_path / "in").write_bytes(DATA)
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as target:
        subprocess.run([sys.executable, "-c", COPY], stdin=source, stdout=target, check=True, timeout=60)
    assert (tmp_path / "out").read_bytes() == DATA
    assert not Path("/dev/stdout").is_file() or Path("/dev/stdout").is_symlink()


def test_devices_are_not_replaced() -> None:
    with TFRecordWriter("/dev/null") as writer:
        writer.write(b"x")
    assert Path("/dev/null").is_char_device()
    assert list(TFRecordDataset("/dev/null")) == []


def test_files_of_proc_have_bytes_though_their_size_is_0() -> None:
    """They are no records, which is an error and not the end."""
    with pytest.raises(streamrec.CorruptRecordError):
        list(TFRecordDataset("/proc/self/status", ""))


def test_an_empty_file_is_empty(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert list(TFRecordDataset(tmp_path / "x")) == []


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


def test_a_directory_says_which_pattern_to_write(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=rf"this is a directory: write {tmp_path}/\*.tfrecord"):
        list(TFRecordDataset(tmp_path))


def test_parts_grow_up_to_what_s3_takes() -> None:
    sizes = [uploads.part_bytes(index, uploads.PART_SIZE, True) for index in range(10_000)]
    assert sum(sizes) > 5 * 10**12
    assert sizes == sorted(sizes)
    assert set(sizes[: uploads.GROWTH_AFTER]) == {uploads.PART_SIZE}
    assert max(sizes) < 5 << 30
    assert all(size % (1 << 18) == 0 for size in sizes)
    assert uploads.part_bytes(9_999, uploads.PART_SIZE, False) == uploads.PART_SIZE


async def test_parts_that_grow_are_put_together(s3_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "GROWTH_AFTER", 1)
    monkeypatch.setattr(uploads, "GROWTH_EVERY", 1)
    monkeypatch.setattr(uploads, "LARGE_BYTES", 8 << 20)
    data = os.urandom(70_000_001)
    path = f"{s3_store.url}/{uuid4().hex}"
    async with Storages(s3_store.options) as storages:
        storage = await storages.at(path)
        async with await storage.upload(path, part_size=5 << 20) as upload:
            for start in range(0, len(data), 3_333_333):
                await upload.write(data[start : start + 3_333_333])
            assert upload._part_size > 10 << 20
        assert await read_all(await storage.stream(path)) == data


MANY = """
import resource, sys, streamrec
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder, reads = sys.argv[1], int(sys.argv[2])
print(len(list(streamrec.TFRecordDataset(folder + "/*", num_parallel_reads=reads))))
"""


def test_too_many_files_say_what_lowers_them(tmp_path: Path) -> None:
    """The default stays well below the limit of the process."""
    (tmp_path / "0").write_bytes(encode_records([bytes(150)] * 2000))  # shorter ones are read as they are opened
    for number in range(1, 300):
        os.link(tmp_path / "0", tmp_path / f"{number}")
    command = [sys.executable, "-c", MANY, str(tmp_path)]
    few = subprocess.run([*command, "16"], capture_output=True, text=True, check=False, timeout=60)
    assert few.stdout == "600000\n", few.stderr
    many = subprocess.run([*command, "200"], capture_output=True, text=True, check=False, timeout=60)
    assert "too many files and connections are open: 64, which is all that this process may have: lower" in many.stderr
