"""Plain web servers: `backend.py`. S3 and GCS share `responses.py` and `buffered_body.py`."""

from streamrec.storage.backends.http.backend import connect

__all__ = ["connect"]
