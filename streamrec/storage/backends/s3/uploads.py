"""Uploads to S3: in parts, checked by the store on arrival and as a whole, and compared once more at the end.

* Each part brings its CRC32C, and the store refuses one that arrives damaged; it is sent again. The whole
  object's size and CRC32C go with the completion, so a store that can (`FULL_OBJECT` checksums: AWS, SeaweedFS)
  refuses before anything is visible. Afterwards a HEAD is compared with what was sent: size, and the best that
  the store tells of CRC32C (whole, or composed of the parts') and etag (`difference`).
  That is a HEAD for each object, beside the listing that the last rule but one needs.
* What differs is deleted, under its etag, so that nothing else is; then it is an IntegrityError. An object that is to
  be replaced stays until then: see `uploads/staged_sink.py`.
* An answer that is lost leaves a doubt. The request is made again, and where it fails because the first one had
  succeeded, the object tells: if it is what was sent, it is ours. In doubt nothing is deleted.
* **The last to begin wins.** S3 tells nothing of a multipart upload but its key, so nobody can see whether its
  writer lives. Whoever begins an upload aborts all unfinished ones to *that very key*: those of killed writers,
  so that they can run again, and that of a writer who still lives, whose next request then fails and says why.
  Two that begin in the same moment may both go on; the object is that of the last to complete, whole. Uploads
  to other keys are left alone.
* Only where there is none (`overwrite=False`): `If-None-Match: *` on the last request. AWS and SeaweedFS keep it.
  Such an object carries a mark of its upload (metadata `streamrec-upload`), so that after a lost answer a
  writer knows its own object from an equal one. (aiohttp sends a PUT again by itself where a connection that
  was used before breaks, so a first attempt may be a second one.)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from s3fs import S3FileSystem

from streamrec import kernels
from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import ObjectInfo, Sent
from streamrec.storage.backends.s3.bodies import Bodies
from streamrec.storage.backends.s3.checks import StoredPart, difference, is_md5
from streamrec.storage.backends.s3.errors import BadDigestError, NoSuchUploadError, seam
from streamrec.storage.backends.urls import split_object
from streamrec.storage.resilience.faults import Cause, TransientError, exists
from streamrec.storage.resilience.shield import finish
from streamrec.storage.uploads.part import encoded

__all__ = ["S3Upload", "UnfinishedUploads"]

MAX_PARTS: Final = 10_000
MARK: Final = "streamrec-upload"

_LOG = logging.getLogger("streamrec")


class UnfinishedUploads:
    """Multipart uploads that nobody finished, and the right to end them; one for each client.

    Args:
        filesystem: As for S3Backend.
    """

    def __init__(self, filesystem: S3FileSystem) -> None:
        self._fs = filesystem
        self._allowed = True

    async def end(self, path: str) -> None:
        """Aborts all unfinished uploads to this very key. Not being allowed to is logged, once.

        One page of the listing is enough: keys come in order, so the key itself comes before longer ones.
        """
        bucket, key = split_object(path)
        if not self._allowed:
            return
        try:
            with seam(path):
                page = await self._fs._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
            for found in page.get("Uploads", ()):
                if found["Key"] == key:
                    await self.abort(path, found["UploadId"])
        except NoSuchUploadError:
            pass  # `rclone serve s3` says so of a bucket in which no upload was begun
        except (PermissionDeniedError, UnsupportedOperationError) as error:
            self._allowed = False
            _LOG.warning(
                "unfinished uploads of writers that were killed stay in the store (allow ListBucketMultipartUploads"
                " and AbortMultipartUpload, or set a lifecycle rule for the bucket): %s",
                error,
            )

    async def abort(self, path: str, upload: str) -> None:
        """Frees an upload's parts. One that the store no longer knows is fine."""
        bucket, key = split_object(path)
        try:
            with seam(path):
                await self._fs._call_s3("abort_multipart_upload", UploadId=upload, Bucket=bucket, Key=key)
        except NoSuchUploadError:
            pass


