"""Storage: async reads and writes of bytes in object stores and files, with retries and resumption.
No records.

    async with Storages({"endpoint_url": "http://127.0.0.1:8333"}) as storages:
        storage = await storages.at("s3://bucket/key")
        stream = await storage.stream("s3://bucket/key")

Layers, from the top: `registry` (Storages: chooses the backend for a URL), `base` (Storage: the
operations), `stream` and `upload` (resumption, parts), `retry`, `traffic` and `faults` (retries,
hedging, limits), `backend` (the interface of a store), and in `backends/` a module for each kind of
store.
"""

from streamrec.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
