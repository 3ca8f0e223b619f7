from streamrec.storage.cache.opening import OpenCache, close_caches, open_cache
from streamrec.storage.cache.store import STATISTICS, CachedStorage, CachePlace, name_store

__all__ = [
    "STATISTICS",
    "CachePlace",
    "CachedStorage",
    "OpenCache",
    "close_caches",
    "name_store",
    "open_cache",
]
