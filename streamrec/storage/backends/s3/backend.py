"""S3 and compatible stores, through s3fs.

s3fs does the tedious parts: credentials, regions, signing, options. This module does by its
`_call_s3` what s3fs does badly: a streamed GET that frees its connection (s3fs' own `close` leaks
it), uploads (`s3/uploads.py`), and no retries (s3fs nests five of its own around five of
botocore's).

Versions are etags. They are pinned with If-Match, so a changed object is a 412 before the first
byte.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache, partial
from typing import Any, Final

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.awsrequest import HeadersDict
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    DataNotFoundError,
    ParamValidationError,
    ProfileNotFound,
    UnknownServiceError,
)
from botocore.loaders import Loader
from botocore.session import Session
from botocore.utils import parse_timestamp
from s3fs import S3FileSystem

from streamrec.display import display_name
from streamrec.errors import StorageError, UnsupportedOperationError
from streamrec.storage.backend import (
    MARK,
    Backend,
    Body,
    FastPath,
    Held,
    ObjectInfo,
    PartSink,
    Precondition,
    Replaced,
    UploadTerms,
)
from streamrec.storage.backends.http import responses as http_body
from streamrec.storage.backends.http.responses import BUFFERED_BODIES
from streamrec.storage.backends.s3.answers import check_answer
from streamrec.storage.backends.s3.client_uploads import ClientUploads
from streamrec.storage.backends.s3.credentials import watch_credentials
from streamrec.storage.backends.s3.errors import PastTheEndError, translate_errors
from streamrec.storage.backends.s3.repeated_gets import RepeatedGets, Response
from streamrec.storage.backends.s3.uploads import S3Upload
from streamrec.storage.faults import (
    Cause,
    RetryPolicy,
    TransientError,
    changed_error,
    http_body_range,
)
from streamrec.storage.options import (
    COMMON_OPTIONS,
    ClientOptions,
    build,
    check_endpoint,
    check_names,
    parameter_names,
)
from streamrec.storage.tasks import Renewal
from streamrec.storage.urls import Glob, split_object, split_prefix

logger = logging.getLogger("streamrec")

MAX_COPIED: Final = 5 << 30
"""Bytes that S3 copies with one request."""

KEPT: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
    "Metadata",
    "StorageClass",
)
"""Properties that a copy in parts does not preserve by itself, named as in the answer to a
HeadObject."""

UNLIMITED: Final = 1 << 16
"""Connections in a pool; see `http_body.session_settings`."""


async def connect(source: ClientOptions, policy: RetryPolicy) -> S3Backend:
    """Makes a client in the running loop; refuses options that s3fs or botocore does not know."""
    _check_options(source)
    users = source.option("config_kwargs") or {}
    if "max_pool_connections" in users:
        logger.info(
            "max_pool_connections=%r is ignored, because open shards would wait for each other's "
            "connections; "
            "num_parallel_reads sets how many are open",
            users["max_pool_connections"],
        )
    # TLS protects bodies in transit, and the signed CRC32C up to the disk; SHA-256 would cost more
    # than both
    s3 = {"payload_signing_enabled": False, **(users.get("s3") or {})}
    config = {
        "http_session_cls": OwnHostSession,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": policy.connect_timeout,
        "read_timeout": policy.stall_timeout,  # of a body; the request layer limits the head
        # some servers send the whole object's on a 206
        "response_checksum_validation": "when_required",
        "request_checksum_calculation": "when_required",  # uploads compute their own
        **users,
        "s3": s3,
        "max_pool_connections": UNLIMITED,
    }
    filesystem = build(S3FileSystem, source, config_kwargs=config)
    filesystem.retries = 1
    try:
        if filesystem.session is None:
            filesystem.session = await asyncio.to_thread(
                _make_session, filesystem.kwargs
            )  # parsing takes long
        with translate_errors(f"{source.protocol}://"):
            await filesystem.set_session()
        client = filesystem._s3.meta
        if client.endpoint_url.startswith("http:") and "payload_signing_enabled" not in (
            users.get("s3") or {}
        ):
            client.config.s3.pop("payload_signing_enabled", None)
    except ProfileNotFound as error:
        profiles = ", ".join(AioSession().available_profiles) or "none"
        raise StorageError(
            f"{error}; profiles in the AWS configuration files: {profiles}", source.url
        ) from error
    has_keys = filesystem.anon or filesystem.key is not None
    return S3Backend(filesystem, None if has_keys else watch_credentials(filesystem))


def _check_options(source: ClientOptions) -> None:
    """Checks the names of all options, those for botocore included, before any request."""
    session = parameter_names(AioSession)
    check_names(
        source.url,
        "storage_options",
        source.options,
        parameter_names(S3FileSystem) | session | COMMON_OPTIONS,
    )
    client = source.option("client_kwargs") or {}
    check_names(
        source.url,
        "client_kwargs",
        client,
        parameter_names(Session.create_client) - {"service_name"},
    )
    config = {*Config.OPTION_DEFAULTS, *parameter_names(AioConfig)}
    check_names(source.url, "config_kwargs", source.option("config_kwargs") or {}, config)
    check_endpoint(source.url, "endpoint_url", source.option("endpoint_url"))
    check_endpoint(source.url, "client_kwargs['endpoint_url']", client.get("endpoint_url"))


class OwnHostSession(AIOHTTPSession):  # type: ignore[misc]
    """Follows no redirects, like botocore's own session: aiohttp would send the session token to
    another host. Answers of others in place of the store are refused (`answers.py`).
    """

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        object.__setattr__(
            session,
            "request",
            partial(aiohttp.ClientSession.request, session, allow_redirects=False),
        )
        return session

    async def send(self, request: Any) -> Any:
        """Sends a request. A redirect without a region is final: botocore would ask for the region
        without end.
        """
        answer = await super().send(request)
        place = answer.headers.get("location")
        if (
            answer.status_code in (301, 302, 307)
            and place
            and "x-amz-bucket-region" not in answer.headers
        ):
            raise StorageError(
                f"the store redirects to {display_name(place)}, and credentials are not sent "
                "there: pass the "
                "endpoint_url that serves the objects",
                request.url.partition("?")[0],
            )
        # The bytes of an object are not parsed, and `http_body_range` looks at their answer.
        if answer.status_code < 300 and not request.stream_output:
            host = request.url.partition("://")[2].partition("/")[0]
            body = await answer.content
            check_answer(request.method, answer.status_code, answer.headers, body, host)
        return answer


def _make_session(options: Mapping[str, Any]) -> AioSession:
    """Makes a session that shares botocore's service descriptions with others: parsing them costs
    60 ms per client.
    """
    session = AioSession(**options)
    session.register_component(
        "data_loader", _load_descriptions(session.get_config_variable("data_path"))
    )
    session.get_component("response_parser_factory").set_parser_defaults(
        timestamp_parser=_parse_time
    )
    return session


def _parse_time(value: Any) -> datetime:
    """Parses the time of an object: botocore's own parser takes three quarters of a listing's
    processor time.
    """
    is_iso = isinstance(value, str) and re.fullmatch(r"[\d-]{10}T[\d:]{8}(\.\d{3})?Z", value)
    return datetime.fromisoformat(value) if is_iso else parse_timestamp(value)


class DescriptionLoader(Loader):  # type: ignore[misc]
    """Loads service descriptions, and does not look into the folders of other services.

    To find out whether there is an "s3", botocore's own looks for each type of description in the
    folders of all 400 services: half of the time that loading takes.
    """

    def list_available_services(self, type_name: str) -> list[str]:
        """The names of all services, also of those that lack the type."""
        found = set()
        for folder in self.search_paths:
            with suppress(OSError), os.scandir(folder) as entries:
                found |= {entry.name for entry in entries if entry.is_dir()}
        return sorted(found)

    def load_service_model(
        self, service_name: str, type_name: str, api_version: str | None = None
    ) -> Any:
        """Loads a description; UnknownServiceError if the service lacks the type."""
        try:
            return super().load_service_model(service_name, type_name, api_version)
        except DataNotFoundError as error:
            known = ", ".join(self.list_available_services(type_name))
            raise UnknownServiceError(
                service_name=service_name, known_service_names=known
            ) from error


@contextmanager
def collections_paused() -> Iterator[None]:
    """Pauses Python's garbage collector, which looks for cycles among all objects of the process.

    Parsing makes 30,000 objects, none of them garbage. After torch was imported, they made the
    collector look through 250,000 objects: 120 ms, where parsing takes 35. At the end they join the
    old objects: otherwise each forked worker would look through them, and so copy them, in 15 ms.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.collect(1)
            gc.enable()


