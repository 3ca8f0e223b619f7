"""One shard = storage x tfrecord: reading, writing, and which shards a name means."""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
