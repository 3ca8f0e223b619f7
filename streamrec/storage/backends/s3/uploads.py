"""Uploads to S3: the store verifies each part and the whole object, and the writer verifies the
result.

* Each part carries its CRC32C, and the store refuses a part that arrives damaged; it is sent again.
  The completion carries the whole object's size and CRC32C, so a store with `FULL_OBJECT` checksums
  (AWS, SeaweedFS) refuses damage before anything is visible. Afterwards the answer to a HEAD is
  compared with what was sent: size, and CRC32C or etag as far as the store has them (`difference`).
  That costs one HEAD per object, besides the listing of unfinished uploads (see below).
* The checksum of a multipart upload is that of the whole (`FULL_OBJECT`), or that of its parts'
  checksums (`COMPOSITE`, ends in "-" and the number of parts). Its etag is the MD5 of its parts'
  MD5s if the store's etags are MD5s. Those of objects encrypted with other keys than the store's
  own are not, and some stores make them up. So etags are used only if the first part's etag was
  found to be its MD5. Source: "Checking object integrity in Amazon S3", Amazon S3 User Guide.
* An object that differs is deleted, under its etag, so that no other object is; then the upload
  raises an IntegrityError. An object that is replaced stays until then: see `storage/upload.py`.
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
* Bodies are sent from their pieces (`http/pieces_body.py`). It is a private detail of the client
  that it passes our body on to aiohttp unchanged, so this is a `FastPath`. A body that is sent
  again is always a BytesIO, as the client expects it. Until one of our bodies was accepted, a
  refused one is also sent again as a BytesIO, unless the network, a busy store or the object is the
  reason. If the store then accepts it, and whenever our body itself fails, all further bodies are
  BytesIO objects.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import google_crc32c
from botocore.exceptions import ClientError
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
from streamrec.storage.backend import (
    MARK,
    ContentDigest,
    FastPath,
    ObjectInfo,
    PartSink,
    Pieces,
    UploadTerms,
    encode_crc32c,
)
from streamrec.storage.backends.http.pieces_body import PiecesBody
from streamrec.storage.backends.s3.errors import (
    BadDigestError,
    NoSuchUploadError,
    is_of_the_network,
    is_of_the_object,
    is_of_the_store,
    translate_errors,
)
from streamrec.storage.faults import Cause, TransientError, exists_error
from streamrec.storage.tasks import finish
from streamrec.storage.urls import split_object, staged_object

ALL = "all buckets of this client"


def _is_unrelated_to_body(error: Exception) -> bool:
    """Whether the request would fail in the same way with any kind of body."""
    error = (
        error.__cause__ if isinstance(error.__cause__, ClientError) else error
    )  # s3fs turns them into OSErrors
    if isinstance(error, ClientError):
        return is_of_the_store(error) or is_of_the_object(error)
    return is_of_the_network(error)


_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredPart:
    """The store's answer for one part, with the CRC32C of the bytes sent, and whether the store
    compared it.

    `md5` says whether the etag is the MD5 of the bytes; checked for the first part only.
    """

    etag: str
    crc32c: int
    checked: bool
    md5: bool = False


def difference(
    sent: ContentDigest, parts: Sequence[StoredPart], head: Mapping[str, Any]
) -> str | None:
    """Describes how the object in the store differs from what was sent; None if it does not.

    An object that was sent in one request has no parts. `head` is the answer to HEAD, with the
    checksum if the store has one.
    """
    if head["ContentLength"] != sent.size:
        return f"it has {head['ContentLength']:,} bytes where {sent.size:,} were sent"
    found = head.get("ChecksumCRC32C")
    if found is not None:
        wanted = _compose(parts) if "-" in found else encode_crc32c(sent.crc32c)
        return None if found == wanted else f"its CRC32C is {found} where {wanted} was sent"
    etag, made = str(head.get("ETag", "")).strip('"'), _etag(parts)
    own = head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head
    if made is None or own or not re.fullmatch(rf"[0-9a-f]{{32}}-{len(parts)}", etag):
        return None
    return None if etag == made else f"its etag is {etag} where the parts make {made}"


def _compose(parts: Sequence[StoredPart]) -> str:
    crc32c = google_crc32c.value(b"".join(part.crc32c.to_bytes(4, "big") for part in parts))
    return f"{encode_crc32c(crc32c)}-{len(parts)}"


def _etag(parts: Sequence[StoredPart]) -> str | None:
    """Returns the etag computed from the parts' etags; None if these are not known to be MD5s."""
    digests = [_MD5.fullmatch(part.etag) for part in parts]
    if not digests or not parts[0].md5 or None in digests:
        return None
    joined = b"".join(bytes.fromhex(digest[1]) for digest in digests if digest)
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"


