"""GETs from a bucket that was read before: what the client worked out for the first one is used again.

A GET through the client costs 1.5 to 2 ms of processor time. Most of it goes into what is the same for all objects of
a bucket (parameters, the rules that find the endpoint, headers) and into an answer of which three headers are wanted.
Small shards and ranges are many requests, so it matters: this way costs a third.

Rules:
- The client sends the first GET of a bucket. What it sent is noted as it leaves (botocore's `before-send`): URL up to
  the key, headers, where and how it was signed. Further objects are asked for in the same way.
- It is a `FastPath`: where it fails, or the store refuses what it asked for and then answers the client itself, the
  bucket is left to the client permanently. Before any of these requests was answered well, each error may be due to it,
  unless the store is busy; later only those that are not about the object.
- The client's own signer signs each further request, and its own HTTP session sends it: credentials that are renewed,
  proxies and certificates work as before. Its errors are parsed by the client's parser and raised as its own.
- A bucket whose GETs do not look as expected is left to the client: a URL that does not end with the key, an older
  kind of signature.
- A request whose credentials were refused is sent once more when they were renewed, as by the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiobotocore.endpoint
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from s3fs import S3FileSystem

from streamrec.storage.backend import FastPath
from streamrec.storage.backends.s3.credentials import EXPIRED, renew
from streamrec.storage.backends.s3.errors import is_of_the_network, is_of_the_object, is_of_the_store
from streamrec.storage.tasks import Renewal

__all__ = ["RepeatedGets", "Response"]

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
"""Headers that belong to one request, or that its signature adds."""


class Response(NamedTuple):
    """A response whose head has arrived."""

    status: int
    headers: Mapping[str, str]
    raw: Any


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a GET of one object was like."""

    base: str
    headers: Mapping[str, Any]
    context: Mapping[str, Any]


class RepeatedGets:
    """The further GETs of one filesystem."""

    def __init__(self, filesystem: S3FileSystem, renewal: Renewal | None = None) -> None:
        self._fs = filesystem
        self._renewal = renewal
        self.fast_path = FastPath("repeating the client's GET requests (streamrec.storage.backends.s3.repeated_gets)")
        self._try_encode: dict[str, _Sent] = {}
        self._proven: dict[str, _Sent] = {}
        self._refused: dict[tuple[str, str], ClientError] = {}
        for events in (filesystem._s3.meta.events, filesystem.session.get_component("event_emitter")):
            events.register_last("before-send.s3.GetObject", self._note, unique_id="streamrec-gets")

    def confirm(self, bucket: str, key: str) -> None:
        """The client's own GET was answered well: what was noted is right, unless it was refused for this object."""
        refused = self._refused.pop((bucket, key), None)
        if refused is not None:
            self.fast_path.leave(bucket, refused)
        elif bucket in self._try_encode:
            self._proven[bucket] = self._try_encode.pop(bucket)

    async def get(self, bucket: str, key: str, headers: Mapping[str, str]) -> Response | None:
        """One GET; None where the client itself is to send it.

        Args:
            headers: What is asked for: Range, If-Match.

        Raises:
            ClientError, BotoCoreError: As the client.
        """
        sent = self._proven.get(bucket) or self._try_encode.get(bucket)
        if sent is None or not self.fast_path.is_open(bucket):
            return None
        try:
            answer = await self._send_as(sent, bucket, key, headers)
        except ClientError as error:
            if is_of_the_store(error) or (bucket in self._proven and is_of_the_object(error)):
                raise
            self._refused[bucket, key] = error
            return None
        except Exception as error:
            if is_of_the_network(error):
                raise
            self.fast_path.leave(bucket, error)
            return None
        if bucket in self._try_encode:
            self._proven[bucket] = self._try_encode.pop(bucket)
        return answer

    async def _send_as(self, sent: _Sent, bucket: str, key: str, headers: Mapping[str, str]) -> Response:
        client = await self._fs.get_s3(bucket)
        for attempt in range(2):
            request = AWSRequest("GET", sent.base + _quote_key(key), {**sent.headers, **headers}, stream_output=True)
            request.context.update(sent.context)
            await client._request_signer.sign("GetObject", request)
            answer = await client._endpoint.http_session.send(request.prepare())
            if answer.status_code < 300:
                break
            told = await _error_of(client, answer)
            code = told.response.get("Error", {}).get("Code")
            if attempt or code not in EXPIRED or self._renewal is None:
                raise told
            await renew(self._renewal, request.context, code)
        return Response(answer.status_code, answer.headers, answer.raw)

    def _note(self, request: Any, **_: Any) -> None:
        """A GET of the client's leaves, whatever happens here."""
        try:
            self._try_encode.update(self._of(request))
        except Exception as error:
            self.fast_path.leave("all buckets of this client", error)

    def _of(self, request: Any) -> dict[str, _Sent]:
        """What a GET was like, by its bucket; nothing where it does not look as expected."""
        asked = request.context.get("input_params", {})
        bucket, key = asked.get("Bucket"), asked.get("Key")
        signature = _text(request.headers.get("Authorization", "AWS4"))
        if not bucket or not key or not request.url.endswith(f"/{_quote_key(key)}") or not signature.startswith("AWS4"):
            return {}
        headers = {_text(name): _text(value) for name, value in request.headers.items()}
        kept = {name: value for name, value in headers.items() if name.lower() not in _OF_ONE_REQUEST}
        how = {name: request.context[name] for name in ("auth_type", "signing") if name in request.context}
        base = request.url.removesuffix(_quote_key(key))
        return {bucket: _Sent(base, kept, {"client_config": request.context["client_config"], **how})}


async def _error_of(client: Any, answer: Any) -> ClientError:
    """What the client would raise."""
    model = client.meta.service_model.operation_model("GetObject")
    told = await aiobotocore.endpoint.convert_to_response_dict(answer, model)
    return ClientError(await client._response_parser.parse(told, model.output_shape), "GetObject")


def _quote_key(key: str) -> str:
    """A key as it is written in a URL."""
    return quote(key, safe="/~")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
