from streamrec.storage.backend import BLOCK_BYTES, ObjectInfo, ShortObject
from streamrec.storage.base import ByteStream, Existing, Overwrite, Storage, read_full, receiver_of
from streamrec.storage.cache.contents import CachedSet, examine_cache, list_cache, trim_cache
from streamrec.storage.connections import MAX_CONNECTIONS
from streamrec.storage.directory_lock import LEASE_SECONDS, LockedError
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.identity import Identity
from streamrec.storage.latency import Distribution
from streamrec.storage.loading import import_client, locate
from streamrec.storage.range_room import BUFFER_BYTES
from streamrec.storage.recovery import Recovery, find_journals, find_unexplained, recover
from streamrec.storage.registry import (
    Storages,
    StoreOptions,
    check_keywords,
    check_source,
)
from streamrec.storage.replacement import Replacement
from streamrec.storage.statistics import (
    Counts,
    Snapshot,
    Statistics,
    Tally,
    collecting,
)
from streamrec.storage.stream import ResumingStream
from streamrec.storage.upload import Upload
from streamrec.storage.urls import (
    MAGIC,
    Glob,
    describe_leftover,
    directory_advice,
    hidden_name,
    is_temporary,
    is_url,
    local_path,
    protocol_of,
    secured_object,
    split_chain,
)

__all__ = [
    "BLOCK_BYTES",
    "BUFFER_BYTES",
    "LEASE_SECONDS",
    "MAGIC",
    "MAX_CONNECTIONS",
    "ByteStream",
    "CachedSet",
    "Counts",
    "Distribution",
    "Existing",
    "Glob",
    "Identity",
    "LockedError",
    "ObjectInfo",
    "Overwrite",
    "Recovery",
    "Replacement",
    "ResumingStream",
    "RetryPolicy",
    "ShortObject",
    "Snapshot",
    "Statistics",
    "Storage",
    "Storages",
    "StoreOptions",
    "Tally",
    "Upload",
    "check_keywords",
    "check_source",
    "collecting",
    "describe_leftover",
    "directory_advice",
    "examine_cache",
    "find_journals",
    "find_unexplained",
    "hidden_name",
    "import_client",
    "is_temporary",
    "is_url",
    "list_cache",
    "local_path",
    "locate",
    "protocol_of",
    "read_full",
    "receiver_of",
    "recover",
    "secured_object",
    "split_chain",
    "trim_cache",
]
