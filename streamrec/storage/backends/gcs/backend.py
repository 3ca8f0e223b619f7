"""Google Cloud Storage, through gcsfs's credentials and session; this module makes the requests.

gcsfs has no streamed read, retries by itself, waits without any limit, and its default class first
queries a gRPC service about each bucket. So this backend uses only gcsfs's tedious parts: finding
and refreshing credentials (in a thread: it blocks), requester-pays parameters, and the session. The
API is that of cloud.google.com/storage/docs/json_api; credentials and requests are in `gcs/api.py`.

Versions are generations. A pinned one is requested by number; if the store has only another one by
then, that is an ObjectChangedError.

Uploads: one request for one part, else a resumable upload.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from gcsfs import GCSFileSystem as EverySize
from gcsfs.core import GCSFileSystem

from streamrec.display import shorten
from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
)
from streamrec.storage.backend import (
    MARK,
    Backend,
    Body,
    ContentDigest,
    Held,
    ObjectInfo,
    PartSink,
    Pieces,
    Precondition,
    Replaced,
    UploadTerms,
    encode_crc32c,
)
from streamrec.storage.backends.gcs.api import (
    GcsApi,
    check,
    check_token,
    info_in,
    read_json,
    resource,
)
from streamrec.storage.backends.http.pieces_body import between
from streamrec.storage.backends.http.responses import (
    BUFFERED_BODIES,
    AiohttpBody,
    body_past_the_end,
    client_timeout,
    first_bytes,
    info_of_answer,
    range_header,
    session_settings,
    size_of_answer,
    translate_errors,
)
from streamrec.storage.faults import (
    Cause,
    RetryPolicy,
    TransientError,
    changed_error,
    exists_error,
)
from streamrec.storage.options import (
    COMMON_OPTIONS,
    ClientOptions,
    build,
    check_endpoint,
    check_names,
    parameter_names,
)
from streamrec.storage.tasks import finish
from streamrec.storage.urls import Glob, split_object, split_prefix

_NEXT: Final = "nextPageToken"
_LISTED: Final = f"kind,items(name,size,generation,updated),{_NEXT}"


async def connect(source: ClientOptions, policy: RetryPolicy) -> GcsBackend:
    """Makes a session in the running loop; refuses options that gcsfs does not know."""
    known = parameter_names(GCSFileSystem, EverySize) | COMMON_OPTIONS
    check_names(source.url, "storage_options", source.options, known)
    check_endpoint(source.url, "endpoint_url", source.option("endpoint_url"))
    check_token(source.url, source.option("token"))
    session_names = parameter_names(aiohttp.ClientSession.__init__)
    check_names(source.url, "session_kwargs", source.option("session_kwargs") or {}, session_names)
    session = session_settings(source.option("session_kwargs"))
    filesystem = build(GCSFileSystem, source, keep_class=False, session_kwargs=session)
    await filesystem._set_session()
    return GcsBackend(filesystem, client_timeout(policy))


class GcsBackend(Backend):
    remote = True
    verifies_first = False

    def __init__(self, filesystem: GCSFileSystem, timeout: aiohttp.ClientTimeout) -> None:
        self._api = GcsApi(filesystem, timeout)
        self.endpoint = str(filesystem._location)
        self.fast_paths = (BUFFERED_BODIES,)

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """Returns one page of up to 1,000 names, without directory markers and names outside the
        prefix.
        """
        scheme, bucket, key = split_prefix(prefix)
        query = {"prefix": key, "fields": _LISTED, "maxResults": "1000", "pageToken": token}
        page = await self._api.json(
            prefix, "GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query
        )
        if (
            not {"kind", "items", _NEXT} & page.keys()
        ):  # of a portal, this would be an empty listing
            raise TransientError(
                Cause.WRONG_ANSWER, f"JSON that is not a listing: {shorten(json.dumps(page))}"
            )
        infos = [
            ObjectInfo(
                f"{scheme}://{bucket}/{item['name']}",
                int(item["size"]),
                str(item["generation"]),
                item.get("updated"),
            )
            for item in page.get("items", ())
            if item["name"].startswith(key) and not item["name"].endswith("/")
        ]
        next_token = page.get(_NEXT)
        return infos, str(next_token) if next_token else None

    async def stat(self, path: str) -> ObjectInfo:
        return info_in(path, await self._api.metadata(path))

    async def identify(self, path: str) -> Held:
        """Returns the token in the object's metadata."""
        item = await self._api.metadata(path)
        return Held(info_in(path, item), (item.get("metadata") or {}).get(MARK))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        query = {"alt": "media", "generation": version}
        with translate_errors(path, start, end):
            answer = await self._api.send(
                "GET", "/download/storage/v1" + resource(path), query, range_header(start, end)
            )
        try:
            if answer.status == 416:
                return await body_past_the_end(self.stat, path, start, answer.headers)
            await check(answer, path, start, end)
            found = answer.headers.get("X-Goog-Generation")
            with translate_errors(path, start, end):
                head = await first_bytes(answer, path, found, of_store=True)
            size = await size_of_answer(answer, self.stat, path, start, end)
            info = info_of_answer(path, size, found or version, answer.headers)
        except NotFoundError as missing:
            answer.close()
            if (
                version is not None and (await self.stat(path)).version != version
            ):  # a missing generation is a 404
                raise changed_error(path, start) from missing
            raise
        except BaseException:
            answer.close()
            raise
        return AiohttpBody(answer, info, start, end, head=head)

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        """Sends nothing yet: an object of one part needs no resumable upload."""
        upload = GcsUpload(self._api, path, terms)
        await upload.prepare()
        return upload

    async def copy(
        self, source: str, target: str, replaces: Replaced = Precondition.ANY
    ) -> str | None:
        """Sends a rewrite; several requests for a large object that goes to another storage class.

        fake-gcs-server ignores the condition.
        """
        place = "/storage/v1" + resource(source) + "/rewriteTo" + resource(target)
        answer: dict[str, Any] = {}
        while not answer.get("done"):
            answer = await self._api.json(
                target,
                "POST",
                place,
                {"rewriteToken": answer.get("rewriteToken"), **_condition(replaces)},
            )
        return None

    async def remove(self, path: str, version: str | None = None) -> None:
        query = {"ifGenerationMatch": version}
        with translate_errors(path):
            async with await self._api.send(
                "DELETE", "/storage/v1" + resource(path), query
            ) as answer:
                await check(answer, path)

    async def write_short(self, path: str, data: bytes, replaces: Replaced) -> str | None:
        bucket, key = split_object(path)
        place = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        query = {"uploadType": "multipart", "name": key, **_condition(replaces)}
        boundary = secrets.token_hex(16)
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        body = _multipart_body(boundary, {"name": key}, [memoryview(data)])
        with translate_errors(path):
            async with await self._api.send("POST", place, query, headers, body) as answer:
                await check(answer, path)
                return info_in(path, await read_json(answer)).version

    async def aclose(self) -> None:
        await self._api.aclose()