@cache
def _load_descriptions(data_path: str | None) -> Loader:
    """Returns a loader that has parsed the large service descriptions, once per process."""
    folders = data_path.split(os.pathsep) if data_path else []
    expanded = [os.path.expanduser(os.path.expandvars(folder)) for folder in folders]
    loader = DescriptionLoader(extra_search_paths=expanded)
    with collections_paused(), suppress(BotoCoreError):  # making the client raises it
        loader.load_data("endpoints")
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model("s3", kind)
    return loader


_load_descriptions(None)  # with this module, so that forked processes inherit them


class S3Backend(Backend):
    """S3, and all stores that speak its protocol."""

    remote = True
    splits = True
    verifies_first = False

    def __init__(self, filesystem: S3FileSystem, renewal: Renewal | None = None) -> None:
        self._fs = filesystem
        self.endpoint = str(filesystem._s3.meta.endpoint_url)
        self._renewal = renewal
        self._uploads: ClientUploads | None = None
        self._takes_conditions = True
        self._sending = FastPath(
            "sending bodies from where they are (streamrec.storage.backends.s3.client_uploads)"
        )
        self._repeated_gets = RepeatedGets(filesystem, self._first_get, renewal)
        self._bodies = FastPath(
            "reading bodies from aiohttp (streamrec.storage.backends.s3.backend)"
        )
        self.fast_paths = (
            self._repeated_gets.fast_path,
            self._bodies,
            self._sending,
            BUFFERED_BODIES,
        )

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """Returns one page of up to 1,000 keys, without directory markers and keys outside the
        prefix.
        """
        scheme, bucket, key = split_prefix(prefix)
        more = {"ContinuationToken": token} if token else {}
        with translate_errors(prefix):
            page = await self._fs._call_s3("list_objects_v2", Bucket=bucket, Prefix=key, **more)
        if (
            not {"Name", "IsTruncated"} & page.keys()
        ):  # botocore takes a login page for an empty listing
            raise TransientError(Cause.WRONG_ANSWER, "its answer is not a listing")
        infos = [
            ObjectInfo(
                f"{scheme}://{bucket}/{item['Key']}",
                item["Size"],
                item.get("ETag"),
                item.get("LastModified"),
            )
            for item in page.get("Contents", ())
            if item["Key"].startswith(key) and not item["Key"].endswith("/")
        ]
        return infos, page["NextContinuationToken"] if page.get("IsTruncated") else None

    async def stat(self, path: str) -> ObjectInfo:
        bucket, key = split_object(path)
        with translate_errors(path):
            return _info(path, await self._fs._call_s3("head_object", Bucket=bucket, Key=key))

    async def identify(self, path: str) -> Held:
        """Returns the token in the object's metadata: an etag depends on the bytes only."""
        bucket, key = split_object(path)
        with translate_errors(path):
            head = await self._fs._call_s3("head_object", Bucket=bucket, Key=key)
            return Held(_info(path, head), (head.get("Metadata") or {}).get(MARK))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        bucket, key = split_object(path)
        headers = http_body.range_header(start, end)
        if version:
            headers["If-Match"] = version
        try:
            with translate_errors(path, start, end):
                answer = await self._repeated_gets.get(bucket, key, headers)
        except PastTheEndError as error:
            body = await http_body.body_past_the_end(self.stat, path, start, error.headers)
            if version is not None and body.info.version != version:
                raise changed_error(path, start) from error
            return body
        raw = answer.raw
        etag = answer.headers.get("etag")
        head = b""
        # The body is aiohttp's, unless the client wraps it in an unknown way: see `fast_paths`.
        try:
            if isinstance(raw, aiohttp.ClientResponse):
                if http_body.is_doubtful(raw, etag):
                    with translate_errors(path, start, end):
                        head = await http_body.first_bytes(raw, path, etag, of_store=True)
                size = await http_body.size_of_answer(raw, self.stat, path, start, end)
            else:
                size = http_body_range(answer.status, answer.headers, start, end)
        except BaseException:
            raw.close()
            raise
        info = http_body.info_of_answer(path, size, etag, answer.headers)
        if isinstance(raw, aiohttp.ClientResponse):
            return http_body.AiohttpBody(raw, info, start, end, head=head)
        return ClientBody(raw, info, start, end)

    async def _first_get(self, bucket: str, key: str, headers: Mapping[str, str]) -> Response:
        """Sends a GET by the client, which `RepeatedGets` repeats for other objects."""
        extra = {name.replace("-", ""): value for name, value in headers.items()}
        response = await self._fs._call_s3("get_object", Bucket=bucket, Key=key, **extra)
        meta = response["ResponseMetadata"]
        body = response["Body"]
        wrapped = (
            getattr(body, name, None) for name in ("raw_stream", "_raw_stream", "__wrapped__")
        )  # of any release
        raw = next((each for each in wrapped if isinstance(each, aiohttp.ClientResponse)), None)
        if raw is None:
            self._bodies.disable(
                "all buckets of this client",
                f"no aiohttp.ClientResponse in a {type(body).__name__}",
            )
        return Response(
            meta["HTTPStatusCode"], HeadersDict(meta["HTTPHeaders"]), body if raw is None else raw
        )

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        """Cleans up after a killed writer; sends nothing yet: an object of one part needs no
        multipart upload.
        """
        self._uploads = self._uploads or ClientUploads(self._fs, self._sending, self.endpoint)
        upload = S3Upload(self._uploads, path, terms)
        await upload.prepare()
        return upload

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        """Sends a CopyObject, which keeps metadata and storage class; copies an object above 5 GiB
        in parts.

        AWS and SeaweedFS compare the target in the same step. Other stores ignore the condition, or
        refuse it: then the copy is sent without it. All compare the source.
        """
        theirs = self._fs.s3_additional_kwargs.items()
        keys = {
            f"CopySource{name}": value for name, value in theirs if name.startswith("SSECustomer")
        }
        bucket, key = split_object(source)
        new_bucket, new_key = split_object(target)
        with translate_errors(source):
            head = await self._fs._call_s3("head_object", Bucket=bucket, Key=key)
        if source_version not in (None, head.get("ETag")):
            raise changed_error(target)
        with translate_errors(target):
            if head["ContentLength"] > MAX_COPIED:
                if "?versionId=" in key + new_key:  # s3fs would truncate the name there
                    raise UnsupportedOperationError(
                        "objects above 5 GiB of such a name cannot be copied", target
                    )
                keys |= {name: head[name] for name in KEPT if name in head}
                await self._fs._cp_file(f"{bucket}/{key}", f"{new_bucket}/{new_key}", **keys)
                return None
            if "StorageClass" in head:
                keys["StorageClass"] = head["StorageClass"]
            place = {"Bucket": bucket, "Key": key}
            keys |= {"Bucket": new_bucket, "Key": new_key, "CopySource": place}
            if source_version is not None:
                keys["CopySourceIfMatch"] = source_version
        await self._send_conditional("copy_object", target, keys, _condition(replaces))
        return None

    async def remove(self, path: str, version: str | None = None) -> None:
        bucket, key = split_object(path)
        condition = {} if version is None else {"IfMatch": version}
        keys = {"Bucket": bucket, "Key": key}
        await self._send_conditional("delete_object", path, keys, condition)

    async def write_short(self, path: str, data: bytes, replaces: Replaced) -> str | None:
        bucket, key = split_object(path)
        with translate_errors(path):
            done = await self._fs._call_s3(
                "put_object", Bucket=bucket, Key=key, Body=data, **_condition(replaces)
            )
        return str(done["ETag"]) if "ETag" in done else None

    async def _send_conditional(
        self, verb: str, path: str, keys: Mapping[str, Any], condition: Mapping[str, str]
    ) -> None:
        """Sends a request with a condition that not every store knows; without it to a store that
        refuses such requests, because the caller has looked just before.
        """
        if condition and self._takes_conditions:
            try:
                with translate_errors(path):
                    await self._fs._call_s3(verb, {}, **keys, **condition)
                return
            except UnsupportedOperationError:
                self._takes_conditions = False
            except StorageError as error:
                if not isinstance(error.__cause__, ParamValidationError):  # an older botocore
                    raise
                self._takes_conditions = False
        with translate_errors(path):
            await self._fs._call_s3(verb, {}, **keys)

    async def aclose(self) -> None:
        if self._renewal is not None:
            await self._renewal.aclose()
        creator = getattr(self._fs, "_s3creator", None)
        if creator is not None:
            await creator.__aexit__(None, None, None)


def _info(path: str, head: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(path, head.get("ContentLength"), head.get("ETag"), head.get("LastModified"))


def _condition(replaces: Replaced) -> dict[str, str]:
    """Returns the condition of a request that replaces an object."""
    if isinstance(replaces, str):
        return {"IfMatch": replaces}
    return {"IfNoneMatch": "*"} if replaces is Precondition.ABSENT else {}


class ClientBody:
    """A Body over the client's own body, read by its public interface."""

    splits = True
    has_arrived = False  # as far as can be known

    def __init__(self, body: Any, info: ObjectInfo, start: int, end: int | None) -> None:
        self.info = info
        self._body = body
        self._start = start
        self._end = end

    async def readinto(self, buffer: memoryview) -> int:
        with translate_errors(self.info.path, self._start, self._end):
            data = await self._body.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    async def aclose(self) -> None:
        self._body.close()
