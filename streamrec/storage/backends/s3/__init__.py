"""S3 through s3fs: `backend.py` makes the requests that read, `uploads.py` those that write."""

from streamrec.storage.backends.s3.backend import connect

__all__ = ["connect"]
