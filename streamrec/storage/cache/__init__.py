"""A cache of objects' bytes on local disks: a store in front of a store.

`store` is the Storage that readers use, `known_objects` what it knows of versions, and `stream` has
its streams. `disk_cache` is one directory with all I/O, and `writer` the thread that writes. The
other modules decide without I/O: `names` (files), `spans` (which bytes are there), `eviction` (what
goes), `speed` (whether the disk is worth it).
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
