"""S3, and whatever speaks its protocol, through s3fs.

s3fs brings what is tedious: credentials, regions, signing, options. What it does badly is done here by hand
on its `_call_s3`: a streamed GET whose connection is freed (its own `close` leaks it), multipart uploads
that are aborted on cancellation (its own leave orphans), and no retries (it nests five of its own around
five of botocore's).

Versions are etags. They are pinned with If-Match, so a changed object is a 412 before the first byte.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from s3fs import S3FileSystem

from streamrec.errors import ObjectChangedError, PermissionDeniedError, StorageError
from streamrec.storage import http_body
from streamrec.storage.backend import BLOCK_BYTES, Body, EmptyBody, ObjectInfo, PartSink
from streamrec.storage.credentials import Renewal
from streamrec.storage.faults import (
    Cause,
    TransientError,
    changed,
    from_status,
    http_body_range,
    retry_after_seconds,
)
from streamrec.storage.fsspec_options import Source, build
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.s3_credentials import watch_credentials
from streamrec.storage.shield import finish
from streamrec.storage.urls import split_object, split_prefix

__all__ = ["S3Backend", "connect"]

MAX_PARTS: Final = 10_000
_FOREIGN = (boto.BotoCoreError, boto.ClientError, ResponseParserError, aiohttp.ClientError, OSError)


async def connect(source: Source, policy: RetryPolicy) -> S3Backend:
    """Makes a client in the running loop."""
    config = {**_client_config(source, policy), **(source.option("config_kwargs") or {})}
    filesystem = build(S3FileSystem, source, config_kwargs=config)
    filesystem.retries = 1
    with _seam(f"{source.protocol}://"):
        await filesystem.set_session()
    return S3Backend(filesystem, watch_credentials(filesystem))


def _client_config(source: Source, policy: RetryPolicy) -> dict[str, Any]:
    """Settings of botocore below the user's own: one attempt, a pool that never starves, lean checksums."""
    config: dict[str, Any] = {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": 128,
        "connect_timeout": policy.connect_timeout,
        "read_timeout": policy.stall_timeout,  # of a body; heads have ours, around each request
        "response_checksum_validation": "when_required",  # some servers send the whole object's on a 206
    }
    client = source.option("client_kwargs") or {}
    endpoint = source.option("endpoint_url") or client.get("endpoint_url") or ""
    if endpoint.startswith("http:"):
        config["request_checksum_calculation"] = "when_required"  # over TLS the default is the cheaper one
    return config


class S3Backend:
    """One S3 client.

    Args:
        filesystem: An asynchronous S3FileSystem whose session was made in the running loop.
        renewal: How its credentials are renewed, if they can be; closed with the backend.
    """

    block_bytes = BLOCK_BYTES
    remote = True

    def __init__(self, filesystem: S3FileSystem, renewal: Renewal | None = None) -> None:
        self._fs = filesystem
        self._renewal = renewal

    async def list_page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """One page of up to 1,000 keys; directory markers are left out."""
        scheme, bucket, key = split_prefix(prefix)
        more = {"ContinuationToken": token} if token else {}
        with _seam(prefix):
            page = await self._fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=key, **more)
        infos = [
            ObjectInfo(f"{scheme}://{bucket}/{item['Key']}", item["Size"], item.get("ETag"))
            for item in page.get("Contents", ())
            if not item["Key"].endswith("/")
        ]
        return infos, page["NextContinuationToken"] if page.get("IsTruncated") else None

    async def stat(self, path: str) -> ObjectInfo:
        """A HEAD."""
        bucket, key = split_object(path)
        with _seam(path):
            head = await self._fs._call_s3("head_object", Bucket=bucket, Key=key)
        return ObjectInfo(path, head["ContentLength"], head.get("ETag"))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """A streamed GET."""
        bucket, key = split_object(path)
        extra = http_body.range_header(start, end)
        if version:
            extra["IfMatch"] = version
        try:
            with _seam(path, start, end):
                response = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, **extra)
        except _PastTheEndError:
            return EmptyBody(await self._stat_past_the_end(path, start, version))
        return _body(response, path, start, end)

    async def begin_upload(self, path: str) -> PartSink:
        """Sends nothing yet: an object of one part needs no multipart upload."""
        bucket, key = split_object(path)
        return S3Upload(self._fs, path, bucket, key)

    async def aclose(self) -> None:
        """Closes the client's connections."""
        if self._renewal is not None:
            await self._renewal.aclose()
        creator = getattr(self._fs, "_s3creator", None)
        if creator is not None:
            await creator.__aexit__(None, None, None)

    async def _stat_past_the_end(self, path: str, start: int, version: str | None) -> ObjectInfo:
        """A 416 tells no version, so ask for it; the end must really lie there."""
        info = await self.stat(path)
        if version is not None and info.version != version:
            raise changed(path, start)
        if info.size is not None and start < info.size:
            raise TransientError(Cause.WRONG_RANGE, f"a 416 for byte {start:,} of {info.size:,}")
        return info


