"""Storage: bytes from and to object stores and files; async, retried, resumed. Knows no records.

    async with Storages({"endpoint_url": "http://127.0.0.1:8333"}) as storages:
        storage = await storages.at("s3://bucket/key")
        stream = await storage.stream("s3://bucket/key")

Layers, from the top: `registry` (Storages: which backend for a URL), `base` (Storage: the verbs), `stream`
and `uploads` (resume, parts), `retry` and `faults` (what is tried again), `backend` (the seam), and a file
per kind of store below it.
"""

from streamrec.storage.backend import ObjectInfo, ShortObject
from streamrec.storage.backends.chained_urls import is_url, protocol_of, split_chain
from streamrec.storage.backends.local.backend import local_path
from streamrec.storage.backends.urls import directory_advice, hidden_name, is_temporary, secured_of
from streamrec.storage.base import ByteStream, Storage
from streamrec.storage.globs import MAGIC, Glob
from streamrec.storage.identity import Identity
from streamrec.storage.reading.adaptive_concurrency import MAX_CONNECTIONS
from streamrec.storage.reading.connections import BUFFER_BYTES
from streamrec.storage.reading.stream import ResumingStream
from streamrec.storage.registry import Storages, check_source, located
from streamrec.storage.resilience.retry import RetryPolicy
from streamrec.storage.telemetry.statistics import Counts, Distribution, Snapshot, Statistics, Tally, collecting
from streamrec.storage.uploads.replacement import Replacement
from streamrec.storage.uploads.upload import Upload

__all__ = [
    "BUFFER_BYTES",
    "MAGIC",
    "MAX_CONNECTIONS",
    "ByteStream",
    "Counts",
    "Distribution",
    "Glob",
    "Identity",
    "ObjectInfo",
    "Replacement",
    "ResumingStream",
    "RetryPolicy",
    "ShortObject",
    "Snapshot",
    "Statistics",
    "Storage",
    "Storages",
    "Tally",
    "Upload",
    "check_source",
    "collecting",
    "directory_advice",
    "hidden_name",
    "is_temporary",
    "is_url",
    "local_path",
    "located",
    "protocol_of",
    "secured_of",
    "split_chain",
]
