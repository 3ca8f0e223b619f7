"""Google Cloud Storage through gcsfs' session."""

from streamrec.storage.backends.gcs.backend import connect

__all__ = ["connect"]
