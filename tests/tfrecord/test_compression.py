"""Compressed shards: what TensorFlow writes, what gzip allows, bombs; and files that are no
TFRecord files.
"""

import bz2
import gzip
import io
import lzma
import pickle
import random
import re
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from streamrec import CorruptRecordError, Framer, TFRecordOptions, decode_compressed, encode_records
from streamrec.errors import MissingExtraError, TruncatedShardError, install_command
from streamrec.tfrecord import CompressionType, Deflater, Inflater, compression, detect_compression
from streamrec.tfrecord.compression import looks_like
from tests.effort import thorough

COMPRESSED = [kind for kind in compression.COMPRESSION_TYPES if kind]


@pytest.fixture(scope="module", params=["isal", "zlib"], autouse=True)
def library(request: pytest.FixtureRequest) -> Iterator[str]:
    """GZIP and ZLIB are read by ISA-L where it is installed, else by zlib: all tests run over
    both.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "zlib":
            patch.setattr(compression, "isal_module", lambda name: None)
        else:
            assert compression.isal_module("igzip_lib") is not None, "install the extra isal"
        yield request.param


def inflate(data: bytes, kind: CompressionType, step: int = 1000, limit: int = 100) -> bytes:
    inflater = Inflater(kind, "s3://b/x")
    found = []
    for index in range(0, len(data), step):
        assert inflater.needs_input
        inflater.feed(data[index : index + step])
        while piece := inflater.read(limit):
            assert len(piece) <= limit
            found.append(piece)
    inflater.close()
    return b"".join(found)


def deflate(data: bytes, options: TFRecordOptions) -> bytes:
    deflater = Deflater(options)
    return (
        deflater.write(data[:100])
        + deflater.flush()
        + deflater.write(data[100:])
        + deflater.close()
    )


@given(
    data=st.binary(max_size=2000),
    kind=st.sampled_from(COMPRESSED),
    step=st.integers(1, 500),
    limit=st.integers(1, 500),
)
def test_compressed_bytes_are_detected_and_inflate_to_what_they_were(
    data: bytes, kind: CompressionType, step: int, limit: int
) -> None:
    packed = deflate(data, TFRecordOptions(kind))
    assert detect_compression(packed[:12]) == kind
    assert inflate(packed, kind, step, limit) == data


@pytest.mark.parametrize("kind", COMPRESSED)
def test_several_members_are_one_stream(kind: CompressionType) -> None:
    packed = deflate(b"one" * 99, TFRecordOptions(kind)) + deflate(b"", TFRecordOptions(kind))
    packed += deflate(b"two", TFRecordOptions(kind))
    for step in (1, 7, 10_000):
        assert inflate(packed, kind, step) == b"one" * 99 + b"two"


@pytest.mark.parametrize("kind", COMPRESSED)
def test_flushed_bytes_can_be_read_before_more_follow(kind: CompressionType) -> None:
    deflater, inflater = Deflater(TFRecordOptions(kind)), Inflater(kind)
    for text in (b"one" * 99, b"", b"two" * 5):
        inflater.feed(deflater.write(text) + deflater.flush())
        found = b""
        while piece := inflater.read(100):
            found += piece
        assert found == text
    inflater.feed(deflater.write(b"three") + deflater.close())
    assert inflater.read(100) == b"three"
    assert inflater.read(100) == b""
    inflater.close()


def test_skippable_frames_of_zstd_are_skipped() -> None:
    """As pzstd writes them, in front and between."""
    skippable = bytes.fromhex("5f2a4d18") + (9).to_bytes(4, "little") + b"no record"
    one, two = (deflate(text, TFRecordOptions("ZSTD")) for text in (b"one" * 99, b"two"))
    packed = skippable + one + skippable + skippable + two + skippable
    assert detect_compression(packed[:12]) == "ZSTD"
    for step in (1, 7, 10_000):
        assert inflate(packed, "ZSTD", step) == b"one" * 99 + b"two"


def test_gzip_padding_is_not_data() -> None:
    assert inflate(gzip.compress(b"data") + b"\0" * 512, "GZIP", 100) == b"data"
    assert inflate(b"", "GZIP") == b"", "nor is nothing at all an error"


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_cut_stream_is_truncated(kind: CompressionType) -> None:
    packed = deflate(bytes(range(256)) * 9, TFRecordOptions(kind))
    for cut in range(1, len(packed)):
        with pytest.raises(
            TruncatedShardError,
            match=f"{kind} stream ends unfinished after {cut:,} compressed bytes",
        ):
            inflate(packed[:cut], kind)


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_buffer_holds_what_came_before_damage(kind: CompressionType) -> None:
    """Members from before the damage fill it; the error, which names the place, comes from every
    later call.
    """
    good = deflate(b"good" * 500, TFRecordOptions(kind))
    bad = bytearray(deflate(bytes(range(256)) * 9, TFRecordOptions(kind)))
    bad[-3] ^= 0x55
    inflater, room = Inflater(kind, "s3://b/x"), bytearray(10_000)
    inflater.feed(good + bad)
    filled = inflater.read_into(memoryview(room))
    assert room[:2000] == b"good" * 500
    assert 2000 <= filled < len(room)
    for _ in range(2):
        assert not inflater.needs_input
        with pytest.raises(
            CorruptRecordError, match=f"s3://b/x, byte [0-9,]+: the {kind} stream is damaged"
        ):
            inflater.read_into(memoryview(room))


@pytest.mark.parametrize("kind", ["GZIP", *thorough("ZLIB"), "ZSTD"])
def test_a_bomb_is_read_in_bounded_memory(kind: CompressionType) -> None:
    deflater = Deflater(TFRecordOptions(kind))
    packed = b"".join(deflater.write(b"\0" * (1 << 20)) for _ in range(200)) + deflater.close()
    assert len(packed) < 1 << 20
    inflater = Inflater(kind)
    tracemalloc.start()
    try:
        inflater.feed(packed)
        total = 0
        while piece := inflater.read(1 << 16):
            total += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 200 << 20
    assert peak < 4 << 20


def test_a_length_with_a_right_crc_beats_magic_bytes() -> None:
    """A first record whose length begins with gzip's magic bytes is still a record."""
    length = int.from_bytes(b"\x1f\x8b", "little")
    assert detect_compression(encode_records([b"\0" * length])[:12]) == ""


