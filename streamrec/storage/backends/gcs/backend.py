"""Google Cloud Storage, through gcsfs's credentials and session; the requests are made here.

gcsfs has no streamed read, retries by itself, waits without any limit, and its default class asks a gRPC
service about each bucket first. So what is used of it is what is tedious: finding and refreshing credentials
(in a thread: it blocks), requester-pays parameters, and the session. The API is that of
cloud.google.com/storage/docs/json_api; uploads are in `gcs/uploads.py`.

Versions are generations. A pinned one is asked for by number; where the store has only another one by now,
that is an ObjectChangedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from gcsfs import GCSFileSystem as EverySize
from gcsfs.core import GCSFileSystem

from streamrec.errors import NotFoundError
from streamrec.storage.backend import Backend, Body, ObjectInfo, PartSink
from streamrec.storage.backends.gcs.api import GcsApi, check, check_token, info_in, resource
from streamrec.storage.backends.gcs.uploads import GcsUpload
from streamrec.storage.backends.http.responses import (
    BUFFERED_BODIES,
    AiohttpBody,
    client_timeout,
    past_the_end,
    range_header,
    session_settings,
    size_in,
    translate_errors,
)
from streamrec.storage.faults import changed
from streamrec.storage.options import (
    OF_EVERY_FILESYSTEM,
    ClientOptions,
    build,
    check_endpoint,
    check_names,
    parameters_of,
)
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.urls import Glob, split_prefix

__all__ = ["GcsBackend", "connect"]

_LISTED: Final = "items(name,size,generation),nextPageToken"


async def connect(source: ClientOptions, policy: RetryPolicy) -> GcsBackend:
    """Makes a session in the running loop.

    Raises:
        StorageError: An option that gcsfs does not know, or that names nothing.
    """
    known = parameters_of(GCSFileSystem, EverySize) | OF_EVERY_FILESYSTEM
    check_names(source.url, "storage_options", source.options, known)
    check_endpoint(source.url, "endpoint_url", source.option("endpoint_url"))
    check_token(source.url, source.option("token"))
    session_names = parameters_of(aiohttp.ClientSession.__init__)
    check_names(source.url, "session_kwargs", source.option("session_kwargs") or {}, session_names)
    session = session_settings(source.option("session_kwargs"))
    filesystem = build(GCSFileSystem, source, keep_class=False, session_kwargs=session)
    await filesystem._set_session()
    return GcsBackend(filesystem, client_timeout(policy))


class GcsBackend(Backend):
    """One GCS client."""

    remote = True
    compares_first = False

    def __init__(self, filesystem: GCSFileSystem, timeout: aiohttp.ClientTimeout) -> None:
        self._api = GcsApi(filesystem, timeout)
        self.fast_paths = (BUFFERED_BODIES,)

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """One page of up to 1,000 names; directory markers are left out, and names that were not asked for."""
        scheme, bucket, key = split_prefix(prefix)
        query = {"prefix": key, "fields": _LISTED, "maxResults": "1000", "pageToken": token}
        page = await self._api.json(prefix, "GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query)
        infos = [
            ObjectInfo(f"{scheme}://{bucket}/{item['name']}", int(item["size"]), str(item["generation"]))
            for item in page.get("items", ())
            if item["name"].startswith(key) and not item["name"].endswith("/")
        ]
        after = page.get("nextPageToken")
        return infos, str(after) if after else None

    async def stat(self, path: str) -> ObjectInfo:
        return info_in(path, await self._api.metadata(path))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        query = {"alt": "media", "generation": version}
        with translate_errors(path, start, end):
            answer = await self._api.send(
                "GET", "/download/storage/v1" + resource(path), query, range_header(start, end)
            )
        try:
            if answer.status == 416:
                return past_the_end(await self.stat(path), start)
            await check(answer, path, start, end)
            info = ObjectInfo(path, size_in(answer, start, end), answer.headers.get("X-Goog-Generation") or version)
        except NotFoundError as missing:
            answer.close()
            await self._check_not_changed(path, start, version, missing)
            raise
        except BaseException:
            answer.close()
            raise
        return AiohttpBody(answer, info, start, end)

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """Begins nothing yet: an object of one part needs no resumable upload."""
        upload = GcsUpload(self._api, path, overwrite)
        await upload.prepare()
        return upload

    @property
    def endpoint(self) -> str:
        return self._api.endpoint

    async def copy(self, source: str, target: str) -> None:
        """A rewrite; several requests for a large object that goes to another kind of storage."""
        place = "/storage/v1" + resource(source) + "/rewriteTo" + resource(target)
        answer: dict[str, Any] = {}
        while not answer.get("done"):
            answer = await self._api.json(target, "POST", place, {"rewriteToken": answer.get("rewriteToken")})

    async def remove(self, path: str) -> None:
        with translate_errors(path):
            async with await self._api.send("DELETE", "/storage/v1" + resource(path)) as answer:
                await check(answer, path)

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _check_not_changed(self, path: str, start: int, version: str | None, missing: NotFoundError) -> None:
        """A generation that is gone is a 404; what is there instead tells whether the object was replaced."""
        if version is not None and (await self.stat(path)).version != version:
            raise changed(path, start) from missing
