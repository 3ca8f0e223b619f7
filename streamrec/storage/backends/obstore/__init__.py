"""S3 and Google Cloud Storage through obstore, where `{"backend": "obstore"}` asks for it."""

from streamrec.storage.backends.obstore.backend import connect

__all__ = ["connect"]