@pytest.mark.parametrize("head", [b"", b"\x1f", b"hello, world", b"\x78\x9d" + b"\0" * 10])
def test_bytes_of_no_known_compression_count_as_uncompressed(head: bytes) -> None:
    assert detect_compression(head) == ""


def test_options_are_tensorflows() -> None:
    options = TFRecordOptions(
        "GZIP",
        window_bits=15,
        compression_level=9,
        mem_level=8,
        compression_strategy=zlib.Z_FILTERED,
    )
    assert options.zlib_window_bits == 31
    assert TFRecordOptions("ZLIB").zlib_window_bits == 15
    assert gzip.decompress(deflate(b"x" * 200, options)) == b"x" * 200


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_streams_that_isal_writes_are_read_by_all_libraries(
    library: str, kind: CompressionType
) -> None:
    options = TFRecordOptions(kind, library="isal")
    if library == "zlib":
        with pytest.raises(MissingExtraError, match=re.escape(install_command("isal"))):
            Deflater(options)
        return
    data = b"some words " * 10_000
    packed = deflate(data, options)
    assert zlib.decompress(packed, zlib.MAX_WBITS + 32) == data
    assert len(packed) < len(data) / 50


def test_threads_of_zstd_write_one_frame_that_all_libraries_read() -> None:
    """The same bytes, however many there are; and what was flushed can be read."""
    draw = random.Random(1)
    data = b"".join(b"%d words " % draw.randrange(1000) for _ in range(1_500_000))
    packed = [
        deflate(data, TFRecordOptions("ZSTD", compression_threads=threads)) for threads in (1, 2, 3)
    ]
    assert packed[0] == packed[1] == packed[2]
    assert inflate(packed[0], "ZSTD", 1 << 20, 1 << 20) == data
    member = compression.zstd_module().ZstdDecompressor()
    assert member.decompress(packed[0]) == data
    assert (member.eof, member.unused_data) == (True, b"")
    deflater, inflater = Deflater(TFRecordOptions("ZSTD", compression_threads=2)), Inflater("ZSTD")
    inflater.feed(deflater.write(data[:5000]) + deflater.flush())
    assert inflater.read(10_000) == data[:5000]


