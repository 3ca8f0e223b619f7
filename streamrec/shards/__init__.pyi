from streamrec.shards.index.index import Index
from streamrec.shards.index.reader import IndexReader, Places, open_index
from streamrec.shards.index.write_index import join_index, join_index_sync, part_of, write_index, write_index_sync
from streamrec.shards.listing.assignment import Even, Portion, assign_records, check_even, even_count
from streamrec.shards.listing.listing import Listing, expand_name, find_shards, list_shards
from streamrec.shards.listing.matching_files import matching_files
from streamrec.shards.listing.patterns import Filenames, is_numbered, shard_path
from streamrec.shards.listing.sizes import deal, sizes_of, told_by
from streamrec.shards.manifests.manifest import Manifest, ShardInfo
from streamrec.shards.manifests.places import is_below, location_of
from streamrec.shards.manifests.verify import VerifyProblem, VerifyReport, read_manifest, verify, verify_sync
from streamrec.shards.manifests.write_manifest import write_manifest, write_manifest_sync
from streamrec.shards.options import Expected, Piece, ReadOptions, ShardPlace
from streamrec.shards.random_access.byte_runs import OFFSET_BITS, RUN_BYTES, ByteRun, byte_runs, first_difference
from streamrec.shards.random_access.fetcher import RecordFetcher
from streamrec.shards.random_access.record_source import RecordSource
from streamrec.shards.reading.reader import ShardReader, open_shard
from streamrec.shards.reading.short_shards import ShortShard, may_be_short, open_short_shard, read_short_shards
from streamrec.shards.writing.shard_set import ShardSet, ShardTarget
from streamrec.shards.writing.tfrecord_writer import TFRecordWriter
from streamrec.shards.writing.writer import ShardWriter

__all__ = [
    "OFFSET_BITS",
    "RUN_BYTES",
    "ByteRun",
    "Even",
    "Expected",
    "Filenames",
    "Index",
    "IndexReader",
    "Listing",
    "Manifest",
    "Piece",
    "Places",
    "Portion",
    "ReadOptions",
    "RecordFetcher",
    "RecordSource",
    "ShardInfo",
    "ShardPlace",
    "ShardReader",
    "ShardSet",
    "ShardTarget",
    "ShardWriter",
    "ShortShard",
    "TFRecordWriter",
    "VerifyProblem",
    "VerifyReport",
    "assign_records",
    "byte_runs",
    "check_even",
    "deal",
    "even_count",
    "expand_name",
    "find_shards",
    "first_difference",
    "is_below",
    "is_numbered",
    "join_index",
    "join_index_sync",
    "list_shards",
    "location_of",
    "matching_files",
    "may_be_short",
    "open_index",
    "open_shard",
    "open_short_shard",
    "part_of",
    "read_manifest",
    "read_short_shards",
    "shard_path",
    "sizes_of",
    "told_by",
    "verify",
    "verify_sync",
    "write_index",
    "write_index_sync",
    "write_manifest",
    "write_manifest_sync",
]
