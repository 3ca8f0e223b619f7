"""Taking over: the rest of a large body, received past aiohttp.

Rules:
- Only a plain body of known length is taken over, when aiohttp holds none of it any more, and when so much is left that
  it pays.
- Behind its last byte the connection is aiohttp's again, which keeps it for the next request.
- It is a fast path (`fast_path.py`): where it fails (under uvloop, say), aiohttp goes on as ever.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import aiohttp

from streamrec.storage.backends.fast_path import FastPath
from streamrec.storage.backends.http.buffered_body import BufferedBody
from streamrec.storage.backends.http.tls_body import ALL, TLSBody, take_over_tls

__all__ = ["BUFFERED_BODIES", "take_over"]

LEAST: Final = 1 << 20
"""Bytes that must be left for a body to be taken over."""

BUFFERED_BODIES: Final = FastPath("receiving bodies past aiohttp (streamrec.storage.backends.http.take_over)")


def take_over(response: aiohttp.ClientResponse, remaining: int) -> BufferedBody | TLSBody | None:
    """Takes a response's connection over, if that is worth it and safe; None where it is not.

    Args:
        response: A response whose `content` was drained a moment ago.
        remaining: Bytes of its body that have not come yet.
    """
    if remaining < LEAST or not BUFFERED_BODIES.is_open(ALL):
        return None
    try:
        return _taken(response, remaining)
    except OSError:  # no descriptor is left, or the connection is gone: the next one may be had
        return None
    except Exception as error:
        BUFFERED_BODIES.leave(ALL, error)
        return None


def _taken(response: aiohttp.ClientResponse, remaining: int) -> BufferedBody | TLSBody | None:
    connection = response.connection
    if connection is None or connection.transport is None:
        return None
    transport, handler = connection.transport, connection.protocol
    held = getattr(handler, "_tail", b"")
    if not isinstance(transport, asyncio.Transport):
        raise AttributeError(f"a {type(transport).__name__} is no transport of asyncio's own: another event loop runs")
    if handler is None or held or not transport.is_reading():
        return None
    finish = partial(_give_to_the_pool, response, transport)
    if transport.get_extra_info("sslcontext") is not None:
        return take_over_tls(transport, remaining, finish, BUFFERED_BODIES)
    buffered = BufferedBody(transport, handler, remaining, finish)
    transport.pause_reading()
    transport.set_protocol(buffered)
    return buffered


def _give_to_the_pool(response: aiohttp.ClientResponse, transport: asyncio.Transport) -> None:
    """Tells aiohttp that the body is whole: it keeps the connection for the next request, if the server does."""
    try:
        response.content.feed_eof()
        if not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()  # so that a server that ends it is heard
    except Exception as error:
        BUFFERED_BODIES.leave(ALL, error)
