"""Local files: `backend.py` reads and writes, `mapped_files.py` gives views of the page cache."""

from streamrec.storage.backends.local.backend import connect

__all__ = ["connect"]