def is_md5(etag: str, pieces: Sequence[memoryview]) -> bool:
    """Whether an etag is the MD5 of the bytes."""
    found, made = _MD5.fullmatch(etag), hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        made.update(piece)
    return found is not None and found[1] == made.hexdigest()


MAX_PARTS: Final = 10_000

_LOG = logging.getLogger("streamrec")


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
            answer: Mapping[str, Any] = await self.filesystem._call_s3(
                verb, Body=body, **parameters
            )
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
        answer: Mapping[str, Any] = await self.filesystem._call_s3(
            verb, Body=io.BytesIO(b"".join(pieces)), **parameters
        )
        return answer

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
                page = await self.filesystem._call_s3(
                    "list_multipart_uploads", Bucket=bucket, Prefix=key
                )
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
                await self.filesystem._call_s3(
                    "abort_multipart_upload", UploadId=upload, Bucket=bucket, Key=key
                )
        except NoSuchUploadError:
            pass


class S3Upload(PartSink):
    """A multipart upload, or one PUT if there is only one part."""

    parallel = 1_000
    grows = True

    def __init__(self, client: ClientUploads, path: str, terms: UploadTerms) -> None:
        bucket, key = split_object(path)
        self.mark = terms.token or secrets.token_hex(16)
        self._fs = client.filesystem
        self._client = client
        self._path = path
        self._terms = terms
        self._place = {"Bucket": bucket, "Key": key}
        self._id: str | None = None
        self._asked = False  # an id was requested, possibly without an answer
        self._starting = asyncio.Lock()
        self._checks_whole = False
        self._begun: set[int] = set()
        self._parts: dict[int, StoredPart] = {}
        self._only: Sequence[memoryview] | None = None
        self._doubt = False

    async def prepare(self) -> None:
        """Ends unfinished uploads to this object. If the object exists and must not be replaced:
        AlreadyExistsError.
        """
        looks = not self._terms.overwrite and self._terms.guaranteed
        if looks:
            await self._look()
        await self._client.end(self._path)
        if (
            final := staged_object(self._path)
        ) is not None:  # a killed writer may have written directly
            await self._client.end(final)

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        """Uploads a part; a single part waits for `complete`."""
        if whole and index == 0:
            self._only = pieces
            return
        if index >= MAX_PARTS:
            raise StorageError(
                f"S3 takes {MAX_PARTS:,} parts and 5 TB at most: write several shards "
                "(max_shard_bytes)",
                self._path,
                offset,
            )
        upload = await self._start()
        crc32c = 0
        for piece in pieces:
            crc32c = kernels.crc32c(piece, crc32c)
        with translate_errors(self._path, offset, offset + sum(map(len, pieces))):
            part = await self._client.send(
                "upload_part",
                pieces,
                self._again(index),
                UploadId=upload,
                PartNumber=index + 1,
                ChecksumCRC32C=encode_crc32c(crc32c),
                **self._place,
            )
        checked = "ChecksumCRC32C" in part
        md5 = index == 0 and not checked and await asyncio.to_thread(is_md5, part["ETag"], pieces)
        self._parts[index] = StoredPart(part["ETag"], crc32c, checked, md5)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Makes the object visible, and compares it with what was sent."""
        if not self._terms.overwrite and not self._doubt and not self._client.honours_conditions:
            await self._look()
        doubt, self._doubt = self._doubt, True
        send = self._complete_parts if self._only is None else self._put_only
        try:
            try:
                done = await send(sent)
            except UnsupportedOperationError:
                if self._terms.overwrite or self._terms.guaranteed:
                    raise
                # the store refuses conditions, and the caller has looked
                self._terms = replace(self._terms, overwrite=True)
                done = await send(sent)
        except ObjectChangedError as error:  # a 412 can only mean If-None-Match here
            return await self._find_completed(sent, exists_error(self._path), error)
        except NoSuchUploadError as error:
            if not doubt:
                raise
            return await self._find_completed(sent, error, error)
        return await self._check(sent, done.get("ETag"))

    async def abort(self) -> None:
        self._only = None
        if self._id is not None:
            await self._client.abort(self._path, self._id)
        elif self._asked:
            await self._client.end(self._path)
        self._id, self._asked = None, False

    async def _start(self) -> str:
        """Returns the upload's id; the first part requests it."""
        async with self._starting:
            if self._id is None:
                await finish(self._create())  # after an interruption, it could not be aborted
            return str(self._id)

    async def _create(self) -> None:
        if self._asked:  # no answer arrived, but the store may have created one
            await self._client.end(self._path)
        self._asked = True
        with translate_errors(self._path):
            made = await self._fs._call_s3(
                "create_multipart_upload",
                ChecksumAlgorithm="CRC32C",
                ChecksumType="FULL_OBJECT",
                **self._metadata_with_mark(),
                **self._place,
            )
        self._id = made["UploadId"]
        self._checks_whole = made.get("ChecksumType") == "FULL_OBJECT"

    async def _put_only(self, sent: ContentDigest) -> Mapping[str, Any]:
        with translate_errors(self._path):
            return await self._client.send(
                "put_object",
                self._only or (),
                self._again(0),
                ChecksumCRC32C=encode_crc32c(sent.crc32c),
                **self._condition(),
                **self._metadata_with_mark(),
                **self._place,
            )

    async def _complete_parts(self, sent: ContentDigest) -> Mapping[str, Any]:
        whole = (
            {"ChecksumCRC32C": encode_crc32c(sent.crc32c), "ChecksumType": "FULL_OBJECT"}
            if self._checks_whole
            else {}
        )
        try:
            with translate_errors(self._path):
                done: Mapping[str, Any] = await self._fs._call_s3(
                    "complete_multipart_upload",
                    UploadId=self._id,
                    MultipartUpload={
                        "Parts": [
                            _part_entry(index, self._parts[index]) for index in sorted(self._parts)
                        ]
                    },
                    MpuObjectSize=sent.size,
                    **whole,
                    **self._condition(),
                    **self._place,
                )
        except BadDigestError as fault:  # each part was verified when it arrived
            raise IntegrityError(
                f"the store refused the parts ({fault.reason}): write it again", self._path
            ) from fault
        return done

    async def _look(self) -> None:
        """Raises AlreadyExistsError if the name is taken: not every store honours the condition of
        the last request. A client that may not look relies on it.
        """
        with suppress(PermissionDeniedError):
            if await self._head() is not None:
                raise exists_error(self._path)

    async def _find_completed(
        self, sent: ContentDigest, refused: StorageError, cause: StorageError
    ) -> ObjectInfo:
        """Returns the object if an earlier request without an answer has succeeded; else raises
        `refused`.
        """
        try:
            head = await self._head()
        except PermissionDeniedError:
            raise refused from cause
        ours = head is not None and (
            self._terms.overwrite or head.get("Metadata", {}).get(MARK) == self.mark
        )
        if head is None or not ours or difference(sent, self._sort_parts(), head) is not None:
            raise refused from cause
        return ObjectInfo(self._path, sent.size, head.get("ETag"))

    async def _check(self, sent: ContentDigest, etag: str | None) -> ObjectInfo:
        """Compares the object with what was sent; removes our own object if it differs.

        A client that may not read relies on the store, which has compared the CRC32C.
        """
        try:
            head = await self._head()
        except PermissionDeniedError:
            return ObjectInfo(self._path, sent.size, etag)
        if head is None:
            raise TransientError(Cause.SERVER, "the object was completed and does not exist")
        if etag is not None and head.get("ETag") != etag:
            raise ObjectChangedError(
                "another writer wrote this name at the same time: use one writer", self._path
            )
        reason = difference(sent, self._sort_parts(), head)
        if reason is not None:
            await self._remove(etag)
            raise IntegrityError(
                f"the store holds other bytes than were sent: {reason}; write it again", self._path
            )
        return ObjectInfo(self._path, sent.size, head.get("ETag"))

    async def _remove(self, etag: str | None) -> None:
        """Removes our object if its etag is known; a missing or replaced object is not an error."""
        if etag is not None:
            with suppress(NotFoundError, ObjectChangedError), translate_errors(self._path):
                await self._fs._call_s3("delete_object", IfMatch=etag, **self._place)

    async def _head(self) -> Mapping[str, Any] | None:
        try:
            with translate_errors(self._path):
                head: Mapping[str, Any] = await self._fs._call_s3(
                    "head_object", ChecksumMode="ENABLED", **self._place
                )
        except NotFoundError:
            return None
        return head

    def _sort_parts(self) -> list[StoredPart]:
        return [self._parts[index] for index in sorted(self._parts)]

    def _again(self, index: int) -> bool:
        """Whether a part was sent before; marks it as sent."""
        again = index in self._begun
        self._begun.add(index)
        return again

    def _metadata_with_mark(self) -> dict[str, Any]:
        """Returns the user's metadata with the mark, as arguments of a request."""
        theirs = self._fs.s3_additional_kwargs.get("Metadata") or {}
        return {"Metadata": {**theirs, MARK: self.mark}}

    def _condition(self) -> dict[str, str]:
        return {} if self._terms.overwrite else {"IfNoneMatch": "*"}


def _part_entry(index: int, part: StoredPart) -> dict[str, Any]:
    """Returns a part's entry in the request that completes an upload, with its checksum if the
    store has one.
    """
    checksum = {"ChecksumCRC32C": encode_crc32c(part.crc32c)} if part.checked else {}
    return {"PartNumber": index + 1, "ETag": part.etag, **checksum}
