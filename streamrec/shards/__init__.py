"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.shards.listing import Listing, find_shards
from streamrec.shards.patterns import Filenames, expand_braces
from streamrec.shards.reader import ReadOptions, ShardPlace, ShardReader, open_shard
from streamrec.shards.tfrecord_writer import TFRecordWriter
from streamrec.shards.writer import ShardInfo, ShardWriter

__all__ = [
    "Filenames",
    "Listing",
    "ReadOptions",
    "ShardInfo",
    "ShardPlace",
    "ShardReader",
    "ShardWriter",
    "TFRecordWriter",
    "expand_braces",
    "find_shards",
    "open_shard",
]
