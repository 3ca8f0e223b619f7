"""The two ways in which the bytes of an object get to S3: one PUT, or a multipart upload."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from streamrec import kernels
from streamrec.errors import IntegrityError, StorageError
from streamrec.storage.backend import ContentDigest, Pieces, encode_crc32c
from streamrec.storage.backends.s3.client_uploads import ClientUploads
from streamrec.storage.backends.s3.errors import BadDigestError, translate_errors
from streamrec.storage.backends.s3.stored_parts import StoredPart, StoredParts, is_md5
from streamrec.storage.backends.s3.target import S3Target
from streamrec.storage.tasks import finish

MAX_PARTS: Final = 10_000


class Sending(Protocol):
    """The bytes of one object on their way to the store."""

    async def finish(self, sent: ContentDigest, condition: Mapping[str, str]) -> Mapping[str, Any]:
        """Sends the last request, with a condition, and returns its answer."""

    @property
    def parts(self) -> StoredParts:
        """The parts that the store has; none if all was sent in one request."""

    async def abort(self) -> None:
        """Frees what the store holds. May be called at any time, and twice."""


class SinglePut(Sending):
    """One PUT, for an object of one part."""

    def __init__(self, client: ClientUploads, target: S3Target, pieces: Pieces) -> None:
        self._client = client
        self._target = target
        self._pieces = pieces
        self._begun = False

    @property
    def parts(self) -> StoredParts:
        return StoredParts()

    async def finish(self, sent: ContentDigest, condition: Mapping[str, str]) -> Mapping[str, Any]:
        """Sends the object with its checksum."""
        again = self._begun
        self._begun = True
        with translate_errors(self._target.path):
            return await self._client.send(
                "put_object",
                self._pieces,
                again,
                ChecksumCRC32C=encode_crc32c(sent.crc32c),
                **condition,
                **self._target.metadata,
                **self._target.place,
            )

    async def abort(self) -> None:
        """Frees the bytes; the store has none that are not visible."""
        self._pieces = ()


class MultipartUpload(Sending):
    """A multipart upload: the first part creates it.

    Attributes:
        parts: The parts that the store has.
    """

    def __init__(self, client: ClientUploads, target: S3Target) -> None:
        self._stored = StoredParts()
        self._client = client
        self._target = target
        self._id: str | None = None
        self._asked = False  # an id was requested, possibly without an answer
        self._starting = asyncio.Lock()
        self._checks_whole = False

    @property
    def parts(self) -> StoredParts:
        return self._stored

    async def put(self, index: int, offset: int, pieces: Pieces) -> None:
        """Uploads a part, whose first byte is at this offset of the object."""
        if index >= MAX_PARTS:
            raise StorageError(
                f"S3 takes {MAX_PARTS:,} parts and 5 TB at most: write several shards "
                "(max_shard_bytes)",
                self._target.path,
                offset,
            )
        upload = await self._start()
        crc32c = 0
        for piece in pieces:
            crc32c = kernels.crc32c(piece, crc32c)
        with translate_errors(self._target.path, offset, offset + sum(map(len, pieces))):
            answer = await self._client.send(
                "upload_part",
                pieces,
                self._stored.begin(index),
                UploadId=upload,
                PartNumber=index + 1,
                ChecksumCRC32C=encode_crc32c(crc32c),
                **self._target.place,
            )
        etag = answer["ETag"]
        checked = "ChecksumCRC32C" in answer
        # Etags prove something only if they are MD5s: the first part shows it. Where the store
        # has checksums, an MD5 would only cost time.
        compares = index == 0 and not checked
        md5 = compares and await asyncio.to_thread(is_md5, etag, pieces)
        self._stored.add(index, StoredPart(etag, crc32c, checked, md5))

    async def finish(self, sent: ContentDigest, condition: Mapping[str, str]) -> Mapping[str, Any]:
        """Puts the parts together, so that the object becomes visible."""
        whole = {}
        if self._checks_whole:
            whole = {"ChecksumCRC32C": encode_crc32c(sent.crc32c), "ChecksumType": "FULL_OBJECT"}
        try:
            return await self._target.call(
                "complete_multipart_upload",
                UploadId=self._id,
                MultipartUpload={"Parts": self._stored.entries()},
                MpuObjectSize=sent.size,
                **whole,
                **condition,
            )
        except BadDigestError as fault:  # each part was verified when it arrived
            raise IntegrityError(
                f"the store refused the parts ({fault.reason}): write it again", self._target.path
            ) from fault

    async def abort(self) -> None:
        """Frees the parts; without an answer to the creation, those of all uploads to this key."""
        if self._id is not None:
            await self._client.abort(self._target.path, self._id)
        elif self._asked:
            await self._client.end(self._target.path)
        self._id = None
        self._asked = False

    async def _start(self) -> str:
        """Returns the upload's id; the first part requests it."""
        async with self._starting:
            if self._id is None:
                await finish(self._create())  # after an interruption, it could not be aborted
            return str(self._id)

    async def _create(self) -> None:
        if self._asked:  # no answer arrived, but the store may have created one
            await self._client.end(self._target.path)
        self._asked = True
        made = await self._target.call(
            "create_multipart_upload",
            ChecksumAlgorithm="CRC32C",
            ChecksumType="FULL_OBJECT",
            **self._target.metadata,
        )
        self._id = made["UploadId"]
        self._checks_whole = made.get("ChecksumType") == "FULL_OBJECT"