class S3Upload:
    """A multipart upload, or one PUT where there is only one part.

    Bodies go out as BytesIO: aiohttp then writes them in pieces and lets the event loop breathe between.

    Args:
        filesystem: As for S3Backend.
        path: The object's URL.
        bucket: Its bucket.
        key: Its key.
    """

    parallel = 1_000

    def __init__(self, filesystem: S3FileSystem, path: str, bucket: str, key: str) -> None:
        self._fs = filesystem
        self._path = path
        self._place = {"Bucket": bucket, "Key": key}
        self._id: str | None = None
        self._starting = asyncio.Lock()
        self._etags: dict[int, str] = {}
        self._size = 0
        self._only: bytes | None = None
        self._doubt = False

    async def put_part(self, index: int, offset: int, data: bytes, last: bool) -> None:
        """Uploads a part; an only part waits for `complete`."""
        if last:
            self._size = offset + len(data)
        if last and index == 0:
            self._only = data
            return
        if index >= MAX_PARTS:
            raise StorageError(f"S3 takes {MAX_PARTS:,} parts at most: pass a larger part_size", self._path, offset)
        upload = await self._start()
        with _seam(self._path, offset, offset + len(data)):
            part = await self._fs._call_s3(
                "upload_part", UploadId=upload, PartNumber=index + 1, Body=io.BytesIO(data), **self._place
            )
        self._etags[index] = part["ETag"]

    async def complete(self) -> ObjectInfo:
        """Makes the object visible."""
        with _seam(self._path):
            if self._only is not None:
                done = await self._fs._call_s3("put_object", Body=io.BytesIO(self._only), **self._place)
            else:
                done = await self._complete_parts()
        return ObjectInfo(self._path, self._size, done.get("ETag"))

    async def abort(self) -> None:
        """Frees the parts. An upload that the store no longer knows is fine."""
        self._only = None
        if self._id is not None:
            try:
                with _seam(self._path):
                    await self._fs._call_s3("abort_multipart_upload", UploadId=self._id, **self._place)
            except _NoSuchUploadError:
                pass
            self._id = None

    async def _start(self) -> str:
        """The upload's id: the first part that comes along asks for it."""
        async with self._starting:
            if self._id is None:
                await finish(self._create())  # cut off half way, nobody would know what to abort
            return str(self._id)

    async def _create(self) -> None:
        with _seam(self._path):
            made = await self._fs._call_s3("create_multipart_upload", **self._place)
        self._id = made["UploadId"]

    async def _complete_parts(self) -> Mapping[str, Any]:
        parts = [{"PartNumber": i + 1, "ETag": etag} for i, etag in sorted(self._etags.items())]
        doubt, self._doubt = self._doubt, True
        try:
            with _seam(self._path):
                done: Mapping[str, Any] = await self._fs._call_s3(
                    "complete_multipart_upload",
                    UploadId=self._id,
                    MultipartUpload={"Parts": parts},
                    **self._place,
                )
        except _NoSuchUploadError:
            if not doubt:
                raise
            return await self._completed_before(len(parts))
        return done

    async def _completed_before(self, parts: int) -> Mapping[str, Any]:
        """The upload is gone after an attempt without an answer: did that succeed? The object tells."""
        head: Mapping[str, Any] = await self._fs._call_s3("head_object", **self._place)
        if head["ContentLength"] != self._size or not head["ETag"].strip('"').endswith(f"-{parts}"):
            raise ObjectChangedError("the upload is gone and another object is there: write it again", self._path)
        return head


class _PastTheEndError(StorageError):
    """A 416."""


class _NoSuchUploadError(StorageError):
    """The multipart upload was completed, aborted or tidied away."""


@contextmanager
def _seam(path: str, start: int | None = None, end: int | None = None) -> Iterator[None]:
    """Translates what comes out of s3fs."""
    try:
        yield
    except (StorageError, TransientError):
        raise
    except _FOREIGN as error:
        raise _translate(error, path, start, end) from error


def _translate(error: BaseException, path: str, start: int | None, end: int | None) -> StorageError | TransientError:
    """What an exception of s3fs, botocore or aiohttp means."""
    if isinstance(error.__cause__, boto.ClientError):  # s3fs makes OSErrors of them
        error = error.__cause__
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, boto.ClientError):
        return _from_answer(error.response, path, start, end)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.UnauthorizedSSOTokenError):
        return PermissionDeniedError(f"no credentials ({said}): pass key and secret, or anon=True", path)
    if isinstance(error, boto.SSLError):
        return StorageError(f"the server's certificate was refused ({said})", path, start, end)
    if isinstance(error, boto.EndpointConnectionError | boto.ConnectTimeoutError | boto.ProxyConnectionError):
        return TransientError(Cause.CONNECT, said)
    if isinstance(error, boto.ReadTimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError):
        return TransientError(Cause.BROKEN, said)
    if isinstance(error, ResponseParserError):
        return TransientError(Cause.SERVER, said)
    if isinstance(error, boto.CredentialRetrievalError):
        return TransientError(Cause.CREDENTIALS, said)
    if isinstance(error, boto.BotoCoreError):
        return StorageError(f"the request cannot be made ({said})", path, start, end)
    return http_body.translate(error, path, start, end)


def _from_answer(
    answer: Mapping[str, Any], path: str, start: int | None, end: int | None
) -> StorageError | TransientError:
    """What an error document of S3 means."""
    meta = answer.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 500))
    fault = answer.get("Error", {})
    code, message = str(fault.get("Code", "")), str(fault.get("Message", ""))
    if status == 416:
        return _PastTheEndError(message, path, start, end)
    if code == "NoSuchUpload":
        return _NoSuchUploadError(message, path, start, end)
    wait = retry_after_seconds(meta.get("HTTPHeaders", {}).get("retry-after"))
    return from_status(status, message, path, start, end, code=code, retry_after=wait)


def _body(response: Mapping[str, Any], path: str, start: int, end: int | None) -> Body:
    """The body of a GET, once its range was found right."""
    raw = response["Body"].raw_stream
    headers = {"Content-Length": str(response.get("ContentLength", ""))}
    if "ContentRange" in response:
        headers["Content-Range"] = response["ContentRange"]
    try:
        size = http_body_range(response["ResponseMetadata"]["HTTPStatusCode"], headers, start, end)
    except TransientError:
        raw.close()
        raise
    return http_body.AiohttpBody(raw, ObjectInfo(path, size, response.get("ETag")), start, end)
