"""Manifests: encoding and parsing, damaged and hostile ones, and write_manifest for existing
shards.
"""

import asyncio
import gzip
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import (
    ShardWriter,
    TFRecordDataset,
    encode_records,
    verify_sync,
    write_manifest,
    write_manifest_sync,
)
from streamrec.errors import ManifestError, NotFoundError
from streamrec.shards import Manifest, ShardInfo, is_shard_of
from streamrec.shards.manifest import MARK_BYTES
from tests.servers.real import Store

NAMES = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="/\\\0%.~"), min_size=1
)
RECORDS = st.integers(0, 1 << 40)
Entry = tuple[int, int, int, set[int]]


def shard_of(path: str, entry: Entry, compressed: bool) -> ShardInfo:
    records, more, crc, marked = entry
    size = 16 * records + (more if records else 0)
    marks = (
        ()
        if compressed
        else tuple((number, 16 * number) for number in sorted(marked) if number < records)
    )
    return ShardInfo(path, records, size, crc, marks)


@given(
    st.sampled_from(["s3://b/", "s3://b/x/", "/data/", "", "rel/", "memory://m/"]),
    st.dictionaries(
        NAMES,
        st.tuples(RECORDS, RECORDS, st.integers(0, 0xFFFFFFFF), st.sets(st.integers(1, 1 << 40))),
    ),
    st.sampled_from(["", "GZIP", "ZLIB", "ZSTD"]),
)
def test_a_parsed_manifest_equals_the_encoded_one(
    directory: str, entries: dict[str, Entry], kind: str
) -> None:
    shards = tuple(shard_of(directory + name, entry, bool(kind)) for name, entry in entries.items())
    manifest = Manifest(f"{directory}m.json", f"{directory}t-{{shard:05d}}", kind, shards)  # type: ignore[arg-type]
    assert Manifest.from_json(manifest.path, manifest.to_json()) == manifest


@pytest.mark.parametrize("names", [["a", "a"], ["a", "./a"], ["?", "a*"]])
def test_a_shard_that_is_named_twice_is_refused_before_anything_is_written(
    tmp_path: Path, names: list[str]
) -> None:
    (tmp_path / "a").write_bytes(encode_records([b"x"]))
    with pytest.raises(ManifestError, match="/a: this shard is named twice"):
        write_manifest_sync([f"{tmp_path}/{name}" for name in names], f"{tmp_path}/m.json")
    assert not (tmp_path / "m.json").exists()


def test_a_data_set_moves_with_its_manifest() -> None:
    shard = ShardInfo("s3://old/a/sub/train-0", 1, 20, 3)
    data = Manifest("s3://old/a/m.json", "s3://old/a/sub/train-{shard}", "", (shard,)).to_json()
    moved = Manifest.from_json("gs://new/m.json", data)
    assert moved.pattern == "gs://new/sub/train-{shard}"
    assert moved.shards == (ShardInfo("gs://new/sub/train-0", 1, 20, 3),)


def test_shards_elsewhere_keep_their_urls() -> None:
    shard = ShardInfo("gs://far/train-0", 1, 20, 3)
    manifest = Manifest("s3://b/m.json", "gs://far/train-{shard}", "", (shard,))
    assert Manifest.from_json("s3://other/m.json", manifest.to_json()).shards == (shard,)


def test_the_format_stays_the_same() -> None:
    shards = (ShardInfo("d/x-0", 5, 100, 0xAB), ShardInfo("d/x-1", 4, 90, 0xFFFFFFFF))
    manifest = Manifest("d/m.json", "d/x-{shard}", "GZIP", shards)
    written = {
        "format": "streamrec manifest",
        "version": 1,
        "pattern": "x-{shard}",
        "compression_type": "GZIP",
        "shards": [
            {"name": "x-0", "records": 5, "bytes": 100, "crc32c": "000000ab"},
            {"name": "x-1", "records": 4, "bytes": 90, "crc32c": "ffffffff"},
        ],
    }
    assert json.loads(manifest.to_json()) == written
    assert Manifest.from_json("d/m.json", json.dumps(written).encode()) == manifest


WHOLE_MANIFEST = {
    "format": "streamrec manifest",
    "version": 1,
    "pattern": "x",
    "compression_type": "",
    "shards": [],
}
SHARD: dict[str, Any] = {"name": "x", "records": 2, "bytes": 40, "crc32c": "0123abcd"}


