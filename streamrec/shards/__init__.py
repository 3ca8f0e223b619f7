"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "index.index": ("Index",),
        "index.reader": (
            "IndexReader",
            "Places",
            "open_index",
        ),
        "index.write_index": (
            "join_index",
            "join_index_sync",
            "part_of",
            "write_index",
            "write_index_sync",
        ),
        "listing.assignment": (
            "Even",
            "Portion",
            "assign_records",
            "check_even",
            "even_count",
        ),
        "listing.listing": (
            "Listing",
            "expand_name",
            "find_shards",
            "list_shards",
        ),
        "listing.matching_files": ("matching_files",),
        "listing.patterns": (
            "Filenames",
            "is_numbered",
            "shard_path",
        ),
        "listing.sizes": (
            "deal",
            "sizes_of",
            "told_by",
        ),
        "manifests.manifest": (
            "Manifest",
            "ShardInfo",
        ),
        "manifests.places": (
            "is_below",
            "location_of",
        ),
        "manifests.verify": (
            "VerifyProblem",
            "VerifyReport",
            "read_manifest",
            "verify",
            "verify_sync",
        ),
        "manifests.write_manifest": (
            "write_manifest",
            "write_manifest_sync",
        ),
        "options": (
            "Expected",
            "Piece",
            "ReadOptions",
            "ShardPlace",
        ),
        "random_access.byte_runs": (
            "OFFSET_BITS",
            "RUN_BYTES",
            "ByteRun",
            "byte_runs",
            "first_difference",
        ),
        "random_access.fetcher": ("RecordFetcher",),
        "random_access.record_source": ("RecordSource",),
        "reading.reader": (
            "ShardReader",
            "open_shard",
        ),
        "reading.short_shards": (
            "ShortShard",
            "may_be_short",
            "open_short_shard",
            "read_short_shards",
        ),
        "writing.shard_set": (
            "ShardSet",
            "ShardTarget",
        ),
        "writing.tfrecord_writer": ("TFRecordWriter",),
        "writing.writer": ("ShardWriter",),
    },
)
