"""Uploads to S3: in parts, checked by the store on arrival and as a whole, and compared once more at the end.

* Each part brings its CRC32C, and the store refuses one that arrives damaged; it is sent again. The whole
  object's size and CRC32C go with the completion, so a store that can (`FULL_OBJECT` checksums: AWS, SeaweedFS)
  refuses before anything is visible. Afterwards a HEAD is compared with what was sent: size, and the best that
  the store tells of CRC32C and etag (`difference`). That is a HEAD for each object, besides the listing that the last
  rule but one needs.
* The checksum of a multipart upload is that of the whole (`FULL_OBJECT`), or that of its parts' checksums
  (`COMPOSITE`, ends in "-" and the number of parts); its etag is the MD5 of its parts' MD5s where the store's etags
  are MD5s. They need not be: not where the store encrypts with other keys than its own, and some stores make them up.
  So etags are believed only where the first part's was seen to be its MD5. Source: "Checking object integrity in
  Amazon S3", Amazon S3 User Guide.
* What differs is deleted, under its etag, so that nothing else is; then it is an IntegrityError. An object that is to
  be replaced stays until then: see `storage/upload.py`.
* An answer that is lost leaves a doubt. The request is made again, and where it fails because the first one had
  succeeded, the object tells: if it is what was sent, it is ours. In doubt nothing is deleted.
* **The last to begin wins.** S3 tells nothing of a multipart upload but its key, so a writer cannot see whether another
  one lives. A writer that begins an upload aborts all unfinished ones to *that very key*: those of killed writers,
  so that they can run again, and that of a writer that still lives, whose next request then fails and says why.
  Two that begin in the same moment may both go on; the object is that of the last to complete, whole. Uploads
  to other keys are left alone.
* Only where there is none (`overwrite=False`): `If-None-Match: *` on the last request. AWS and SeaweedFS keep it.
  Such an object carries a mark of its upload (metadata `streamrec-upload`), so that after a lost answer a
  writer knows its own object from an equal one. (aiohttp sends a PUT again by itself where a connection that
  was used before breaks, so a first attempt may be a second one.)
* Bodies are sent from the pieces that they are made of (`http/pieces_body.py`). That the client hands a body of ours to
  aiohttp as it is, is a detail of its own, so this is a `FastPath`. The BytesIO that the client's users send replaces
  it for a body that is sent again, whatever happened to it before; and once more where the first bodies of all are
  refused, unless it is the network, a busy store or the object. If the store then takes it, and wherever ours fails by
  itself, all further ones are BytesIO, too.
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
from dataclasses import dataclass
from typing import Any, Final

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
from streamrec.storage.backend import ContentDigest, FastPath, ObjectInfo, PartSink, Pieces
from streamrec.storage.backends.http.pieces_body import PiecesBody
from streamrec.storage.backends.s3.errors import (
    BadDigestError,
    NoSuchUploadError,
    is_of_the_network,
    is_of_the_object,
    is_of_the_store,
    translate_errors,
)
from streamrec.storage.faults import Cause, TransientError, exists
from streamrec.storage.tasks import finish
from streamrec.storage.upload import encode_crc32c
from streamrec.storage.urls import split_object

__all__ = ["ClientUploads", "S3Upload", "StoredPart", "difference", "is_md5"]

ALL = "all buckets of this client"


def _meets_anybody(error: Exception) -> bool:
    """Whether the same request would fail in this way, whatever kind of body it has."""
    error = error.__cause__ if isinstance(error.__cause__, ClientError) else error  # s3fs makes OSErrors of them
    if isinstance(error, ClientError):
        return is_of_the_store(error) or is_of_the_object(error)
    return is_of_the_network(error)


_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What is known of one part.

    Attributes:
        etag: As the store gave it.
        crc32c: Of the bytes that were sent.
        checked: Whether the store compared it.
        md5: Whether the etag was found to be the MD5 of the bytes; looked at for the first part only.
    """

    etag: str
    crc32c: int
    checked: bool
    md5: bool = False


