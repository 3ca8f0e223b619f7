"""What is no TFRecord file is called what it is: typical mistakes, with files as the programs write them."""

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from PIL import Image

from streamrec import CorruptRecordError, Framer, encode_records
from streamrec.tfrecord import CompressionType, Inflater
from streamrec.tfrecord.compression import looks_like

RECORDS = encode_records([b"a record"] * 100)


def image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.tfrecord", RECORDS)
    return file.getvalue()


def table(write: Callable[[pyarrow.Table, io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(pyarrow.table({"x": list(range(100))}), file)
    return file.getvalue()


def streamed(data: pyarrow.Table, file: io.BytesIO) -> None:
    with pyarrow.ipc.new_stream(file, data.schema) as writer:
        writer.write_table(data)


def packed(codec: str) -> bytes:
    file = io.BytesIO()
    with pyarrow.CompressedOutputStream(file, codec) as stream:
        stream.write(RECORDS)
        stream.flush()
        return file.getvalue()


FILES = [
    (lambda: image("JPEG"), "a JPEG image"),
    (lambda: image("PNG"), "a PNG image"),
    (lambda: b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "an HTML page, such as a login page"),
    (lambda: b"\xef\xbb\xbf\r\n  <HTML lang=en><title>502 Bad Gateway</title>", "an HTML page, such as a login page"),
    (lambda: b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "an XML document, such as"),
    (lambda: b'{"error": {"code": 401}}', "JSON"),
    (lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a", "a pointer of Git LFS: run git lfs pull"),
    (zipped, "a ZIP archive: unpack it, or read zip://NAME::URL"),
    (lambda: table(pyarrow.parquet.write_table), "a Parquet file"),
    (lambda: table(pyarrow.feather.write_feather), "an Arrow file"),
    (lambda: table(streamed), "an Arrow stream"),
    (lambda: bz2.compress(RECORDS), "a compressed file of a kind that shards never are (bz2)"),
    (lambda: lzma.compress(RECORDS), "a compressed file of a kind that shards never are (xz)"),
    (lambda: packed("lz4"), "a compressed file of a kind that shards never are (lz4)"),
    (lambda: b"\xff\x06\x00\x00sNaPpY\x01\x3b", "a compressed file of a kind that shards never are (snappy)"),
    (lambda: np.lib.format.magic(1, 0) + bytes(9), "a NumPy array"),
    (tarfile.TarInfo("0001.jpg").tobuf, "a tar archive: `streamrec convert` makes shards of a WebDataset"),
    (tarfile.TarInfo("ü" * 99).tobuf, "a tar archive"),
    (tarfile.TarInfo("sample-00000001.jpg").tobuf, "text, or a name in a tar archive ('sample-00000')"),
    *((partial(pickle.dumps, [{"a": b"b"}], protocol), "a pickle of Python") for protocol in range(2, 6)),
    (lambda: bytes.fromhex("83af70d10d884a3f") + bytes(56), "a Riegeli or ArrayRecord file"),
    (lambda: b"label,text\n1,hello\n", "text, or a name in a tar archive ('label,text\\n1')"),
]


@pytest.mark.parametrize(("make", "name"), FILES, ids=[name for _, name in FILES])
@pytest.mark.parametrize("first", [12, 1000])
def test_what_is_no_tfrecord_file(make: Callable[[], bytes], name: str, first: int) -> None:
    data = make()
    framer = Framer(path="s3://b/x")
    with pytest.raises(CorruptRecordError) as caught:
        assert not framer.feed(data[:first])
        framer.feed(data[first:])
        framer.close()
    assert caught.value.offset == 0
    assert f"not a TFRecord file: it begins like {name}" in str(caught.value)


def test_damage_behind_the_first_record_is_damage() -> None:
    framer = Framer()
    framer.feed(RECORDS)
    with pytest.raises(CorruptRecordError, match="the shard is damaged here"):
        framer.feed(b"<!DOCTYPE html>")
        framer.close()


@pytest.mark.parametrize("head", [b"", b"<", RECORDS[:12], bytes(12), b"\x10" + bytes(11)])
def test_what_looks_like_nothing(head: bytes) -> None:
    assert looks_like(head) is None


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB", "ZSTD"])
@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (RECORDS, "it begins as a TFRecord file without compression: pass compression_type='', or leave it out"),
        (zipped(), "it begins like a ZIP archive"),
        (b"<html>", "it begins like an HTML page"),
        (b"\x9c" * 20, "it begins with 9c9c9c9c9c9c9c9c9c9c9c9c"),
    ],
    ids=["plain", "zip", "html", "unknown"],
)
def test_what_is_not_compressed_as_was_said(kind: CompressionType, data: bytes, advice: str) -> None:
    inflater = Inflater(kind, "s3://b/x")
    with pytest.raises(CorruptRecordError) as caught:
        inflater.feed(data)
        inflater.read(100)
    assert str(caught.value).startswith(f"s3://b/x, byte 0: this is not a {kind} stream: {advice}")
    assert "fetch" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "kind", "found"),
    [(gzip.compress(RECORDS), "ZLIB", "GZIP"), (zlib.compress(RECORDS), "GZIP", "ZLIB")],
    ids=["gzip", "zlib"],
)
def test_what_is_compressed_in_another_way(data: bytes, kind: CompressionType, found: str) -> None:
    advice = f"it begins like a {found} stream: pass compression_type='{found}', or leave it out"
    inflater = Inflater(kind)
    inflater.feed(data)
    with pytest.raises(CorruptRecordError, match=f"this is not a {kind} stream: {advice}"):
        inflater.read(100)
    with pytest.raises(CorruptRecordError, match=f"not a TFRecord file: {advice}; if that was done, it is compressed"):
        framer = Framer()
        framer.feed(data)
        framer.close()
