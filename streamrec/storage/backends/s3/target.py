"""The object that an upload to S3 writes: the requests that look at its name, or remove it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streamrec.errors import NotFoundError, ObjectChangedError, PermissionDeniedError
from streamrec.storage.backend import MARK
from streamrec.storage.backends.s3.client_uploads import ClientUploads
from streamrec.storage.backends.s3.errors import translate_errors
from streamrec.storage.faults import exists_error
from streamrec.storage.urls import split_object


class S3Target:
    """One bucket and key, and the mark that its writer's object gets.

    Attributes:
        path: The URL.
        place: Bucket and key, as arguments of a request.
        mark: The token in the object's metadata.
    """

    def __init__(self, client: ClientUploads, path: str, mark: str) -> None:
        bucket, key = split_object(path)
        self.path = path
        self.place = {"Bucket": bucket, "Key": key}
        self.mark = mark
        self._client = client

    @property
    def metadata(self) -> dict[str, Any]:
        """The user's metadata with the mark, as arguments of a request."""
        theirs = self._client.filesystem.s3_additional_kwargs.get("Metadata") or {}
        return {"Metadata": {**theirs, MARK: self.mark}}

    async def call(self, verb: str, **parameters: Any) -> Mapping[str, Any]:
        """Sends a request about this object."""
        with translate_errors(self.path):
            return await self._client.call(verb, **parameters, **self.place)

    async def head(self) -> Mapping[str, Any] | None:
        """The answer to HEAD, with the checksum if the store has one; None without an object."""
        try:
            return await self.call("head_object", ChecksumMode="ENABLED")
        except NotFoundError:
            return None

    async def refuse_existing(self) -> None:
        """Raises AlreadyExistsError if the name is taken: not every store honours the condition of
        the last request. A client that may not look relies on it.
        """
        with suppress(PermissionDeniedError):
            if await self.head() is not None:
                raise exists_error(self.path)

    async def remove(self, etag: str | None) -> None:
        """Removes our object if its etag is known; a missing or replaced object is not an error."""
        if etag is not None:
            with suppress(NotFoundError, ObjectChangedError):
                await self.call("delete_object", IfMatch=etag)
