"""Requests with a body, sent from the pieces that it lies in (`http/pieces_body.py`).

That the client hands a body of ours to aiohttp as it is, is a detail of its own, so this is a fast path
(`fast_path.py`). What the client's users send is a BytesIO, and it stands in:

- for a body that is sent again, whatever happened to it before;
- once more where the first bodies of all are refused, unless it is the network, a busy store or the object. If the
  store then takes it, and wherever ours fails by itself, all further ones are BytesIO, too.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError
from s3fs import S3FileSystem

from streamrec.storage.backends.fast_path import FastPath
from streamrec.storage.backends.http.pieces_body import PiecesBody
from streamrec.storage.backends.s3.errors import is_of_the_network, is_of_the_object, is_of_the_store

__all__ = ["Bodies"]

ALL = "all buckets of this client"


class Bodies:
    """The bodies of one client's requests.

    Args:
        filesystem: An asynchronous S3FileSystem whose session was made.
    """

    def __init__(self, filesystem: S3FileSystem) -> None:
        self._fs = filesystem
        self._proven = False
        self.fast_path = FastPath("sending bodies from where they lie (streamrec.storage.backends.s3.bodies)")

    async def send(self, verb: str, pieces: Sequence[memoryview], again: bool, **parameters: Any) -> Mapping[str, Any]:
        """One request.

        Args:
            verb: The client's name for it.
            pieces: The body.
            again: Whether this body was sent before.
            parameters: As the client takes them.

        Raises:
            Exception: As the client.
        """
        if again or not self.fast_path.is_open(ALL):
            return await self._joined(verb, pieces, parameters)
        body = PiecesBody(pieces)
        try:
            answer: Mapping[str, Any] = await self._fs._call_s3(verb, Body=body, **parameters)
        except Exception as error:
            if body.failure is None and (self._proven or _meets_anybody(error)):
                raise
            refused = body.failure or error
        else:
            self._proven = True
            return answer
        answer = await self._joined(verb, pieces, parameters)
        self.fast_path.leave(ALL, refused)
        return answer

    async def _joined(
        self, verb: str, pieces: Sequence[memoryview], parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = await self._fs._call_s3(verb, Body=io.BytesIO(b"".join(pieces)), **parameters)
        return answer


def _meets_anybody(error: Exception) -> bool:
    """Whether the same request would fail in this way, whatever kind of body it has."""
    error = error.__cause__ if isinstance(error.__cause__, ClientError) else error  # s3fs makes OSErrors of them
    if isinstance(error, ClientError):
        return is_of_the_store(error) or is_of_the_object(error)
    return is_of_the_network(error)
