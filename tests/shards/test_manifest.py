"""Manifests: there and back, and what is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ManifestError
from streamrec.shards import Manifest, ShardInfo

SIZES = st.integers(0, 1 << 62)
MARKS = st.lists(st.tuples(SIZES, SIZES), max_size=3).map(tuple)
Entry = tuple[str, int, int, int, tuple[tuple[int, int], ...]]
NAMES = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="/"), min_size=1)


@given(
    st.sampled_from(["s3://b/", "s3://b/x/", "/data/", "", "rel/", "memory://m/"]),
    st.lists(st.tuples(NAMES, SIZES, SIZES, st.integers(0, 0xFFFFFFFF), MARKS)),
    st.sampled_from(["", "GZIP", "ZLIB", "ZSTD"]),
)
def test_there_and_back(directory: str, entries: list[Entry], kind: str) -> None:
    shards = tuple(ShardInfo(directory + entry[0], *entry[1:]) for entry in entries if "://" not in entry[0])
    manifest = Manifest(f"{directory}m.json", f"{directory}t-{{shard:05d}}", kind, shards)  # type: ignore[arg-type]
    assert Manifest.from_json(manifest.path, manifest.to_json()) == manifest


def test_a_data_set_moves_with_its_manifest() -> None:
    shard = ShardInfo("s3://old/a/sub/train-0", 1, 2, 3)
    data = Manifest("s3://old/a/m.json", "s3://old/a/sub/train-{shard}", "", (shard,)).to_json()
    moved = Manifest.from_json("gs://new/m.json", data)
    assert moved.pattern == "gs://new/sub/train-{shard}"
    assert moved.shards == (ShardInfo("gs://new/sub/train-0", 1, 2, 3),)


def test_shards_elsewhere_keep_their_urls() -> None:
    shard = ShardInfo("gs://far/train-0", 1, 2, 3)
    manifest = Manifest("s3://b/m.json", "gs://far/train-{shard}", "", (shard,))
    assert Manifest.from_json("s3://other/m.json", manifest.to_json()).shards == (shard,)


def test_the_format() -> None:
    """Written as it always was, and what was written before is read."""
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


GOOD = {"format": "streamrec manifest", "version": 1, "pattern": "x", "compression_type": "", "shards": []}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (b"\xff", "no manifest"),
        (b"[]", "no manifest"),
        (b"{}", "no manifest"),
        (GOOD | {"format": "other"}, "needs another streamrec"),
        (GOOD | {"version": 2}, "version 2"),
        (GOOD | {"compression_type": "LZMA"}, "is damaged"),
        (GOOD | {"shards": [{"name": "x"}]}, "is damaged"),
        (GOOD | {"shards": 3}, "is damaged"),
        (GOOD | {"pattern": 3}, "is damaged"),
    ],
)
def test_what_is_no_manifest(found: object, reason: str) -> None:
    data = found if isinstance(found, bytes) else json.dumps(found).encode()
    with pytest.raises(ManifestError, match=reason) as caught:
        Manifest.from_json("s3://b/m.json", data)
    assert "s3://b/m.json" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("d/t-{shard}.x", ["d/t-0.x", "d/t-12.x"], ["d/t-.x", "d/t-0xx", "d/t-a.x", "d/t-1.x.gz"]),
        ("d/{shard:04x}-of", ["d/00ff-of"], ["d/00fg-of"]),
        ("d/one", ["d/one"], ["d/one1"]),
    ],
)
def test_names_of_shards(pattern: str, names: list[str], others: list[str]) -> None:
    manifest = Manifest("d/m.json", pattern, "", ())
    assert [name for name in names + others if manifest.belongs(name)] == names
