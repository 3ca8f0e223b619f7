"""Uploads to GCS: one request for one part, else a resumable upload.

* Parts are sent one after the other: the protocol requires their order. After a fault the store
  reports how many bytes it has, and the part continues from there. The last part makes the object
  visible, as a whole.
* The last request carries the object's CRC32C, so that the store refuses damage before anything is
  visible. Size and CRC32C from the answer are compared again. An object that differs is deleted,
  this generation and no other, and is an IntegrityError.
* An upload to a name that is free, and `overwrite=False`, send `ifGenerationMatch=0`.
  fake-gcs-server 1.52 honours it for objects of one part only; for others only the check before the
  upload remains.
* Each object carries the token of its writer (metadata `streamrec-upload`), so that a writer can
  tell its own object from an equal one: after a lost answer, and before it removes or restores
  anything.
* A killed writer leaves a session that cannot be listed or seen; the store drops it after a week.

Source: cloud.google.com/storage/docs/resumable-uploads and .../data-validation.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
)
from streamrec.storage.backend import (
    MARK,
    ContentDigest,
    ObjectInfo,
    PartSink,
    Pieces,
    Precondition,
    UploadTerms,
    encode_crc32c,
)
from streamrec.storage.backends.gcs.api import GcsApi, check, info_in, read_json, resource
from streamrec.storage.backends.gcs.upload_requests import (
    condition_of,
    difference,
    multipart_body,
    range_of_part,
)
from streamrec.storage.backends.http.pieces_body import between
from streamrec.storage.backends.http.responses import translate_errors
from streamrec.storage.faults import exists_error
from streamrec.storage.tasks import finish
from streamrec.storage.urls import split_object


class GcsTarget:
    """The object that an upload writes: the requests that look at its name, or remove it.

    Attributes:
        api: Sends the requests.
        path: The URL.
        mark: The token in the object's metadata.
        overwrite: Whether the name may hold another object.
        place: Where uploads to the bucket begin.
    """

    def __init__(self, api: GcsApi, path: str, mark: str, overwrite: bool) -> None:
        bucket, key = split_object(path)
        self.api = api
        self.path = path
        self.mark = mark
        self.overwrite = overwrite
        self.place = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        self._key = key

    @property
    def metadata(self) -> dict[str, Any]:
        """The object's resource, with the mark."""
        mark = {"metadata": {MARK: self.mark}}
        return {"name": self._key, "contentType": "application/octet-stream", **mark}

    def query(self, kind: str) -> dict[str, str]:
        """The parameters of a request that begins an upload of this kind."""
        condition = condition_of(Precondition.ANY if self.overwrite else Precondition.ABSENT)
        return {"uploadType": kind, "name": self._key, **condition}

    async def find(self) -> dict[str, Any] | None:
        """The resource of the object that has the name, or None."""
        try:
            return await self.api.metadata(self.path)
        except NotFoundError:
            return None

    async def refuse_existing(self) -> None:
        """Raises AlreadyExistsError if the name is taken. A client that may not look relies on the
        condition of the last request.
        """
        with suppress(PermissionDeniedError):
            if await self.find() is not None:
                raise exists_error(self.path)

    async def remove(self, generation: str) -> None:
        """Removes this generation of the object; a missing or replaced one is not an error."""
        place = "/storage/v1" + resource(self.path)
        with suppress(NotFoundError, ObjectChangedError), translate_errors(self.path):
            async with await self.api.send(
                "DELETE", place, {"ifGenerationMatch": generation}
            ) as answer:
                await check(answer, self.path)

    async def insert(self, sent: ContentDigest, pieces: Pieces) -> dict[str, Any]:
        """Sends the object and its checksum in one request; returns its resource."""
        metadata = {**self.metadata, "crc32c": encode_crc32c(sent.crc32c)}
        boundary = secrets.token_hex(16)
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        body = multipart_body(boundary, metadata, pieces)
        query = self.query("multipart")
        try:
            with translate_errors(self.path):
                async with await self.api.send("POST", self.place, query, headers, body) as answer:
                    await check(answer, self.path)
                    return await read_json(answer)
        except ObjectChangedError as error:  # a 412 can only mean ifGenerationMatch=0 here
            try:
                existing = await self.find()
            except PermissionDeniedError:
                existing = None
            if existing is None or existing.get("metadata", {}).get(MARK) != self.mark:
                raise exists_error(self.path) from error
            return existing  # an attempt without an answer had succeeded


