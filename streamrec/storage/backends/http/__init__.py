"""Plain web servers: `backend.py`. S3 and GCS share `responses.py` and what takes bodies over."""

from streamrec.storage.backends.http.backend import connect

__all__ = ["connect"]