def difference(sent: ContentDigest, parts: Sequence[StoredPart], head: Mapping[str, Any]) -> str | None:
    """What tells the object in the store from what was sent; None where nothing does.

    Args:
        parts: Its parts, in order; none where it went in one request.
        head: The answer to HEAD, with the checksum where the store has one.
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
    """The etag that the parts make, where they are known to be MD5s."""
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
MARK: Final = "streamrec-upload"

_LOG = logging.getLogger("streamrec")


class ClientUploads:
    """What all uploads of one client share: how bodies are sent, and the right to end unfinished uploads.

    Args:
        fast_path: For bodies that are sent from their pieces.
    """

    def __init__(self, filesystem: S3FileSystem, fast_path: FastPath) -> None:
        self.filesystem = filesystem
        self._fast_path = fast_path
        self._proven = False
        self._allowed = True

    async def send(self, verb: str, pieces: Sequence[memoryview], again: bool, **parameters: Any) -> Mapping[str, Any]:
        """One request.

        Args:
            again: Whether this body was sent before.

        Raises:
            Exception: As the client.
        """
        if again or not self._fast_path.is_open(ALL):
            return await self._send_joined(verb, pieces, parameters)
        body = PiecesBody(pieces)
        try:
            answer: Mapping[str, Any] = await self.filesystem._call_s3(verb, Body=body, **parameters)
        except Exception as error:
            if body.failure is None and (self._proven or _meets_anybody(error)):
                raise
            refused = body.failure or error
        else:
            self._proven = True
            return answer
        answer = await self._send_joined(verb, pieces, parameters)
        self._fast_path.leave(ALL, refused)
        return answer

    async def _send_joined(
        self, verb: str, pieces: Sequence[memoryview], parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self.filesystem._call_s3(
            verb, Body=io.BytesIO(b"".join(pieces)), **parameters
        )
        return answer

    async def end(self, path: str) -> None:
        """Aborts all unfinished uploads to this very key. Not being allowed to is logged, once.

        One page of the listing is enough: keys come in order, so the key itself comes before longer ones.
        """
        bucket, key = split_object(path)
        if not self._allowed:
            return
        try:
            with translate_errors(path):
                page = await self.filesystem._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
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
            with translate_errors(path):
                await self.filesystem._call_s3("abort_multipart_upload", UploadId=upload, Bucket=bucket, Key=key)
        except NoSuchUploadError:
            pass


class S3Upload(PartSink):
    """A multipart upload, or one PUT where there is only one part."""

    parallel = 1_000
    grows = True

    def __init__(self, client: ClientUploads, path: str, overwrite: bool) -> None:
        bucket, key = split_object(path)
        self._fs = client.filesystem
        self._client = client
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
        await self._client.end(self._path)

    async def put_part(self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None) -> None:
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
        doubt, self._doubt = self._doubt, True
        try:
            done = await (self._complete_parts(sent) if self._only is None else self._put_only(sent))
        except ObjectChangedError as error:  # a 412 can only mean If-None-Match here
            return await self._find_completed(sent, exists(self._path), error)
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
        """The upload's id: the first part that comes along asks for it."""
        async with self._starting:
            if self._id is None:
                await finish(self._create())  # cut off half way, it could not be aborted
            return str(self._id)

    async def _create(self) -> None:
        if self._asked:  # without an answer: the store may have made one nevertheless
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
            {"ChecksumCRC32C": encode_crc32c(sent.crc32c), "ChecksumType": "FULL_OBJECT"} if self._checks_whole else {}
        )
        try:
            with translate_errors(self._path):
                done: Mapping[str, Any] = await self._fs._call_s3(
                    "complete_multipart_upload",
                    UploadId=self._id,
                    MultipartUpload={
                        "Parts": [_part_entry(index, self._parts[index]) for index in sorted(self._parts)]
                    },
                    MpuObjectSize=sent.size,
                    **whole,
                    **self._condition(),
                    **self._place,
                )
        except BadDigestError as fault:  # all parts were right when they arrived
            raise IntegrityError(f"the store refused the parts ({fault.reason}): write it again", self._path) from fault
        return done

    async def _find_completed(self, sent: ContentDigest, refused: StorageError, cause: StorageError) -> ObjectInfo:
        """The request failed, perhaps after one without an answer: did that succeed? The object tells."""
        head = await self._head()
        ours = head is not None and (self._mark is None or head.get("Metadata", {}).get(MARK) == self._mark)
        if head is None or not ours or difference(sent, self._sort_parts(), head) is not None:
            raise refused from cause
        return ObjectInfo(self._path, sent.size, head.get("ETag"))

    async def _check(self, sent: ContentDigest, etag: str | None) -> ObjectInfo:
        """Compares; what differs and is ours goes."""
        head = await self._head()
        if head is None:
            raise TransientError(Cause.SERVER, "the object was completed and is not there")
        if etag is not None and head.get("ETag") != etag:
            raise ObjectChangedError("another writer wrote this name at the same time: use one writer", self._path)
        reason = difference(sent, self._sort_parts(), head)
        if reason is not None:
            await self._remove(etag)
            raise IntegrityError(f"the store holds other bytes than were sent: {reason}; write it again", self._path)
        return ObjectInfo(self._path, sent.size, head.get("ETag"))

    async def _remove(self, etag: str | None) -> None:
        """Removes what we made; without an etag it may be another writer's. Gone or replaced is fine."""
        if etag is not None:
            with suppress(NotFoundError, ObjectChangedError), translate_errors(self._path):
                await self._fs._call_s3("delete_object", IfMatch=etag, **self._place)

    async def _head(self) -> Mapping[str, Any] | None:
        try:
            with translate_errors(self._path):
                head: Mapping[str, Any] = await self._fs._call_s3("head_object", ChecksumMode="ENABLED", **self._place)
        except NotFoundError:
            return None
        return head

    def _sort_parts(self) -> list[StoredPart]:
        return [self._parts[index] for index in sorted(self._parts)]

    def _again(self, index: int) -> bool:
        """Whether a part was sent before; it counts as sent from now on."""
        again = index in self._begun
        self._begun.add(index)
        return again

    def _metadata_with_mark(self) -> dict[str, Any]:
        """The user's metadata with the mark, as an argument of a request."""
        if self._mark is None:
            return {}
        theirs = self._fs.s3_additional_kwargs.get("Metadata") or {}
        return {"Metadata": {**theirs, MARK: self._mark}}

    def _condition(self) -> dict[str, str]:
        return {} if self._overwrite else {"IfNoneMatch": "*"}


def _part_entry(index: int, part: StoredPart) -> dict[str, Any]:
    """A part in the list that completes an upload; with its checksum where the store keeps one."""
    checksum = {"ChecksumCRC32C": encode_crc32c(part.crc32c)} if part.checked else {}
    return {"PartNumber": index + 1, "ETag": part.etag, **checksum}