def test_levels_of_zstd_count_with_threads() -> None:
    data = b"".join(path.read_bytes() for path in Path(compression.__file__).parent.glob("*.py"))
    sizes = [
        len(deflate(data, TFRecordOptions("ZSTD", compression_level=level, compression_threads=2)))
        for level in (1, 9)
    ]
    assert sizes[1] < sizes[0] * 0.95


def test_threads_where_the_library_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is built without, in some distributions: then it compresses in the thread that writes."""
    module = compression.zstd_module()
    bounds = module.CompressionParameter.bounds
    monkeypatch.setattr(
        module.CompressionParameter,
        "bounds",
        lambda self: (0, 0) if self.name == "nb_workers" else bounds(self),
    )
    data = b"some words " * 10_000
    wanted = deflate(data, TFRecordOptions("ZSTD"))
    assert deflate(data, TFRecordOptions("ZSTD", compression_threads=2)) == wanted


TEXT = b"a text " * 1000


@pytest.mark.parametrize(
    ("kind", "compress"), [("GZIP", gzip.compress), ("ZLIB", zlib.compress), ("", bytes)]
)
def test_decode_compressed_takes_each_string_by_itself(kind: str, compress: object) -> None:
    assert callable(compress)
    assert decode_compressed(compress(TEXT), kind) == TEXT
    several = decode_compressed([[compress(TEXT)], [compress(b"")]], kind)
    assert several.tolist() == [[TEXT], [b""]]
    assert several.dtype == np.dtype(object)


def test_decode_compressed_names_damage() -> None:
    with pytest.raises(TruncatedShardError):
        decode_compressed(gzip.compress(TEXT)[:-9], "GZIP")
    with pytest.raises(CorruptRecordError):
        decode_compressed(b"no gzip at all", "GZIP")


@pytest.mark.peer
@pytest.mark.parametrize("kind", ["GZIP", "ZLIB"])
def test_decode_compressed_gives_what_tensorflow_gives(kind: str) -> None:
    tf = pytest.importorskip("tensorflow")
    data = gzip.compress(TEXT) if kind == "GZIP" else zlib.compress(TEXT)
    assert (
        tf.io.decode_compressed([data], kind).numpy().tolist()
        == decode_compressed([data], kind).tolist()
    )


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


def write_arrow_stream(data: pyarrow.Table, file: io.BytesIO) -> None:
    with pyarrow.ipc.new_stream(file, data.schema) as writer:
        writer.write_table(data)


def compress_with_arrow(codec: str) -> bytes:
    file = io.BytesIO()
    with pyarrow.CompressedOutputStream(file, codec) as stream:
        stream.write(RECORDS)
        stream.flush()
        return file.getvalue()


FOREIGN_FILES = [
    (lambda: image("JPEG"), "a JPEG image"),
    (lambda: image("PNG"), "a PNG image"),
    (
        lambda: b"<!DOCTYPE html>\n<html><body>Sign in</body></html>",
        "an HTML page, such as a login page",
    ),
    (
        lambda: b"\xef\xbb\xbf\r\n  <HTML lang=en><title>502 Bad Gateway</title>",
        "an HTML page, such as a login page",
    ),
    (
        lambda: b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
        "an XML document, such as",
    ),
    (lambda: b'{"error": {"code": 401}}', "JSON"),
    (
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a",
        "a pointer of Git LFS: run git lfs pull",
    ),
    (zipped, "a ZIP archive: unpack it, or read zip://NAME::URL"),
    (lambda: table(pyarrow.parquet.write_table), "a Parquet file"),
    (lambda: table(pyarrow.feather.write_feather), "an Arrow file"),
    (lambda: table(write_arrow_stream), "an Arrow stream"),
    (lambda: bz2.compress(RECORDS), "a file compressed with bz2"),
    (lambda: lzma.compress(RECORDS), "a file compressed with xz"),
    (lambda: compress_with_arrow("lz4"), "a file compressed with lz4"),
    (lambda: b"\xff\x06\x00\x00sNaPpY\x01\x3b", "a file compressed with snappy"),
    (lambda: np.lib.format.magic(1, 0) + bytes(9), "a NumPy array"),
    (
        tarfile.TarInfo("0001.jpg").tobuf,
        "a tar archive: `streamrec convert` makes shards of a WebDataset",
    ),
    (tarfile.TarInfo("ü" * 99).tobuf, "a tar archive"),
    (
        tarfile.TarInfo("sample-00000001.jpg").tobuf,
        "text, or a name in a tar archive ('sample-00000')",
    ),
    *(
        (partial(pickle.dumps, [{"a": b"b"}], protocol), "a pickle of Python")
        for protocol in range(2, 6)
    ),
    (lambda: bytes.fromhex("83af70d10d884a3f") + bytes(56), "a Riegeli or ArrayRecord file"),
    (lambda: b"label,text\n1,hello\n", "text, or a name in a tar archive ('label,text\\n1')"),
]


@pytest.mark.parametrize(("make", "name"), FOREIGN_FILES, ids=[name for _, name in FOREIGN_FILES])
@pytest.mark.parametrize("first", [12, 1000])
def test_a_file_of_another_kind_is_an_error_at_byte_0(
    make: Callable[[], bytes], name: str, first: int
) -> None:
    data = make()
    framer = Framer(path="s3://b/x")
    with pytest.raises(CorruptRecordError) as caught:
        assert not framer.feed(data[:first])
        framer.feed(data[first:])
        framer.close()
    assert caught.value.offset == 0
    assert f"not a TFRecord file: it begins like {name}" in str(caught.value)


def test_damage_after_the_first_record_is_damage() -> None:
    framer = Framer()
    framer.feed(RECORDS)
    with pytest.raises(CorruptRecordError, match="the shard is damaged here"):
        framer.feed(b"<!DOCTYPE html>")
        framer.close()


@pytest.mark.parametrize("head", [b"", b"<", RECORDS[:12], bytes(12), b"\x10" + bytes(11)])
def test_a_head_of_no_known_format_is_not_recognised(head: bytes) -> None:
    assert looks_like(head) is None


@pytest.mark.parametrize("kind", ["GZIP", "ZLIB", "ZSTD"])
@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (
            RECORDS,
            "it begins as a TFRecord file without compression: pass compression_type='', or leave "
            "it out",
        ),
        (zipped(), "it begins like a ZIP archive"),
        (b"<html>", "it begins like an HTML page"),
        (b"\x9c" * 20, "it begins with 9c9c9c9c9c9c9c9c9c9c9c9c"),
    ],
    ids=["plain", "zip", "html", "unknown"],
)
def test_a_stream_without_the_given_compression_is_an_error_with_advice(
    kind: CompressionType, data: bytes, advice: str
) -> None:
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
def test_a_stream_of_another_compression_names_the_right_one(
    data: bytes, kind: CompressionType, found: str
) -> None:
    advice = f"it begins like a {found} stream: pass compression_type='{found}', or leave it out"
    inflater = Inflater(kind)
    inflater.feed(data)
    with pytest.raises(CorruptRecordError, match=f"this is not a {kind} stream: {advice}"):
        inflater.read(100)
    with pytest.raises(
        CorruptRecordError,
        match=f"not a TFRecord file: {advice}; if that was done, it is compressed",
    ):
        framer = Framer()
        framer.feed(data)
        framer.close()