def manifest_with(**changes: Any) -> bytes:
    return json.dumps(WHOLE_MANIFEST | changes).encode()


def manifest_with_shard(**changes: Any) -> bytes:
    return manifest_with(shards=[SHARD | changes])


@pytest.mark.parametrize(
    "data",
    [
        *[
            manifest_with_shard(records=number)
            for number in (-5, True, 1.0, "2", None, 3, 1 << 62, 10**30, 0)
        ],
        *[
            manifest_with_shard(bytes=number)
            for number in (-5, False, 40.0, "40", None, 0, 1 << 63, 10**30)
        ],
        *[
            manifest_with_shard(crc32c=crc)
            for crc in (5, "", "x" * 8, "-1234567", "0x123456", "0123abcd0", " 123abcd", [])
        ],
        *[
            manifest_with_shard(name=name)
            for name in ("", None, 3, [], "x\0", "\ud800", "..", "../x", "a/../../x", "%2e%2e/x")
        ],
        *[
            manifest_with_shard(name=name)
            for name in ("..%2fx", "..%2Fx", "..\\x", "a\\..\\x", "s3://b/../x")
        ],
        *[
            manifest_with_shard(marks=marks)
            for marks in (3, [3], [[1]], [[1, 16, 2]], [[1, "16"]], [[1, True]], [[-1, 16]])
        ],
        *[
            manifest_with_shard(marks=marks)
            for marks in ([[1, 15]], [[2, 40]], [[1, 16], [1, 16]], [[1, 39]], [[0, 0]])
        ],
        manifest_with(shards=[SHARD, SHARD]),
        manifest_with(shards=[SHARD, SHARD | {"name": "./x"}]),
        manifest_with(shards=[SHARD | {"records": 99_999}], compression_type="GZIP"),
        manifest_with(
            shards=[SHARD | {"name": name, "records": 1 << 58, "bytes": 1 << 62} for name in "xy"]
        ),
        *[
            manifest_with(pattern=pattern)
            for pattern in ("", "../x", "{shard}{shard}{shard}", None)
        ],
        manifest_with().replace(b'"version": 1', b'"version": 1, "version": 1'),
        manifest_with().replace(b'"version": 1', b'"version": NaN'),
        manifest_with().replace(b'"version": 1', b'"version": ' + b"1" * 5000),
        manifest_with().replace(b"[]", b"[" * 200_000 + b"]" * 200_000),
        *[
            manifest_with(**wrong)
            for wrong in ({"format": "other"}, {"version": 2}, {"compression_type": "LZMA"})
        ],
        *[manifest_with(shards=shards) for shards in (3, [{"name": "x"}], [3])],
        *[b"\xff", b"[]", b"{}", b"[" * 200_000],
        b"",
        b"{" + b"\0" * 100 + b"}",
    ],
)
def test_a_hostile_manifest_is_one_error(data: bytes) -> None:
    with pytest.raises(ManifestError, match=r"^m\.json: .*(write it again|pass the URL)"):
        Manifest.from_json("m.json", data)


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("d/t-{shard}.x", ["d/t-0.x", "d/t-12.x"], ["d/t-.x", "d/t-0xx", "d/t-a.x", "d/t-1.x.gz"]),
        ("d/{shard:04x}-of", ["d/00ff-of"], ["d/00fg-of"]),
        ("d/one", ["d/one"], ["d/one1"]),
    ],
)
def test_the_names_of_a_pattern_are_those_of_its_shards(
    pattern: str, names: list[str], others: list[str]
) -> None:
    assert [name for name in names + others if is_shard_of(name, pattern)] == names


def test_an_impossible_number_of_records_is_refused_before_anything_is_allocated(
    tmp_path: Path,
) -> None:
    (tmp_path / "x").write_bytes(encode_records([b"abc"]))
    manifest = tmp_path / "m.json"
    for records in (1 << 62, 2, 0, -1):
        manifest.write_bytes(manifest_with_shard(records=records, bytes=19))
        for call in (
            partial(
                list,
                TFRecordDataset(str(tmp_path / "x")).distribute(
                    0, 1, even="pad", manifest=str(manifest)
                ),
            ),
            partial(verify_sync, str(manifest)),
        ):
            with pytest.raises(ManifestError, match=r"m\.json: this manifest is damaged"):
                call()


