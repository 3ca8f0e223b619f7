"""The numbers of records that a manifest gives to the shards that are there."""

from dataclasses import replace

import pytest

from streamrec.cli.sources import Item, add_counts
from streamrec.shards import Expected, Manifest, ShardInfo

SHARD = ShardInfo(path="s3://b/x", records=7, bytes=200, crc32c=None, version="v1")
MANIFEST = Manifest("s3://b/m.json", "s3://b/{shard}", "", (SHARD,))
ITEM = Item(path="s3://b/x", size=200, expected=Expected(size=200, version="v1"))


@pytest.mark.parametrize(
    "item", [ITEM, replace(ITEM, expected=Expected(size=200))], ids=["same version", "no version"]
)
def test_a_shard_of_the_same_size_and_version_gets_its_count(item: Item) -> None:
    shards = {item.path: item}
    assert add_counts(shards, MANIFEST) == []
    assert shards[item.path].records == 7


@pytest.mark.parametrize(
    "shards",
    [
        {},
        {ITEM.path: replace(ITEM, size=201)},
        {ITEM.path: replace(ITEM, expected=Expected(size=200, version="v2"))},
    ],
    ids=["missing", "another size", "another version"],
)
def test_a_shard_that_differs_from_the_manifest_gets_no_count(shards: dict[str, Item]) -> None:
    assert add_counts(shards, MANIFEST) == ["s3://b/x"]
    assert all(item.records is None for item in shards.values())
