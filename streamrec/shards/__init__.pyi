from streamrec.shards.assignment import (
    Even,
    assign_records,
    check_even,
    count_records,
    divide_portions,
    even_count,
)
from streamrec.shards.cursor import ShardCursor
from streamrec.shards.directories import refuse_directory, stat_shard
from streamrec.shards.index import Index
from streamrec.shards.indexed_records import IndexedRecords, Places, open_index
from streamrec.shards.indexing import (
    join_index,
    join_index_sync,
    part_of,
    write_index,
    write_index_sync,
)
from streamrec.shards.listing import (
    Filenames,
    Listing,
    NameListing,
    find_shards,
    list_shards,
    matching_files,
)
from streamrec.shards.manifest import Manifest, ShardInfo
from streamrec.shards.manifest_files import (
    VerifyProblem,
    VerifyReport,
    verify,
    verify_sync,
    write_manifest,
    write_manifest_sync,
)
from streamrec.shards.manifest_reading import find_in_manifest, read_manifest
from streamrec.shards.matches import expand_name
from streamrec.shards.numbered_names import Gap, Splits, find_gaps, find_splits
from streamrec.shards.opening import ShortShard, open_short_shard, read_short_shards
from streamrec.shards.options import (
    LONG_BYTES,
    Expected,
    Portion,
    ReadOptions,
    ShardPlace,
    ShardRange,
)
from streamrec.shards.patterns import (
    fill_total,
    is_numbered,
    is_shard_of,
    list_numbered,
    shard_path,
)
from streamrec.shards.places import is_below, location_of
from streamrec.shards.range_runs import OFFSET_BITS, ByteRun, byte_runs, first_difference
from streamrec.shards.reader import ShardReader, open_shard
from streamrec.shards.record_source import RecordSource
from streamrec.shards.shard_target import ShardTarget
from streamrec.shards.shard_writer import ShardWriter
from streamrec.shards.sizes import assign_shards, sizes_of
from streamrec.shards.tfrecord_writer import TFRecordWriter

__all__ = [
    "LONG_BYTES",
    "OFFSET_BITS",
    "ByteRun",
    "Even",
    "Expected",
    "Filenames",
    "Gap",
    "Index",
    "IndexedRecords",
    "Listing",
    "Manifest",
    "NameListing",
    "Places",
    "Portion",
    "ReadOptions",
    "RecordSource",
    "ShardCursor",
    "ShardInfo",
    "ShardPlace",
    "ShardRange",
    "ShardReader",
    "ShardTarget",
    "ShardWriter",
    "ShortShard",
    "Splits",
    "TFRecordWriter",
    "VerifyProblem",
    "VerifyReport",
    "assign_records",
    "assign_shards",
    "byte_runs",
    "check_even",
    "count_records",
    "divide_portions",
    "even_count",
    "expand_name",
    "fill_total",
    "find_gaps",
    "find_in_manifest",
    "find_shards",
    "find_splits",
    "first_difference",
    "is_below",
    "is_numbered",
    "is_shard_of",
    "join_index",
    "join_index_sync",
    "list_numbered",
    "list_shards",
    "location_of",
    "matching_files",
    "open_index",
    "open_shard",
    "open_short_shard",
    "part_of",
    "read_manifest",
    "read_short_shards",
    "refuse_directory",
    "shard_path",
    "sizes_of",
    "stat_shard",
    "verify",
    "verify_sync",
    "write_index",
    "write_index_sync",
    "write_manifest",
    "write_manifest_sync",
]
