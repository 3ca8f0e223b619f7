"""Local files."""

from streamrec.storage.backends.local.backend import connect

__all__ = ["connect"]
