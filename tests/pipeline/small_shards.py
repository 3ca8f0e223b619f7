"""Five small shards of records of many lengths, one of them empty: what most tests of verbs read."""

from pathlib import Path

from streamrec import encode_records

SHARDS = [7, 0, 12, 1, 30]
"""Records in each."""


def records_of(shard: int) -> list[bytes]:
    return [b"%d.%d." % (shard, index) + b"x" * (index * 37 % 100) for index in range(SHARDS[shard])]


ALL = [record for shard in range(len(SHARDS)) for record in records_of(shard)]


def written(folder: Path) -> list[str]:
    """The paths of the shards, in a folder."""
    for shard in range(len(SHARDS)):
        (folder / f"s-{shard}.tfrecord").write_bytes(encode_records(records_of(shard)))
    return [str(folder / f"s-{shard}.tfrecord") for shard in range(len(SHARDS))]
