"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.shards.assignment import Even, Portion, assign_records, check_even, even_count
from streamrec.shards.counting import write_manifest, write_manifest_sync
from streamrec.shards.listing import Listing, find_shards
from streamrec.shards.manifest import Manifest, ShardInfo
from streamrec.shards.options import Piece, ReadOptions, ShardPlace
from streamrec.shards.patterns import Filenames, expand_braces
from streamrec.shards.reader import ShardReader, open_shard
from streamrec.shards.sizes import deal, sizes_of, told_by
from streamrec.shards.tfrecord_writer import TFRecordWriter
from streamrec.shards.verification import VerifyProblem, VerifyReport, verify, verify_sync
from streamrec.shards.writer import ShardWriter

__all__ = [
    "Even",
    "Filenames",
    "Listing",
    "Manifest",
    "Piece",
    "Portion",
    "ReadOptions",
    "ShardInfo",
    "ShardPlace",
    "ShardReader",
    "ShardWriter",
    "TFRecordWriter",
    "VerifyProblem",
    "VerifyReport",
    "assign_records",
    "check_even",
    "deal",
    "even_count",
    "expand_braces",
    "find_shards",
    "open_shard",
    "sizes_of",
    "told_by",
    "verify",
    "verify_sync",
    "write_manifest",
    "write_manifest_sync",
]
