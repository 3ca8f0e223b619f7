"""Plain web servers: `backend.py`. S3 and GCS share `responses.py` and the modules that read bodies
past aiohttp.
"""

from streamrec.storage.backends.http.backend import connect

__all__ = ["connect"]
