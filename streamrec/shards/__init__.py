"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "assignment": (
            "Even",
            "Portion",
            "assign_records",
            "check_even",
            "even_count",
        ),
        "range_runs": (
            "ByteRun",
            "OFFSET_BITS",
            "RUN_BYTES",
            "byte_runs",
            "first_difference",
        ),
        "index": ("Index",),
        "index_reader": (
            "IndexReader",
            "Places",
            "open_index",
        ),
        "indexing": (
            "join_index",
            "join_index_sync",
            "part_of",
            "write_index",
            "write_index_sync",
        ),
        "listing": (
            "Listing",
            "expand_name",
            "find_shards",
            "list_shards",
            "matching_files",
        ),
        "manifest": (
            "Manifest",
            "ShardInfo",
        ),
        "manifest_files": (
            "VerifyProblem",
            "VerifyReport",
            "read_manifest",
            "verify",
            "verify_sync",
            "write_manifest",
            "write_manifest_sync",
        ),
        "options": (
            "Expected",
            "Piece",
            "ReadOptions",
            "ShardPlace",
        ),
        "patterns": (
            "Filenames",
            "is_numbered",
            "is_shard_of",
            "list_numbered",
            "shard_path",
        ),
        "places": (
            "is_below",
            "location_of",
        ),
        "reader": (
            "ShardReader",
            "open_shard",
        ),
        "record_fetcher": ("RecordFetcher",),
        "record_source": ("RecordSource",),
        "shard_set": (
            "ShardSet",
            "ShardTarget",
        ),
        "shard_writer": ("ShardWriter",),
        "short_shards": (
            "ShortShard",
            "may_be_short",
            "open_short_shard",
            "read_short_shards",
        ),
        "sizes": (
            "assign_shards",
            "sizes_of",
            "find_in_manifest",
        ),
        "tfrecord_writer": ("TFRecordWriter",),
    },
)
