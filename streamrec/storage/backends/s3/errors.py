"""Translates exceptions of s3fs, botocore and aiohttp into transient faults and final errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

import aiohttp
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from multidict import CIMultiDict

from streamrec.errors import (
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
    UploadEndedError,
)
from streamrec.storage.backends.http import responses as http_body
from streamrec.storage.faults import (
    Cause,
    TransientError,
    Translated,
    error_from_status,
    retry_after_seconds,
)

_FOREIGN = (boto.BotoCoreError, boto.ClientError, ResponseParserError, aiohttp.ClientError, OSError)
_MAX_SKEW = timedelta(minutes=15)
_DAMAGED_CODES = frozenset(
    {"InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "IncompleteBody"}
)


class PastTheEndError(StorageError):
    """A 416, with its headers."""

    headers: Mapping[str, str] = {}


class RefusedError(boto.BotoCoreError):  # type: ignore[misc]
    """The store refused the credentials, and they could not be renewed yet."""

    fmt = "{code}; {reason}"


class BadDigestError(TransientError):
    """The received bytes do not match their checksum."""


class NoSuchUploadError(UploadEndedError):
    """The multipart upload was completed, aborted or removed by a lifecycle rule."""


_LOG_IN = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; or pass "
    "storage_options={'key': ..., 'secret': "
    "...} (-o key=... -o secret=...); or {'anon': True} for a public bucket"
)
_PAYS = ", and requester_pays=True where readers pay"
_ENDED = (
    "the multipart upload was ended ({}): another writer began on the same name, or the bucket's"
    " lifecycle rule tidied it up; write the object again, with one writer"
)


def _translate(
    error: BaseException, path: str, start: int | None, end: int | None
) -> StorageError | TransientError:
    """Returns our error for an exception of s3fs, botocore or aiohttp."""
    if isinstance(error.__cause__, boto.ClientError):  # s3fs turns them into OSErrors
        error = error.__cause__
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, boto.ClientError):
        return _from_answer(error.response, path, start, end)
    if isinstance(
        error,
        boto.NoCredentialsError | boto.PartialCredentialsError | boto.UnauthorizedSSOTokenError,
    ):
        return PermissionDeniedError(f"no credentials ({said}): {_LOG_IN}", path)
    if isinstance(error, boto.SSLError):
        return http_body.tls_failed(said, path, start, end)
    if isinstance(
        error, boto.EndpointConnectionError | boto.ConnectTimeoutError | boto.ProxyConnectionError
    ):
        return TransientError(Cause.CONNECT, said)
    if isinstance(error, boto.ReadTimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError):
        return TransientError(Cause.BROKEN, said)
    if isinstance(error, ResponseParserError):
        return TransientError(Cause.WRONG_ANSWER, said)
    if isinstance(error, RefusedError):
        return TransientError(Cause.REFUSED, str(error))
    if isinstance(error, boto.CredentialRetrievalError):
        return TransientError(Cause.CREDENTIALS, said)
    if isinstance(error, boto.BotoCoreError):
        return StorageError(
            f"the request cannot be made ({said}): check the storage options", path, start, end
        )
    return http_body.translate(error, path, start, end)


def _from_answer(
    answer: Mapping[str, Any], path: str, start: int | None, end: int | None
) -> StorageError | TransientError:
    """Returns our error for an error document of S3."""
    meta = answer.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 500))
    fault = answer.get("Error", {})
    code = str(fault.get("Code", ""))
    message = str(fault.get("Message", ""))
    if status == 416:
        past = PastTheEndError(message, path, start, end)
        past.headers = CIMultiDict(meta.get("HTTPHeaders", {}))
        return past
    if code == "NoSuchUpload":
        return NoSuchUploadError(_ENDED.format(message), path, start, end)
    if code == "BadDigest":
        return BadDigestError(Cause.DAMAGED, f"{code}: {message}")
    if code in _DAMAGED_CODES:
        return TransientError(Cause.DAMAGED, f"{code}: {message}")
    if status in (405, 501):
        return UnsupportedOperationError(
            f"the store cannot do this ({code}: {message})", path, start, end
        )
    headers = meta.get("HTTPHeaders", {})
    server_time = str(fault.get("ServerTime", ""))
    if code == "403":  # a HEAD has no body with the reason
        server_time = _find_skewed_time(headers.get("date"))
        code = "RequestTimeTooSkewed" if server_time else code
    if server_time:
        message += f" The store's shows {server_time}"
    region = str(fault.get("Region") or headers.get("x-amz-bucket-region") or "")
    wait = retry_after_seconds(headers.get("retry-after"))
    return error_from_status(
        status, message, path, start, end, code=code, region=region, retry_after=wait, advice=_PAYS
    )


def _find_skewed_time(date: str | None) -> str:
    """Returns the time of the store's clock if ours differs by more than S3 tolerates, else ""."""
    try:
        then = parsedate_to_datetime(date or "")
    except ValueError:
        return ""
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return then.isoformat() if abs(datetime.now(UTC) - then) > _MAX_SKEW else ""


translate_errors = partial(Translated, _FOREIGN, _translate)


def is_of_the_store(error: boto.ClientError) -> bool:
    """Whether the store is busy, so that any request would fail now."""
    return _status(error) >= 500 or _status(error) == 429


def is_of_the_object(error: boto.ClientError) -> bool:
    """Whether the object is the reason, so that the client would fail as well: it is missing,
    replaced, or shorter.
    """
    return _status(error) in (404, 412, 416)


def is_of_the_network(error: Exception) -> bool:
    """Whether the client would fail in the same way. (Its session wraps every unknown error, bugs
    included.)
    """
    if isinstance(error, boto.HTTPClientError) and type(error) is boto.HTTPClientError:
        return isinstance(error.kwargs.get("error"), aiohttp.ClientError | OSError)
    return isinstance(error, boto.BotoCoreError | aiohttp.ClientError | OSError)


def _status(error: boto.ClientError) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status
