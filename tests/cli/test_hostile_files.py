"""Files of strangers: what they claim allocates nothing, and what is wrong with them is one clear error."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import streamrec
from streamrec import CorruptRecordError, FeatureError, StreamrecError
from streamrec.interchange import Reading, codec_of
from tests.cli.conftest import Call
from tests.example.wire import varint

OURS = {"STREAMREC.members": "key.feature.type"}
DEEP = b"[" * 200_000 + b"]" * 200_000


def tar(*members: tuple[str, bytes], headers: dict[str, str] | None = OURS) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers or {}) as made:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return file.getvalue()


def npy(shape: str, dtype: str = "'<i8'") -> bytes:
    head = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def with_header(data: bytes, at: int, start: int, field: bytes) -> bytes:
    """A tar of which a header was changed, and has the checksum of what it is now."""
    changed = bytearray(data)
    changed[at + start : at + start + len(field)] = field
    total = sum(changed[at : at + 148]) + 8 * 32 + sum(changed[at + 156 : at + 512])
    changed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(changed)


GOOD = tar(("1.a.npy", npy("(2,)") + bytes(16)), ("1.b.txt", b"hi"), ("2.a.json", b"[1]"))
BODY = 1024
"""Where the first member begins: before it stands the header of all."""

SHAPES = ["(1000000000000,)", "(-1,)", "(9223372036854775807,)", "(99999999999999999999999,)", "(((", "'a'", "5"]

FILES: dict[str, tuple[str, bytes]] = {
    "json, deep": ("jsonl", b'{"a": ' + DEEP + b"}\n"),
    "json, many digits": ("jsonl", b'{"a": [' + b"9" * 5000 + b"]}\n"),
    "json, a float beyond all": ("jsonl", b'{"a": {"float32": [%d]}}\n' % 10**400),
    "json, an int beyond all": ("jsonl", b'{"a": [%d]}\n' % 2**70),
    "json, half a letter": ("jsonl", b'{"a": ["\\udc00"]}\n'),
    "json, half a letter as name": ("jsonl", b'{"\\ud800": [1]}\n'),
    "json in a tar, deep": ("tar", tar(("1.a.json", DEEP))),
    **{f"npy {shape}": ("tar", tar(("1.a.npy", npy(shape) + bytes(16)))) for shape in SHAPES},
    "npy, a zip": ("tar", tar(("1.a.npy", b"PK\x03\x04" + bytes(50)))),
    "npy, a pickle": ("tar", tar(("1.a.npy", b"\x80\x04."))),
    "npy, a header of 4 GB": ("tar", tar(("1.a.npy", b"\x93NUMPY\x02\x00\xff\xff\xff\xff"))),
    "tar, a member of 2**88 bytes": ("tar", with_header(GOOD, BODY, 124, b"\x80" + b"\xff" * 11)),
    "tar, a member of -1 bytes": ("tar", with_header(GOOD, BODY, 124, b"\xff" * 12)),
    "tar, a sparse member": ("tar", with_header(GOOD, BODY, 156, b"S")),
    "tar, a name of 8 GB": ("tar", with_header(with_header(GOOD, BODY, 156, b"L"), BODY, 124, b"77777777777\0")),
    "tar, a damaged header": ("tar", GOOD[: BODY + 512 + 512] + b"?" + GOOD[BODY + 512 + 513 :]),
    "tar, cut off": ("tar", GOOD[: BODY + 512 + 20]),
    "tar, cls of many digits": ("tar", tar(("1.cls", b"9" * 5000), headers=None)),
    "parquet, cut off": ("parquet", b"PAR1" + bytes(20)),
}


@pytest.mark.parametrize("name", FILES)
def test_it_is_one_error(name: str, tmp_path: Path, called: Call) -> None:
    ending, data = FILES[name]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(data)
    done = called("convert", path, tmp_path / "b.tfrecord")
    assert done.code in (1, 3), done
    assert done.err.startswith("streamrec: ")
    assert str(path) in done.err
    assert not (tmp_path / "b.tfrecord").exists()


def test_two_columns_of_one_name(tmp_path: Path, called: Call) -> None:
    parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    done = called("convert", tmp_path / "a.parquet", tmp_path / "b.tfrecord")
    assert done.code == 1
    assert "several columns have this name" in done.err


def written(table: pa.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


TABLE = written(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [[1.0], [], [2.0]]}))


@pytest.mark.parametrize(("name", "good"), [("webdataset", GOOD), ("parquet", TABLE)])
def test_damage_anywhere(name: str, good: bytes) -> None:
    """Bytes that were changed give other records or a StreamrecError."""
    drawn = random.Random(5)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(drawn.choice([1, 2, 8])):
            data[drawn.randrange(len(data))] = drawn.choice([0, 0x30, 0x80, 0xFF, drawn.randrange(256)])
        with suppress(StreamrecError):
            list(codec_of(name).decode(io.BytesIO(data), Reading()))


MEMORY = """
import sys
from streamrec.cli import program
code = program.run(sys.argv[1:])
print(code, *[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the memory")
def test_a_large_member_is_not_held_many_times(tmp_path: Path) -> None:
    """A member of 300 MB that gzip made small, as a record, and as it is encoded and written."""
    size, piece = 300 << 20, bytes(1 << 20)
    info = tarfile.TarInfo("1.a.bin")
    info.size = size
    with gzip.open(tmp_path / "a.tar.gz", "wb", 1) as file:
        file.write(info.tobuf())
        for _ in range(size >> 20):
            file.write(piece)
        file.write(bytes(1024))
    command = [sys.executable, "-c", MEMORY, "convert", tmp_path / "a.tar.gz", tmp_path / "b.tfrecord"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    code, kilobytes = done.stdout.split()[-2:]
    assert code == "0"
    assert int(kilobytes) << 10 < 4.4 * size


TENSORS = [[2**62], [2**62, 2], [2**31] * 3, [0, 2**62], [1] * 100, [2**63 - 1]]


@pytest.mark.parametrize("shape", TENSORS, ids=str)
def test_shapes_of_tensors(shape: list[int]) -> None:
    dims = b"".join(b"\x12" + bytes([len(size)]) + size for size in (b"\x08" + varint(each) for each in shape))
    for values in (b"", b"\x52\x01\x01", b"\x22\x0812345678"):
        message = b"\x08\x09\x12" + varint(len(dims)) + dims + values
        for limit in (2**28, 2**62):
            with suppress(FeatureError):
                assert streamrec.parse_tensor(message, np.int64, max_fill_bytes=limit).size <= 1


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


@pytest.mark.parametrize("text", ['{"features": ' + "[" * 100_000, '{"features":' * 100_000, '{"\ud800": 1}'])
def test_examples_in_json(text: str) -> None:
    with pytest.raises(FeatureError):
        streamrec.decode_json_example(text)


@pytest.mark.parametrize("length", [2**62, 2**63, 2**64 - 1, 1 << 40])
def test_lengths_of_records(tmp_path: Path, length: int) -> None:
    head = streamrec.encode_record(b"x" * 8)[:0] + length.to_bytes(8, "little")
    (tmp_path / "a").write_bytes(head + bytes(4) + bytes(100))
    with pytest.raises(CorruptRecordError):
        list(streamrec.TFRecordDataset(str(tmp_path / "a")))
