"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.shards.listing.assignment import Even, Portion, assign_records, check_even, even_count
from streamrec.shards.listing.listing import Listing, find_shards
from streamrec.shards.listing.patterns import Filenames, expand_braces
from streamrec.shards.listing.sizes import deal, sizes_of, told_by
from streamrec.shards.manifests.manifest import Manifest, ShardInfo
from streamrec.shards.manifests.verify import VerifyProblem, VerifyReport, verify, verify_sync
from streamrec.shards.manifests.write_manifest import write_manifest, write_manifest_sync
from streamrec.shards.options import Piece, ReadOptions, ShardPlace
from streamrec.shards.reading.reader import ShardReader, open_shard
from streamrec.shards.writing.shard_set import ShardSet, ShardTarget
from streamrec.shards.writing.tfrecord_writer import TFRecordWriter
from streamrec.shards.writing.writer import ShardWriter

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
    "ShardSet",
    "ShardTarget",
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
