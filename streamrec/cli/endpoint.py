"""The server behind a URL, without any client: its name, its port, what it speaks, and what time it has."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

SECONDS: Final = 10.0
HOSTS: Final = {"s3": "s3.amazonaws.com", "s3a": "s3.amazonaws.com", "gs": "storage.googleapis.com"}
VARIABLES: Final = {"s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "gs": ("STORAGE_EMULATOR_HOST",)}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server.

    Attributes:
        host: Its name.
        port: The port.
        secure: Whether it is spoken to over TLS.
    """

    host: str
    port: int
    secure: bool


def endpoint_of(url: str, storage_options: Mapping[str, Any]) -> Endpoint | None:
    """The server that a URL leads to: of the options, the environment, the URL itself, or the cloud's own.

    Examples:
        >>> endpoint_of("s3://b/x", {"endpoint_url": "http://127.0.0.1:9000"})
        Endpoint(host='127.0.0.1', port=9000, secure=False)
        >>> endpoint_of("https://example.org/x", {}), endpoint_of("/local/file", {})
        (Endpoint(host='example.org', port=443, secure=True), None)
    """
    parts = urlsplit(url)
    scheme = {"s3a": "s3", "gcs": "gs"}.get(parts.scheme, parts.scheme)
    if scheme in ("http", "https"):
        said = url
    elif scheme in ("s3", "gs"):
        client = storage_options.get("client_kwargs") or {}
        told = [storage_options.get("endpoint_url"), storage_options.get("endpoint"), client.get("endpoint_url")]
        told += [os.environ.get(name) for name in VARIABLES[scheme]]
        said = next((text for text in told if text), f"https://{HOSTS[scheme]}")
    else:
        return None
    server = urlsplit(said if "://" in said else f"http://{said}")
    secure = server.scheme == "https"
    return Endpoint(server.hostname or "", server.port or (443 if secure else 80), secure)


def resolve(endpoint: Endpoint) -> list[str]:
    """Its addresses.

    Raises:
        OSError: The name is not known.
    """
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[4][0]) for address in found))


def connect(endpoint: Endpoint) -> None:
    """Opens a connection, and closes it.

    Raises:
        OSError: There is none.
    """
    socket.create_connection((endpoint.host, endpoint.port), SECONDS).close()


def handshake(endpoint: Endpoint) -> str:
    """The version of TLS, the cipher, and when the certificate ends.

    Raises:
        OSError: The certificate is not trusted, or the server speaks no TLS.
    """
    context = ssl.create_default_context()
    with (
        socket.create_connection((endpoint.host, endpoint.port), SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=endpoint.host) as secure,
    ):
        cipher = secure.cipher()
        ends = (secure.getpeercert() or {}).get("notAfter")
        return f"{secure.version()}, {cipher[0] if cipher else 'no cipher'}, certificate until {ends}"


def clock_skew(endpoint: Endpoint) -> float | None:
    """By how many seconds this machine's clock is ahead of the server's; None where the server tells no time.

    Raises:
        OSError, HTTPException: The server does not answer.
    """
    kind = http.client.HTTPSConnection if endpoint.secure else http.client.HTTPConnection
    connection = kind(endpoint.host, endpoint.port, timeout=SECONDS)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    finally:
        connection.close()
    return None if date is None else (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
