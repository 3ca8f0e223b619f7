"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.shards.listing import find_shards
from streamrec.shards.options import Piece, ReadOptions, ShardPlace
from streamrec.shards.patterns import Filenames, expand_braces
from streamrec.shards.reader import ShardReader, open_shard
from streamrec.shards.tfrecord_writer import TFRecordWriter
from streamrec.shards.writer import ShardInfo, ShardWriter

__all__ = [
    "Filenames",
    "Piece",
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
