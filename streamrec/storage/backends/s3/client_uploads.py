"""What all uploads of one S3 client share: how bodies are sent, and the end of unfinished uploads.

- Bodies are sent from their pieces (`http/pieces_body.py`). It is a private detail of the client
  that it passes our body on to aiohttp unchanged, so this is a `FastPath`. A body that is sent
  again is always a BytesIO, as the client expects it. Until one of our bodies was accepted, a
  refused one is also sent again as a BytesIO, unless the network, a busy store or the object is the
  reason. If the store then accepts it, and whenever our body itself fails, all further bodies are
  BytesIO objects.
- A client without the right to list unfinished uploads says so once, and leaves them.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from botocore.exceptions import ClientError
from s3fs import S3FileSystem

from streamrec.errors import PermissionDeniedError, UnsupportedOperationError
from streamrec.storage.backend import FastPath
from streamrec.storage.backends.http.pieces_body import PiecesBody
from streamrec.storage.backends.s3.errors import (
    NoSuchUploadError,
    is_of_the_network,
    is_of_the_object,
    is_of_the_store,
    translate_errors,
)
from streamrec.storage.urls import split_object

_LOG = logging.getLogger("streamrec")

ALL: Final = "all buckets of this client"


def _is_unrelated_to_body(error: Exception) -> bool:
    """Whether the request would fail in the same way with any kind of body."""
    if isinstance(error.__cause__, ClientError):  # s3fs turns them into OSErrors
        error = error.__cause__
    if isinstance(error, ClientError):
        return is_of_the_store(error) or is_of_the_object(error)
    return is_of_the_network(error)


class ClientUploads:
    """The state that all uploads of one client share: how to send bodies, and whether it may end
    unfinished uploads.
    """

    def __init__(self, filesystem: S3FileSystem, fast_path: FastPath, endpoint: str) -> None:
        self.filesystem = filesystem
        host = urlsplit(endpoint).hostname or ""
        self.honours_conditions = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        self._fast_path = fast_path
        self._proven = False
        self._allowed = True

    async def call(self, verb: str, **parameters: Any) -> Mapping[str, Any]:
        """Sends one request, and raises the client's own exceptions."""
        answer: Mapping[str, Any] = await self.filesystem._call_s3(verb, **parameters)
        return answer

    async def send(
        self, verb: str, pieces: Sequence[memoryview], again: bool, **parameters: Any
    ) -> Mapping[str, Any]:
        """Sends one request with a body, which was sent before or not, and raises the client's own
        exceptions.
        """
        if again or not self._fast_path.is_enabled(ALL):
            return await self._send_joined(verb, pieces, parameters)
        body = PiecesBody(pieces)
        try:
            answer = await self.call(verb, Body=body, **parameters)
        except Exception as error:
            if body.failure is None and (self._proven or _is_unrelated_to_body(error)):
                raise
            refused = body.failure or error
        else:
            self._proven = True
            return answer
        answer = await self._send_joined(verb, pieces, parameters)
        self._fast_path.disable(ALL, refused)
        return answer

    async def _send_joined(
        self, verb: str, pieces: Sequence[memoryview], parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return await self.call(verb, Body=io.BytesIO(b"".join(pieces)), **parameters)

    async def end(self, path: str) -> None:
        """Aborts all unfinished uploads to exactly this key. A missing permission is logged once.

        One page of the listing is enough: keys are sorted, so the key itself comes before longer
        ones.
        """
        bucket, key = split_object(path)
        if not self._allowed:
            return
        try:
            with translate_errors(path):
                page = await self.call("list_multipart_uploads", Bucket=bucket, Prefix=key)
            for found in page.get("Uploads", ()):
                if found["Key"] == key:
                    await self.abort(path, found["UploadId"])
        except NoSuchUploadError:
            pass  # the answer of `rclone serve s3` for a bucket without uploads
        except (PermissionDeniedError, UnsupportedOperationError) as error:
            self._allowed = False
            _LOG.warning(
                "unfinished uploads of killed writers stay in the store (allow "
                "ListBucketMultipartUploads"
                " and AbortMultipartUpload, or set a lifecycle rule for the bucket): %s",
                error,
            )

    async def abort(self, path: str, upload: str) -> None:
        """Frees an upload's parts. An upload that the store no longer knows is not an error."""
        bucket, key = split_object(path)
        try:
            with translate_errors(path):
                await self.call("abort_multipart_upload", UploadId=upload, Bucket=bucket, Key=key)
        except NoSuchUploadError:
            pass
