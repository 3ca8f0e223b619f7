"""Repeats the client's first GET of a bucket for its other objects.

A GET through the client costs 1.5 to 2 ms of processor time. Most of it goes into work that is the
same for all objects of a bucket (parameters, endpoint rules, headers) and into parsing an answer of
which three headers are needed. Small shards and ranges are many requests, so it matters: a repeated
GET costs a third.

Rules:
- The client sends the first GET of a bucket. A hook (botocore's `before-send`) records it: URL up
  to the key, headers, and how it was signed. GETs of further objects repeat it.
- It is a `FastPath`: if it fails, or the store refuses a repeated GET and then serves the client
  itself, it is disabled for the bucket permanently. Until a repeated GET succeeds, the repetition
  may be the cause of each error, unless the store is busy; later only of errors that are not about
  the object.
- The client's own signer signs each repeated GET, and its own HTTP session sends it: renewed
  credentials, proxies and certificates work as before. The client's parser parses errors, and they
  are raised as the client's own.
- It is not used for a bucket whose GETs look unexpected: a URL that does not end with the key, an
  older signature.
- After refused credentials are renewed, the request is sent once more, as by the client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiobotocore.endpoint
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from s3fs import S3FileSystem

from streamrec.storage.backend import FastPath
from streamrec.storage.backends.s3.credentials import EXPIRED, renew
from streamrec.storage.backends.s3.errors import (
    is_of_the_network,
    is_of_the_object,
    is_of_the_store,
)
from streamrec.storage.tasks import Renewal

_OF_ONE_REQUEST: Final = frozenset(
    {
        "range",
        "if-match",
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-security-token",
        "x-amz-s3session-token",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
    }
)
"""Headers that are specific to one request, or that its signature adds."""


_quote_key = partial(quote, safe="/~")


class Response(NamedTuple):
    """A response whose head has arrived."""

    status: int
    headers: Mapping[str, str]
    raw: Any


FirstGet = Callable[[str, str, Mapping[str, str]], Awaitable[Response]]
"""Sends a GET of a bucket and key, with headers, by the client."""


@dataclass(frozen=True, slots=True)
class _Template:
    """The recorded GET of a bucket, without the key."""

    base: str
    headers: Mapping[str, Any]
    context: Mapping[str, Any]


class RepeatedGets:
    """The repeated GETs of one filesystem."""

    def __init__(
        self, filesystem: S3FileSystem, first_get: FirstGet, renewal: Renewal | None = None
    ) -> None:
        self._fs = filesystem
        self._first_get = first_get
        self._renewal = renewal
        self.fast_path = FastPath(
            "repeating the client's GET requests (streamrec.storage.backends.s3.repeated_gets)"
        )
        self._unproven: dict[str, _Template] = {}
        self._proven: dict[str, _Template] = {}
        for events in (
            filesystem._s3.meta.events,
            filesystem.session.get_component("event_emitter"),
        ):
            events.register_last(
                "before-send.s3.GetObject", self._record, unique_id="streamrec-gets"
            )

    async def get(self, bucket: str, key: str, headers: Mapping[str, str]) -> Response:
        """Sends a GET with Range and If-Match, by the client if it cannot be repeated; the errors
        are the client's.
        """
        template = self._proven.get(bucket) or self._unproven.get(bucket)
        answer: Response | None = None
        refused: ClientError | None = None
        if template is not None and self.fast_path.is_enabled(bucket):
            try:
                answer = await self._send(template, bucket, key, headers)
            except ClientError as error:
                if is_of_the_store(error) or (bucket in self._proven and is_of_the_object(error)):
                    raise
                refused = error
            except Exception as error:
                if is_of_the_network(error):
                    raise
                self.fast_path.disable(bucket, error)
        if answer is None:
            answer = await self._first_get(bucket, key, headers)
        if refused is not None:  # and the client was not: the template is wrong
            self.fast_path.disable(bucket, refused)
        elif bucket in self._unproven:
            self._proven[bucket] = self._unproven.pop(bucket)
        return answer

    async def _send(
        self, template: _Template, bucket: str, key: str, headers: Mapping[str, str]
    ) -> Response:
        client = await self._fs.get_s3(bucket)
        for attempt in range(2):
            url = template.base + _quote_key(key)
            headers = {**template.headers, **headers}
            request = AWSRequest("GET", url, headers, stream_output=True)
            request.context.update(template.context)
            await client._request_signer.sign("GetObject", request)
            answer = await client._endpoint.http_session.send(request.prepare())
            if answer.status_code < 300:
                break
            error = await _parse_error(client, answer)
            code = error.response.get("Error", {}).get("Code")
            if attempt or code not in EXPIRED or self._renewal is None:
                raise error
            await renew(self._renewal, request.context, code)
        return Response(answer.status_code, answer.headers, answer.raw)

    def _record(self, request: Any, **_: Any) -> None:
        """Records a GET of the client unless it looks unexpected; an error here must not stop
        it.
        """
        try:
            context = request.context
            bucket, key = (
                context.get("input_params", {}).get(name, "") for name in ("Bucket", "Key")
            )
            headers = {
                name: value.decode() if isinstance(value, bytes) else value
                for name, value in request.headers.items()
            }
            # Only a request whose URL and signature are as this module makes them is repeated.
            is_signed_as_usual = headers.get("Authorization", "AWS4").startswith("AWS4")
            if (
                bucket
                and key
                and request.url.endswith(f"/{_quote_key(key)}")
                and is_signed_as_usual
            ):
                base = request.url.removesuffix(_quote_key(key))
                kept = {
                    name: value
                    for name, value in headers.items()
                    if name.lower() not in _OF_ONE_REQUEST
                }
                signing = {
                    name: context[name] for name in ("auth_type", "signing") if name in context
                }
                self._unproven[bucket] = _Template(
                    base, kept, {"client_config": context["client_config"], **signing}
                )
        except Exception as error:
            self.fast_path.disable("all buckets of this client", error)


async def _parse_error(client: Any, answer: Any) -> ClientError:
    """Returns the error that the client would raise."""
    model = client.meta.service_model.operation_model("GetObject")
    response = await aiobotocore.endpoint.convert_to_response_dict(answer, model)
    return ClientError(
        await client._response_parser.parse(response, model.output_shape), "GetObject"
    )
