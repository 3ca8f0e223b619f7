"""Google Cloud Storage, through gcsfs's credentials and session; this module makes the requests.

gcsfs has no streamed read, retries by itself, waits without any limit, and its default class first
queries a gRPC service about each bucket. So this backend uses only gcsfs's tedious parts: finding
and refreshing credentials (in a thread: it blocks), requester-pays parameters, and the session. The
API is that of cloud.google.com/storage/docs/json_api; credentials and requests are in `gcs/api.py`,
uploads in `gcs/uploads.py`.

Versions are generations. A pinned one is requested by number; if the store has only another one by
then, that is an ObjectChangedError.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from gcsfs import GCSFileSystem as EverySize
from gcsfs.core import GCSFileSystem

from streamrec.display import shorten
from streamrec.errors import NotFoundError
from streamrec.storage.backend import (
    MARK,
    Backend,
    Body,
    Held,
    ObjectInfo,
    PartSink,
    Precondition,
    Replaced,
    UploadTerms,
)
from streamrec.storage.backends.gcs.api import (
    GcsApi,
    check,
    check_token,
    info_in,
    read_json,
    resource,
)
from streamrec.storage.backends.gcs.upload_requests import condition_of, multipart_body
from streamrec.storage.backends.gcs.uploads import GcsUpload
from streamrec.storage.backends.http.responses import (
    BUFFERED_BODIES,
    AiohttpBody,
    body_past_the_end,
    client_timeout,
    first_bytes,
    info_of_answer,
    is_doubtful,
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
)
from streamrec.storage.options import (
    COMMON_OPTIONS,
    ClientOptions,
    build,
    check_endpoint,
    check_names,
    parameter_names,
)
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
    """Google Cloud Storage, by its JSON API."""

    remote = True
    splits = True
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
            head = b""
            if is_doubtful(answer, found):
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
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        """Sends a rewrite; several requests for a large object that goes to another storage class.

        fake-gcs-server ignores the conditions.
        """
        place = "/storage/v1" + resource(source) + "/rewriteTo" + resource(target)
        conditions = {"ifSourceGenerationMatch": source_version, **condition_of(replaces)}
        answer: dict[str, Any] = {}
        while not answer.get("done"):
            token = answer.get("rewriteToken")
            answer = await self._api.json(
                target, "POST", place, {"rewriteToken": token, **conditions}
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
        query = {"uploadType": "multipart", "name": key, **condition_of(replaces)}
        boundary = secrets.token_hex(16)
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        body = multipart_body(boundary, {"name": key}, [memoryview(data)])
        with translate_errors(path):
            async with await self._api.send("POST", place, query, headers, body) as answer:
                await check(answer, path)
                return info_in(path, await read_json(answer)).version

    async def aclose(self) -> None:
        await self._api.aclose()
