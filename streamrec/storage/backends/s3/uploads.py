"""Uploads to S3: the store verifies each part and the whole object, and the writer verifies the
result.

* Each part carries its CRC32C, and the store refuses a part that arrives damaged; it is sent again.
  The completion carries the whole object's size and CRC32C, so a store with `FULL_OBJECT` checksums
  (AWS, SeaweedFS) refuses damage before anything is visible. Afterwards the answer to a HEAD is
  compared with what was sent: size, and CRC32C or etag as far as the store has them (`difference`).
  That costs one HEAD per object, besides the listing of unfinished uploads (see below).
* An object that differs is deleted, under its etag, so that no other object is; then the upload
  raises an IntegrityError. An object that is replaced stays until then: see `StagedSink`.
* After a lost answer, the outcome is uncertain. The request is sent again, and if it fails because
  the first one had succeeded, the object decides: if it equals what was sent, the upload succeeded.
  In doubt nothing is deleted.
* **The last to begin wins.** S3 reports only the key of a multipart upload, so a writer cannot see
  whether another writer is alive. A writer that begins an upload aborts all unfinished uploads to
  *exactly this key*: those of killed writers, so that they can run again, and that of a live
  writer, whose next request then fails and says why. Two writers that begin at the same moment may
  both continue; the object is that of the last one to complete, as a whole. An upload under a
  hidden name also ends those to the object that it will replace. Uploads to other keys stay.
* An upload to a name that is free, and `overwrite=False`, send `If-None-Match: *` with the last
  request. AWS and SeaweedFS honour it; some stores ignore it, so the name is looked at just before,
  but not on AWS.
* Each object carries the token of its writer (metadata `streamrec-upload`), so that a writer can
  tell its own object from an equal one: after a lost answer, and before it removes or restores
  anything. (aiohttp itself repeats a PUT when a
  reused connection breaks, so a first attempt may be a second one.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamrec.errors import (
    IntegrityError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import (
    MARK,
    ContentDigest,
    ObjectInfo,
    PartSink,
    Pieces,
    UploadTerms,
)
from streamrec.storage.backends.s3.client_uploads import ClientUploads
from streamrec.storage.backends.s3.errors import NoSuchUploadError
from streamrec.storage.backends.s3.sending import MultipartUpload, Sending, SinglePut
from streamrec.storage.backends.s3.stored_parts import difference
from streamrec.storage.backends.s3.target import S3Target
from streamrec.storage.faults import Cause, TransientError, exists_error
from streamrec.storage.urls import staged_object


class S3Upload(PartSink):
    """A multipart upload, or one PUT if there is only one part."""

    parallel = 1_000
    grows = True

    def __init__(self, client: ClientUploads, path: str, terms: UploadTerms) -> None:
        self.mark = terms.make_mark()
        self._client = client
        self._target = S3Target(client, path, self.mark)
        self._terms = terms
        self._multipart = MultipartUpload(client, self._target)
        self._sending: Sending = self._multipart
        self._doubt = False  # the last request was sent, possibly without an answer

    async def prepare(self) -> None:
        """Ends unfinished uploads to this object.

        Raises:
            AlreadyExistsError: The object exists and must not be replaced.
        """
        if not self._terms.overwrite and self._terms.guaranteed:
            await self._target.refuse_existing()
        await self._client.end(self._target.path)
        final = staged_object(self._target.path)
        if final is not None:  # a killed writer may have written directly
            await self._client.end(final)

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        """Uploads a part; a single part waits for `complete`."""
        if whole and index == 0:
            self._sending = SinglePut(self._client, self._target, pieces)
        else:
            await self._multipart.put(index, offset, pieces)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Makes the object visible, and compares it with what was sent."""
        doubt = self._doubt
        if not self._terms.overwrite and not doubt and not self._client.honours_conditions:
            await self._target.refuse_existing()
        self._doubt = True
        try:
            answer = await self._send_last(sent)
        except ObjectChangedError as error:  # a 412 can only mean If-None-Match here
            return await self._find_completed(sent, exists_error(self._target.path), error)
        except NoSuchUploadError as error:
            if not doubt:
                raise
            # The request before this one may have completed the upload, so that it is gone.
            return await self._find_completed(sent, error, error)
        return await self._compare(sent, answer.get("ETag"))

    async def abort(self) -> None:
        """Frees what the store holds of the object."""
        await self._sending.abort()

    async def _send_last(self, sent: ContentDigest) -> Mapping[str, Any]:
        """Sends the request that makes the object visible, and returns its answer."""
        try:
            return await self._sending.finish(sent, self._condition())
        except UnsupportedOperationError:
            if self._terms.overwrite or self._terms.guaranteed:
                raise
            # The store refuses conditions, and the caller has looked.
            self._terms = replace(self._terms, overwrite=True)
            return await self._sending.finish(sent, self._condition())

    async def _find_completed(
        self, sent: ContentDigest, refused: StorageError, cause: StorageError
    ) -> ObjectInfo:
        """Returns the object if an earlier request without an answer has succeeded; else raises
        `refused`.
        """
        try:
            head = await self._target.head()
        except PermissionDeniedError:
            raise refused from cause
        if head is None or not self._is_ours(head) or self._difference(sent, head) is not None:
            raise refused from cause
        return ObjectInfo(self._target.path, sent.size, head.get("ETag"))

    async def _compare(self, sent: ContentDigest, etag: str | None) -> ObjectInfo:
        """Compares the object with what was sent; removes our own object if it differs.

        A client that may not read relies on the store, which has compared the CRC32C.
        """
        path = self._target.path
        try:
            head = await self._target.head()
        except PermissionDeniedError:
            return ObjectInfo(path, sent.size, etag)
        if head is None:
            raise TransientError(Cause.SERVER, "the object was completed and does not exist")
        if etag is not None and head.get("ETag") != etag:
            raise ObjectChangedError(
                "another writer wrote this name at the same time: use one writer", path
            )
        reason = self._difference(sent, head)
        if reason is not None:
            await self._target.remove(etag)
            raise IntegrityError(
                f"the store holds other bytes than were sent: {reason}; write it again", path
            )
        return ObjectInfo(path, sent.size, head.get("ETag"))

    def _is_ours(self, head: Mapping[str, Any]) -> bool:
        """Whether an object may be this upload's; under a name that was free, its mark decides."""
        return self._terms.overwrite or head.get("Metadata", {}).get(MARK) == self.mark

    def _difference(self, sent: ContentDigest, head: Mapping[str, Any]) -> str | None:
        return difference(sent, self._sending.parts.in_order(), head)

    def _condition(self) -> dict[str, str]:
        return {} if self._terms.overwrite else {"IfNoneMatch": "*"}
