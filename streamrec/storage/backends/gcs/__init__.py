"""Google Cloud Storage through gcsfs' session: `backend.py` reads, `uploads.py` writes."""

from streamrec.storage.backends.gcs.backend import connect

__all__ = ["connect"]