COUNTED = [b"record %d" % number for number in range(100)]


async def test_write_manifest_finds_the_shards_of_the_writer() -> None:
    folder = "memory://counting-same"
    async with ShardWriter(
        f"{folder}/{{shard}}", max_shard_records=30, manifest=f"{folder}/own.json"
    ) as writer:
        await writer.write_batch(COUNTED)
    shards = await write_manifest(f"{folder}/?", f"{folder}/counted.json")
    assert shards == tuple(writer.shards)
    assert [shard.records for shard in shards] == [30, 30, 30, 10]
    assert (await streamrec.verify(f"{folder}/counted.json")).ok


async def test_shards_without_a_manifest_are_checked_for_damage(
    s3_store: Store, tmp_path: Path
) -> None:
    """Plain and compressed ones, by name and by pattern; the report names the record and the
    byte.
    """
    good, damaged = encode_records(COUNTED), bytearray(encode_records(COUNTED))
    damaged[24 * 3 + 14] ^= 1  # in the payload of record 3
    data = {
        "a": good,
        "b": bytes(damaged),
        "c": gzip.compress(good),
        "d": good[:-3],
        "e": gzip.compress(damaged),
    }
    for name, content in data.items():
        (tmp_path / name).write_bytes(content)
    assert (
        str(verify_sync(f"{tmp_path}/a"))
        == f"1 shards, {len(good):,} bytes read: nothing is damaged"
    )
    report = verify_sync(f"{tmp_path}/?")
    assert (report.ok, report.manifest, report.shards, report.bytes) == (
        False,
        None,
        5,
        sum(map(len, data.values())),
    )
    assert [(problem.path[-1], problem.kind) for problem in report.problems] == [
        (name, "damage") for name in "bde"
    ]
    assert "b: damage: 3 good records before this: " in str(report)
    assert "record 3, byte 72" in str(report)
    url = f"{s3_store.url}/no-manifest/d"
    await asyncio.to_thread(s3_store.put, {url: data["d"]})
    report = await streamrec.verify(url, storage_options=s3_store.options)
    assert [problem.kind for problem in report.problems] == ["damage"]
    with pytest.raises(NotFoundError):
        verify_sync(f"{tmp_path}/none")


def test_all_shards_of_a_manifest_have_one_compression(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(gzip.compress(encode_records(COUNTED)))
    shards = write_manifest_sync(f"{tmp_path}/?", f"{tmp_path}/manifest.json")
    assert [shard.records for shard in shards] == [100, 100]
    (tmp_path / "c").write_bytes(encode_records(COUNTED))
    with pytest.raises(
        ManifestError, match=r"different compressions: .*b \(GZIP\), .*c \(not compressed\)"
    ):
        write_manifest_sync(f"{tmp_path}/?", f"{tmp_path}/manifest.json")


async def test_marks_are_the_offsets_of_records(tmp_path: Path) -> None:
    records = [b"." * 700_000 for _ in range(60)]
    async with ShardWriter(str(tmp_path / "own"), manifest=str(tmp_path / "own.json")) as writer:
        await writer.write_batch(records)
    (shard,) = await write_manifest(str(tmp_path / "own"), str(tmp_path / "counted.json"))
    for marks in (shard.marks, writer.shards[0].marks):
        assert 4 <= len(marks) <= 5
        assert all(byte == record * 700_016 for record, byte in marks)
        assert all(
            MARK_BYTES <= b - a < MARK_BYTES + (3 << 20) for (_, a), (_, b) in pairwise(marks)
        )
    written = Manifest.from_json("x", (tmp_path / "own.json").read_bytes())
    assert written.shards[0].marks == writer.shards[0].marks


@pytest.mark.parametrize(
    ("length", "count"), [(9_000_000, 1), (3_000_000, 3), (84_000, 110), (70_000_000, 2)]
)
def test_the_end_of_a_shard_is_not_a_mark(tmp_path: Path, length: int, count: int) -> None:
    (tmp_path / "a").write_bytes(encode_records([bytes(length)] * count))
    (shard,) = write_manifest_sync(str(tmp_path / "a"), str(tmp_path / "manifest.json"))
    assert shard.records == count
    assert all(
        0 < record < count and byte == record * (length + 16) for record, byte in shard.marks
    )
    assert verify_sync(str(tmp_path / "manifest.json")).ok
