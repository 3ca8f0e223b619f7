"""The status of each error. The text is the error's own: it names path, byte and record, and says
what to do.

An error after the head of the response cannot have a status: see `streaming.py`.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse

import streamrec

__all__ = ["HANDLERS", "RequestError"]


class RequestError(ValueError):
    """The client's request is invalid.

    Args:
        reason: What is wrong, where, and what to write.
        status: The status: 400, or a more specific one.
    """

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


STATUS: Final[dict[type[Exception], int]] = {
    streamrec.NotFoundError: 404,
    streamrec.errors.ObjectChangedError: 409,  # the index is older than the shard
    streamrec.errors.AlreadyExistsError: 412,  # If-None-Match: *
    streamrec.CorruptRecordError: 502,  # the store answers, and what it has is damaged
    streamrec.errors.TruncatedShardError: 502,
    streamrec.errors.ManifestError: 502,
    streamrec.errors.IntegrityError: 502,
    streamrec.errors.PermissionDeniedError: 502,  # the service's credentials, not the client's
    streamrec.errors.StorageTimeoutError: 503,
    streamrec.errors.ThrottledError: 503,
    streamrec.StorageError: 503,
}
"""By the nearest class above an error's own."""


async def failed(request: Request, error: Exception) -> JSONResponse:
    """Returns the response for an error."""
    if isinstance(error, RequestError):
        status = error.status
    else:
        status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    body: dict[str, Any] = {"error": str(error)}
    for name in ("record", "offset"):
        if getattr(error, name, None) is not None:
            body[name] = getattr(error, name)
    return JSONResponse(body, status, headers={"retry-after": "1"} if status == 503 else None)


HANDLERS: Final = dict.fromkeys([*STATUS, RequestError], failed)