class S3Upload:
    """A multipart upload, or one PUT where there is only one part.

    Args:
        filesystem: As for S3Backend.
        bodies: What sends requests with a body.
        unfinished: What ends unfinished uploads.
        path: The object's URL.
        overwrite: Whether an object of this name is replaced.
    """

    parallel = 1_000
    grows = True

    def __init__(
        self,
        filesystem: S3FileSystem,
        bodies: Bodies,
        unfinished: UnfinishedUploads,
        path: str,
        overwrite: bool,
    ) -> None:
        bucket, key = split_object(path)
        self._fs = filesystem
        self._bodies = bodies
        self._unfinished = unfinished
        self._path = path
        self._overwrite = overwrite
        self._mark = None if overwrite else secrets.token_hex(16)
        self._place = {"Bucket": bucket, "Key": key}
        self._id: str | None = None
        self._asked = False  # for an id, without an answer
        self._starting = asyncio.Lock()
        self._checks_whole = False
        self._begun: set[int] = set()
        self._parts: dict[int, StoredPart] = {}
        self._only: Sequence[memoryview] | None = None
        self._doubt = False

    async def prepare(self) -> None:
        """Ends unfinished uploads to this key; refuses a name that is taken, where it must not be replaced."""
        if not self._overwrite and await self._head() is not None:
            raise exists(self._path)
        await self._unfinished.end(self._path)

    async def put_part(self, index: int, offset: int, pieces: Sequence[memoryview], whole: Sent | None) -> None:
        """Uploads a part; an only part waits for `complete`."""
        if whole and index == 0:
            self._only = pieces
            return
        if index >= MAX_PARTS:
            raise StorageError(
                f"S3 takes {MAX_PARTS:,} parts and 5 TB at most: write several shards (max_shard_bytes)",
                self._path,
                offset,
            )
        upload = await self._start()
        crc32c = 0
        for piece in pieces:
            crc32c = kernels.crc32c(piece, crc32c)
        with seam(self._path, offset, offset + sum(map(len, pieces))):
            part = await self._bodies.send(
                "upload_part",
                pieces,
                self._again(index),
                UploadId=upload,
                PartNumber=index + 1,
                ChecksumCRC32C=encoded(crc32c),
                **self._place,
            )
        checked = "ChecksumCRC32C" in part
        md5 = index == 0 and not checked and await asyncio.to_thread(is_md5, part["ETag"], pieces)
        self._parts[index] = StoredPart(part["ETag"], crc32c, checked, md5)

    async def complete(self, sent: Sent) -> ObjectInfo:
        """Makes the object visible, and compares it with what was sent."""
        doubt, self._doubt = self._doubt, True
        try:
            done = await (self._complete_parts(sent) if self._only is None else self._put_only(sent))
        except ObjectChangedError as error:  # a 412 can only mean If-None-Match here
            return await self._completed_before(sent, exists(self._path), error)
        except NoSuchUploadError as error:
            if not doubt:
                raise
            return await self._completed_before(sent, error, error)
        return await self._check(sent, done.get("ETag"))

    async def abort(self) -> None:
        """Frees the parts."""
        self._only = None
        if self._id is not None:
            await self._unfinished.abort(self._path, self._id)
        elif self._asked:
            await self._unfinished.end(self._path)
        self._id, self._asked = None, False

    async def _start(self) -> str:
        """The upload's id: the first part that comes along asks for it."""
        async with self._starting:
            if self._id is None:
                await finish(self._create())  # cut off half way, nobody would know what to abort
            return str(self._id)

    async def _create(self) -> None:
        if self._asked:  # and there was no answer: the store may have made one all the same
            await self._unfinished.end(self._path)
        self._asked = True
        with seam(self._path):
            made = await self._fs._call_s3(
                "create_multipart_upload",
                ChecksumAlgorithm="CRC32C",
                ChecksumType="FULL_OBJECT",
                **self._marked(),
                **self._place,
            )
        self._id = made["UploadId"]
        self._checks_whole = made.get("ChecksumType") == "FULL_OBJECT"

    async def _put_only(self, sent: Sent) -> Mapping[str, Any]:
        with seam(self._path):
            return await self._bodies.send(
                "put_object",
                self._only or (),
                self._again(0),
                ChecksumCRC32C=encoded(sent.crc32c),
                **self._condition(),
                **self._marked(),
                **self._place,
            )

    async def _complete_parts(self, sent: Sent) -> Mapping[str, Any]:
        whole = {"ChecksumCRC32C": encoded(sent.crc32c), "ChecksumType": "FULL_OBJECT"} if self._checks_whole else {}
        try:
            with seam(self._path):
                done: Mapping[str, Any] = await self._fs._call_s3(
                    "complete_multipart_upload",
                    UploadId=self._id,
                    MultipartUpload={"Parts": [_listed(index, self._parts[index]) for index in sorted(self._parts)]},
                    MpuObjectSize=sent.size,
                    **whole,
                    **self._condition(),
                    **self._place,
                )
        except BadDigestError as fault:  # all parts were right when they arrived
            raise IntegrityError(f"the store refused the parts ({fault.reason}): write it again", self._path) from fault
        return done

    async def _completed_before(self, sent: Sent, refused: StorageError, cause: StorageError) -> ObjectInfo:
        """The request failed, perhaps after one without an answer: did that succeed? The object tells."""
        head = await self._head()
        ours = head is not None and (self._mark is None or head.get("Metadata", {}).get(MARK) == self._mark)
        if head is None or not ours or difference(sent, self._ordered(), head) is not None:
            raise refused from cause
        return ObjectInfo(self._path, sent.size, head.get("ETag"))

    async def _check(self, sent: Sent, etag: str | None) -> ObjectInfo:
        """Compares; what differs and is ours goes."""
        head = await self._head()
        if head is None:
            raise TransientError(Cause.SERVER, "the object was completed and is not there")
        if etag is not None and head.get("ETag") != etag:
            raise ObjectChangedError("somebody else wrote this name at the same time: use one writer", self._path)
        reason = difference(sent, self._ordered(), head)
        if reason is not None:
            await self._remove(etag)
            raise IntegrityError(f"the store had something else than was sent: {reason}; write it again", self._path)
        return ObjectInfo(self._path, sent.size, head.get("ETag"))

    async def _remove(self, etag: str | None) -> None:
        """Removes what we made; without an etag nobody could say that it is ours. Gone or replaced is fine."""
        if etag is not None:
            with suppress(NotFoundError, ObjectChangedError), seam(self._path):
                await self._fs._call_s3("delete_object", IfMatch=etag, **self._place)

    async def _head(self) -> Mapping[str, Any] | None:
        try:
            with seam(self._path):
                head: Mapping[str, Any] = await self._fs._call_s3("head_object", ChecksumMode="ENABLED", **self._place)
        except NotFoundError:
            return None
        return head

    def _ordered(self) -> list[StoredPart]:
        return [self._parts[index] for index in sorted(self._parts)]

    def _again(self, index: int) -> bool:
        """Whether a part was sent before; it counts as sent from now on."""
        again = index in self._begun
        self._begun.add(index)
        return again

    def _marked(self) -> dict[str, Any]:
        """The mark, beside the metadata that the user wants."""
        if self._mark is None:
            return {}
        theirs = self._fs.s3_additional_kwargs.get("Metadata") or {}
        return {"Metadata": {**theirs, MARK: self._mark}}

    def _condition(self) -> dict[str, str]:
        return {} if self._overwrite else {"IfNoneMatch": "*"}


def _listed(index: int, part: StoredPart) -> dict[str, Any]:
    """A part in the list that completes an upload; with its checksum where the store keeps one."""
    checksum = {"ChecksumCRC32C": encoded(part.crc32c)} if part.checked else {}
    return {"PartNumber": index + 1, "ETag": part.etag, **checksum}
