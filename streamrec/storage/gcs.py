"""Google Cloud Storage, through gcsfs's credentials and session; the requests are made here.

gcsfs has no streamed read, retries by itself, waits without any limit, and its default class asks a gRPC
service about each bucket first. So what is used of it is what is tedious: finding and refreshing credentials
(in a thread: it blocks), requester-pays parameters, and the session. The API is that of
cloud.google.com/storage/docs/json_api, uploads are its "resumable uploads".

Versions are generations. A pinned one is asked for by number; where the store has only another one by now,
that is an ObjectChangedError.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
from gcsfs.core import GCSFileSystem
from yarl import URL

from streamrec.errors import NotFoundError, StorageError
from streamrec.storage.backend import BLOCK_BYTES, Body, EmptyBody, ObjectInfo, PartSink
from streamrec.storage.faults import Cause, TransientError, changed
from streamrec.storage.fsspec_options import Source, build
from streamrec.storage.gcs_credentials import GcsCredentials
from streamrec.storage.http_body import AiohttpBody, check_answer, client_timeout, range_header, seam, size_in
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.shield import finish
from streamrec.storage.urls import split_object, split_prefix

__all__ = ["GcsBackend", "connect"]

_LISTED: Final = "items(name,size,generation),nextPageToken"
_RESUME: Final = 308  # "Resume Incomplete": more bytes are wanted


async def connect(source: Source, policy: RetryPolicy) -> GcsBackend:
    """Makes a session in the running loop."""
    session = {"auto_decompress": False, **(source.option("session_kwargs") or {})}  # the bytes as they are stored
    filesystem = build(GCSFileSystem, source, keep_class=False, session_kwargs=session)
    await filesystem._set_session()
    return GcsBackend(filesystem, client_timeout(policy))


class GcsBackend:
    """One GCS client.

    Args:
        filesystem: An asynchronous GCSFileSystem whose session was made in the running loop.
        timeout: aiohttp's time limits for each request.
    """

    block_bytes = BLOCK_BYTES
    remote = True

    def __init__(self, filesystem: GCSFileSystem, timeout: aiohttp.ClientTimeout) -> None:
        self._fs = filesystem
        self._timeout = timeout
        self._credentials = GcsCredentials(filesystem)

    async def list_page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """One page of up to 1,000 names; directory markers are left out."""
        scheme, bucket, key = split_prefix(prefix)
        query = {"prefix": key, "fields": _LISTED, "maxResults": "1000", "pageToken": token}
        page = await self._json(prefix, "GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query)
        infos = [
            ObjectInfo(f"{scheme}://{bucket}/{item['name']}", int(item["size"]), str(item["generation"]))
            for item in page.get("items", ())
            if not item["name"].endswith("/")
        ]
        return infos, page.get("nextPageToken") or None

    async def stat(self, path: str) -> ObjectInfo:
        """The object's metadata."""
        return _info(path, await self.metadata(path))

    async def metadata(self, path: str) -> dict[str, Any]:
        """The object's resource, as the JSON API has it."""
        return await self._json(path, "GET", "/storage/v1" + _resource(path))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """A streamed GET."""
        query = {"alt": "media", "generation": version}
        with seam(path, start, end):
            answer = await self.send("GET", "/download/storage/v1" + _resource(path), query, range_header(start, end))
        try:
            if answer.status == 416:
                return await self._past_the_end(path, start)
            await _check(answer, path, start, end)
            info = ObjectInfo(path, size_in(answer, start, end), answer.headers.get("X-Goog-Generation") or version)
        except NotFoundError as missing:
            answer.close()
            await self._check_not_changed(path, start, version, missing)
            raise
        except BaseException:
            answer.close()
            raise
        return AiohttpBody(answer, info, start, end)

    async def begin_upload(self, path: str) -> PartSink:
        """Sends nothing yet: an object of one part needs no resumable upload."""
        split_object(path)
        return GcsUpload(self, path)

    async def aclose(self) -> None:
        """Closes the session."""
        await self._credentials.renewal.aclose()
        await self._fs.session.close()

    async def send(
        self,
        method: str,
        place: str,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> aiohttp.ClientResponse:
        """Sends one request; the head of the answer has arrived when this returns. The caller closes it.

        A token that is refused before its time is renewed once, and the request sent once more.

        Args:
            method: The HTTP method.
            place: The path below the endpoint, percent-encoded; or a full URL.
            query: Parameters; those that are None are left out.
            headers: Headers besides the usual ones.
            body: What to send, or None.
        """
        parameters = urlencode(self._fs._get_params(dict(query or {})), quote_via=quote)
        url = place if "://" in place else self._fs._location + place
        url += ("&" if "?" in url else "?") + parameters if parameters else ""
        generation = self._credentials.renewal.generation
        answer = await self._send(method, url, headers, body)
        if answer.status == 401 and self._credentials.renewable:
            answer.close()
            await self._credentials.renewal.since(generation)
            answer = await self._send(method, url, headers, body)
        return answer

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes | None
    ) -> aiohttp.ClientResponse:
        return await self._fs._session.request(  # type: ignore[no-any-return]
            method,
            URL(url, encoded=True),
            headers={"Accept-Encoding": "gzip", **await self._credentials.headers(), **(headers or {})},
            data=None if body is None else io.BytesIO(body),
            timeout=self._timeout,
            allow_redirects=False,  # 308 means something else here
        )

    async def _json(
        self, path: str, method: str, place: str, query: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        with seam(path):
            async with await self.send(method, place, query) as answer:
                await _check(answer, path)
                return await _read_json(answer)

    async def _past_the_end(self, path: str, start: int) -> Body:
        info = await self.stat(path)
        if info.size is not None and start < info.size:
            raise TransientError(Cause.WRONG_RANGE, f"a 416 for byte {start:,} of {info.size:,}")
        return EmptyBody(info)

    async def _check_not_changed(self, path: str, start: int, version: str | None, missing: NotFoundError) -> None:
        """A generation that is gone is a 404; what is there instead tells whether the object was replaced."""
        if version is not None and (await self.stat(path)).version != version:
            raise changed(path, start) from missing


class GcsUpload:
    """A resumable upload, or one request where there is only one part.

    Parts go one after the other: the protocol wants them in order. After a fault the store is asked how much
    it has, and the part goes on from there.

    Args:
        backend: The client.
        path: The object's URL.
    """

    parallel = 1

    def __init__(self, backend: GcsBackend, path: str) -> None:
        bucket, self._key = split_object(path)
        self._backend = backend
        self._path = path
        self._place = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        self._session: str | None = None
        self._doubt = False
        self._only: bytes | None = None
        self._done: dict[str, Any] | None = None

    async def put_part(self, index: int, offset: int, data: bytes, last: bool) -> None:
        """Sends a part; an only part waits for `complete`. The last one makes the object visible."""
        if last and index == 0:
            self._only = data
        else:
            if self._session is None:
                await finish(self._create())  # cut off half way, nobody would know what to abort
            await self._send(offset, data, last)

    async def _send(self, offset: int, data: bytes, last: bool) -> None:
        """Sends what the store does not have yet."""
        stop = offset + len(data)
        total = str(stop) if last else "*"
        there = await self._ask(stop if last else None) if self._doubt else offset
        self._doubt = True
        while self._done is None and (there < stop or last):
            if not offset <= there <= stop:
                raise StorageError(
                    f"the store has {there:,} bytes of this upload where {offset:,} were sent", self._path
                )
            span = f"bytes {there}-{stop - 1}/{total}" if there < stop else f"bytes */{total}"
            there = await self._put(span, data[there - offset :])
        self._doubt = False

    async def complete(self) -> ObjectInfo:
        """Makes an object of one part visible; a larger one is, since its last part arrived."""
        if self._only is not None:
            query = {"uploadType": "media", "name": self._key}
            kind = {"Content-Type": "application/octet-stream"}
            with seam(self._path):
                async with await self._backend.send("POST", self._place, query, kind, self._only) as answer:
                    await _check(answer, self._path)
                    self._done = await _read_json(answer)
        assert self._done is not None, "the last part comes before complete"
        return _info(self._path, self._done)

    async def abort(self) -> None:
        """Frees the parts. An upload that the store no longer knows is fine."""
        self._only = None
        if self._session is not None:
            with seam(self._path):
                async with await self._backend.send("DELETE", self._session) as answer:
                    if answer.status not in (404, 410, 499):  # 499 is the answer to a cancelled upload
                        await _check(answer, self._path)
            self._session = None

    async def _create(self) -> None:
        query = {"uploadType": "resumable", "name": self._key}
        headers = {"X-Upload-Content-Type": "application/octet-stream", "Content-Type": "application/json"}
        body = json.dumps({"name": self._key}).encode()
        with seam(self._path):
            async with await self._backend.send("POST", self._place, query, headers, body) as answer:
                await _check(answer, self._path)
                self._session = answer.headers["Location"]

    async def _ask(self, total: int | None) -> int:
        """How many bytes the store has.

        Args:
            total: The object's size where its last part was sent: then the upload may be over, and even
                forgotten, in which case the object itself tells.
        """
        try:
            there = await self._put("bytes */*", b"")
        except NotFoundError:
            self._done = await self._backend.metadata(self._path)
            there = int(self._done["size"])
        if self._done is not None and there != total:
            raise StorageError(f"the store ended this upload at {there:,} bytes: write it again", self._path)
        return there

    async def _put(self, span: str, data: bytes) -> int:
        """Sends bytes; returns how many the store has of the whole now.

        By POST: a PUT on a connection that was used before is sent again by aiohttp itself when it breaks,
        and GCS takes no chunk twice.
        """
        assert self._session is not None
        with seam(self._path):
            async with await self._backend.send("POST", self._session, None, {"Content-Range": span}, data) as answer:
                if answer.status == _RESUME:
                    stored = answer.headers.get("Range", "")  # none: nothing yet
                    return int(stored.rpartition("-")[2]) + 1 if stored else 0
                await _check(answer, self._path)
                self._done = await _read_json(answer)
                return int(self._done["size"])


async def _check(answer: aiohttp.ClientResponse, path: str, start: int | None = None, end: int | None = None) -> None:
    """Raises what an error stands for, in the store's own words."""
    if answer.status >= 300:
        said = " ".join((await answer.text(errors="replace"))[:1000].split())
        check_answer(answer, path, start, end, said)


async def _read_json(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    body = await answer.read()
    try:
        return dict(json.loads(body))
    except ValueError as error:
        raise TransientError(Cause.SERVER, f"no JSON in {body[:100]!r}") from error


def _info(path: str, item: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(path, int(item["size"]), str(item["generation"]))


def _resource(path: str) -> str:
    bucket, key = split_object(path)
    return f"/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}"