class GcsUpload(PartSink):
    def __init__(self, api: GcsApi, path: str, terms: UploadTerms) -> None:
        bucket, self._key = split_object(path)
        self.mark = terms.token or secrets.token_hex(16)
        self._api = api
        self._path = path
        self._terms = terms
        self._place = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        self._session: str | None = None
        self._doubt = False
        self._only: Pieces | None = None
        self._done: dict[str, Any] | None = None
        self._ours = True  # whether the answer that ended the upload described the object

    async def prepare(self) -> None:
        """Raises AlreadyExistsError before anything is sent, if the object exists and must not be
        replaced.
        """
        looks = not self._terms.overwrite and self._terms.guaranteed
        if looks:
            await self._look()

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        """Sends a part; a single part waits for `complete`. The last one makes the object
        visible.
        """
        if whole and index == 0:
            self._only = pieces
        else:
            if self._session is None:
                await finish(self._create())  # after an interruption, it could not be aborted
            emulated = not self._api.endpoint.endswith(".googleapis.com")
            if whole is not None and emulated and not (self._doubt or self._terms.overwrite):
                await self._look()  # emulators ignore the condition of a resumable upload
            await self._send(offset, pieces, whole)

    async def _look(self) -> None:
        """Raises AlreadyExistsError if the name is taken. A client that may not look relies on the
        condition of the last request.
        """
        with suppress(PermissionDeniedError):
            if await self._find() is not None:
                raise exists_error(self._path)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Makes an object of one part visible (a larger one is already), and compares it with what
        was sent.
        """
        if self._only is not None:
            await self._insert(sent, self._only)
        assert self._done is not None, "the last part comes before complete"
        reason = _difference(sent, self._done)
        if reason is None:
            return info_in(self._path, self._done)
        if not self._ours:
            raise ObjectChangedError(
                f"this name holds what another writer wrote ({reason}): write again", self._path
            )
        await self._remove(str(self._done["generation"]))
        raise IntegrityError(
            f"the store holds other bytes than were sent: {reason}; write it again", self._path
        )

    async def abort(self) -> None:
        """Frees the parts. An upload that the store no longer knows is not an error."""
        self._only = None
        if self._session is not None:
            with translate_errors(self._path):
                async with await self._api.send("DELETE", self._session) as answer:
                    if answer.status not in (
                        404,
                        410,
                        499,
                    ):  # 499 is the answer to a cancelled upload
                        await check(answer, self._path)
            self._session = None

    async def _insert(self, sent: ContentDigest, pieces: Pieces) -> None:
        """Sends the object and its checksum in one request."""
        query = {"uploadType": "multipart", "name": self._key, **self._condition()}
        metadata = {**self._resource(), "crc32c": encode_crc32c(sent.crc32c)}
        boundary = secrets.token_hex(16)
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        body = _multipart_body(boundary, metadata, pieces)
        try:
            with translate_errors(self._path):
                async with await self._api.send(
                    "POST", self._place, query, headers, body
                ) as answer:
                    await check(answer, self._path)
                    self._done = await read_json(answer)
        except ObjectChangedError as error:  # a 412 can only mean ifGenerationMatch=0 here
            try:
                existing = await self._find()
            except PermissionDeniedError:
                existing = None
            if existing is None or existing.get("metadata", {}).get(MARK) != self.mark:
                raise exists_error(self._path) from error
            self._done = existing  # an attempt without an answer had succeeded

    async def _create(self) -> None:
        query = {"uploadType": "resumable", "name": self._key, **self._condition()}
        headers = {
            "X-Upload-Content-Type": "application/octet-stream",
            "Content-Type": "application/json",
        }
        body = [memoryview(json.dumps(self._resource()).encode())]
        with self._name_is_taken(), translate_errors(self._path):
            async with await self._api.send("POST", self._place, query, headers, body) as answer:
                await check(answer, self._path)
                self._session = answer.headers["Location"]

    async def _send(self, offset: int, pieces: Pieces, whole: ContentDigest | None) -> None:
        """Sends the bytes that the store does not have yet."""
        stop = offset + sum(map(len, pieces))
        there = await self._ask(whole) if self._doubt else offset
        self._doubt = True
        while self._done is None and (there < stop or whole):
            if not offset <= there <= stop:
                raise StorageError(
                    f"the store has {there:,} bytes of this upload where {offset:,} were sent: "
                    "write it again",
                    self._path,
                )
            there = await self._put(
                _span(there, stop, whole), between(pieces, there - offset, stop - offset)
            )
        self._doubt = False

    async def _ask(self, whole: ContentDigest | None) -> int:
        """Returns how many bytes the store has.

        If the last part was sent, with the digest of the whole object, the upload may be complete,
        and even forgotten, in which case the object itself shows its size.
        """
        try:
            there = await self._put({"Content-Range": "bytes */*"}, ())
        except NotFoundError as error:
            self._ours, self._done = False, await self._find()
            if self._done is None:
                raise StorageError(
                    "the store no longer knows this upload: write it again", self._path
                ) from error
            there = int(self._done["size"])
        if self._done is not None and (whole is None or there != whole.size):
            raise StorageError(
                f"the store ended this upload at {there:,} bytes: write it again", self._path
            )
        return there

    async def _put(self, headers: Mapping[str, str], pieces: Pieces) -> int:
        """Sends bytes; returns how many bytes of the whole the store has now.

        It uses POST: aiohttp itself repeats a PUT when a reused connection breaks, and GCS accepts
        no chunk twice.
        """
        assert self._session is not None
        with self._name_is_taken(), translate_errors(self._path):
            async with await self._api.send("POST", self._session, None, headers, pieces) as answer:
                if answer.status == 308:  # "Resume Incomplete": the store expects more bytes
                    stored = answer.headers.get("Range", "")  # none: nothing yet
                    return int(stored.rpartition("-")[2]) + 1 if stored else 0
                await check(answer, self._path)
                self._done = await read_json(answer)
                return int(self._done["size"])

    async def _find(self) -> dict[str, Any] | None:
        try:
            return await self._api.metadata(self._path)
        except NotFoundError:
            return None

    async def _remove(self, generation: str) -> None:
        """Removes this generation of the object; a missing or replaced one is not an error."""
        place = "/storage/v1" + resource(self._path)
        with suppress(NotFoundError, ObjectChangedError), translate_errors(self._path):
            async with await self._api.send(
                "DELETE", place, {"ifGenerationMatch": generation}
            ) as answer:
                await check(answer, self._path)

    def _resource(self) -> dict[str, Any]:
        mark = {"metadata": {MARK: self.mark}}
        return {"name": self._key, "contentType": "application/octet-stream", **mark}

    def _condition(self) -> dict[str, str]:
        return _condition(Precondition.ANY if self._terms.overwrite else Precondition.ABSENT)

    @contextmanager
    def _name_is_taken(self) -> Iterator[None]:
        """Translates a 412, which can only mean here that the name is taken."""
        try:
            yield
        except ObjectChangedError as error:
            raise exists_error(self._path) from error


def _condition(replaces: Replaced) -> dict[str, str]:
    """Returns the condition of a request that replaces an object; generation 0 is none."""
    if isinstance(replaces, str):
        return {"ifGenerationMatch": replaces}
    return {"ifGenerationMatch": "0"} if replaces is Precondition.ABSENT else {}


def _span(there: int, stop: int, whole: ContentDigest | None) -> dict[str, str]:
    """Returns headers for the bytes from `there` on; with the last ones, the whole object's size
    and checksum.
    """
    total = "*" if whole is None else str(whole.size)
    span = f"bytes {there}-{stop - 1}/{total}" if there < stop else f"bytes */{total}"
    checksum = {} if whole is None else {"X-Goog-Hash": f"crc32c={encode_crc32c(whole.crc32c)}"}
    return {"Content-Range": span, **checksum}


def _multipart_body(boundary: str, metadata: Mapping[str, Any], pieces: Pieces) -> Pieces:
    head = (
        f"--{boundary}\r\nContent-Type: application/json; "
        f"charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
        f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    return [memoryview(head.encode()), *pieces, memoryview(f"\r\n--{boundary}--\r\n".encode())]


def _difference(sent: ContentDigest, item: Mapping[str, Any]) -> str | None:
    """Describes how an object's resource differs from what was sent; None if it does not."""
    size, crc32c = int(item["size"]), item.get("crc32c")
    if size != sent.size:
        return f"it has {size:,} bytes where {sent.size:,} were sent"
    wanted = encode_crc32c(sent.crc32c)
    return None if crc32c in (None, wanted) else f"its CRC32C is {crc32c} where {wanted} was sent"