class ResumableUpload:
    """A resumable upload: the first part creates it, and the last one makes the object visible.

    Attributes:
        done: The object's resource, when the last part was sent.
        is_ours: Whether it comes from the answer that ended the upload. If that was lost, it may
            describe another writer's object.
    """

    def __init__(self, target: GcsTarget) -> None:
        self.done: dict[str, Any] | None = None
        self.is_ours = True
        self._target = target
        self._session: str | None = None
        self._doubt = False  # the last request may have had no answer

    async def put(self, offset: int, pieces: Pieces, whole: ContentDigest | None) -> None:
        """Sends a part: its bytes that the store does not have yet."""
        target = self._target
        if self._session is None:
            await finish(self._create())  # after an interruption, it could not be aborted
        emulated = not target.api.endpoint.endswith(".googleapis.com")
        if whole is not None and emulated and not (self._doubt or target.overwrite):
            # Emulators ignore the condition of a resumable upload.
            await target.refuse_existing()
        stop = offset + sum(map(len, pieces))
        there = await self._ask(whole) if self._doubt else offset
        self._doubt = True
        while self.done is None and (there < stop or whole):
            if not offset <= there <= stop:
                raise StorageError(
                    f"the store has {there:,} bytes of this upload where {offset:,} were sent: "
                    "write it again",
                    target.path,
                )
            left = between(pieces, there - offset, stop - offset)
            there = await self._send(range_of_part(there, stop, whole), left)
        self._doubt = False

    async def abort(self) -> None:
        """Frees the parts. An upload that the store no longer knows is not an error."""
        if self._session is None:
            return
        target = self._target
        with translate_errors(target.path):
            async with await target.api.send("DELETE", self._session) as answer:
                if answer.status not in (404, 410, 499):  # 499 answers to a cancelled upload
                    await check(answer, target.path)
        self._session = None

    async def _create(self) -> None:
        target = self._target
        headers = {
            "X-Upload-Content-Type": "application/octet-stream",
            "Content-Type": "application/json",
        }
        body = [memoryview(json.dumps(target.metadata).encode())]
        query = target.query("resumable")
        with self._name_is_taken(), translate_errors(target.path):
            async with await target.api.send("POST", target.place, query, headers, body) as answer:
                await check(answer, target.path)
                self._session = answer.headers["Location"]

    async def _ask(self, whole: ContentDigest | None) -> int:
        """Returns how many bytes the store has.

        If the last part was sent, with the digest of the whole object, the upload may be complete,
        and even forgotten, in which case the object itself shows its size.
        """
        try:
            there = await self._send({"Content-Range": "bytes */*"}, ())
        except NotFoundError as error:
            self.is_ours = False
            self.done = await self._target.find()
            if self.done is None:
                raise StorageError(
                    "the store no longer knows this upload: write it again", self._target.path
                ) from error
            there = int(self.done["size"])
        if self.done is not None and (whole is None or there != whole.size):
            raise StorageError(
                f"the store ended this upload at {there:,} bytes: write it again",
                self._target.path,
            )
        return there

    async def _send(self, headers: Mapping[str, str], pieces: Pieces) -> int:
        """Sends bytes; returns how many bytes of the whole the store has now.

        It uses POST: aiohttp itself repeats a PUT when a reused connection breaks, and GCS accepts
        no chunk twice.
        """
        assert self._session is not None
        target = self._target
        with self._name_is_taken(), translate_errors(target.path):
            async with await target.api.send(
                "POST", self._session, None, headers, pieces
            ) as answer:
                if answer.status == 308:  # "Resume Incomplete": the store expects more bytes
                    stored = answer.headers.get("Range", "")  # none: nothing yet
                    return int(stored.rpartition("-")[2]) + 1 if stored else 0
                await check(answer, target.path)
                self.done = await read_json(answer)
                return int(self.done["size"])

    @contextmanager
    def _name_is_taken(self) -> Iterator[None]:
        """Translates a 412, which can only mean here that the name is taken."""
        try:
            yield
        except ObjectChangedError as error:
            raise exists_error(self._target.path) from error


class GcsUpload(PartSink):
    """A resumable upload, or one request if there is only one part."""

    def __init__(self, api: GcsApi, path: str, terms: UploadTerms) -> None:
        self.mark = terms.make_mark()
        self._terms = terms
        self._target = GcsTarget(api, path, self.mark, terms.overwrite)
        self._resumable = ResumableUpload(self._target)
        self._only: Pieces | None = None

    async def prepare(self) -> None:
        """Raises AlreadyExistsError before anything is sent, if the object exists and must not be
        replaced.
        """
        if not self._terms.overwrite and self._terms.guaranteed:
            await self._target.refuse_existing()

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        """Sends a part; a single part waits for `complete`. The last one makes the object
        visible.
        """
        if whole and index == 0:
            self._only = pieces
        else:
            await self._resumable.put(offset, pieces, whole)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Makes an object of one part visible (a larger one is already), and compares it with what
        was sent.
        """
        if self._only is not None:
            done: dict[str, Any] | None = await self._target.insert(sent, self._only)
        else:
            done = self._resumable.done
        assert done is not None, "the last part comes before complete"
        reason = difference(sent, done)
        path = self._target.path
        if reason is None:
            return info_in(path, done)
        if not self._resumable.is_ours:
            raise ObjectChangedError(
                f"this name holds what another writer wrote ({reason}): write again", path
            )
        await self._target.remove(str(done["generation"]))
        raise IntegrityError(
            f"the store holds other bytes than were sent: {reason}; write it again", path
        )

    async def abort(self) -> None:
        """Frees what the store holds of the upload."""
        self._only = None
        await self._resumable.abort()
