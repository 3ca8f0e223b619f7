"""One shard = storage x tfrecord.

Reading, writing, manifests, indexes, and the listing of names and patterns.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
