"""Deciphering: asyncio's TLS of one connection, read in large steps.

asyncio gives each TLS connection a buffer of 256 KiB, copies it into OpenSSL's, and calls back for each piece that it
deciphers: sixteen connections use more memory than the caches hold, each byte is moved through it five times, and a
megabyte costs a dozen turns of the loop. Here the bytes of all connections of a thread come through one buffer that
stays in the nearest cache, and OpenSSL deciphers them into the caller's buffer, as much in one turn as the kernel has.

The handshake is over by then: the connection was verified by the client's own SSL context, and its `SSLObject` goes on.

What is private here is asyncio's: a TLS transport's protocol, the transport below it, and the two memory BIOs between
them. They are the same from Python 3.11 to 3.14. `taken_apart` looks at them first, and gives nothing where one is
not as expected (uvloop, a proxy that is reached over TLS too): the client library then reads by itself.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from asyncio.selector_events import _SelectorSocketTransport  # type: ignore[attr-defined]
from asyncio.sslproto import SSLProtocol
from typing import Any, Final

__all__ = ["Deciphering", "taken_apart"]

STEP: Final = 128 << 10
"""Bytes that are taken off a socket at a time: with OpenSSL's copy of them they stay in the second cache."""

RECORD: Final = (16 << 10) + 512
"""No record of TLS is longer."""


class _OfThread(threading.local):
    """A buffer for each thread: nothing awaits between the kernel's writing into it and OpenSSL's reading."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(STEP))


_of_thread = _OfThread()


class Deciphering:
    """The TLS of one connection; made by `taken_apart`.

    Attributes:
        below: The transport that carries the ciphered bytes.
        protocol: asyncio's protocol on it.
    """

    def __init__(self, protocol: Any) -> None:
        self.below: asyncio.Transport = protocol._transport
        self.protocol: asyncio.BufferedProtocol = protocol
        self._protocol = protocol
        self._incoming: ssl.MemoryBIO = protocol._incoming
        self._outgoing: ssl.MemoryBIO = protocol._outgoing
        self._object: ssl.SSLObject = protocol._sslobj
        self._file: int = self.below.get_extra_info("socket").fileno()

    def give_back(self) -> None:
        """The connection is left to its own protocol, which closes it."""
        self.below.set_protocol(self.protocol)
        self._protocol._ssl_reading_paused = False
        self.below.resume_reading()

    def most_ciphered(self) -> int:
        """Bytes that came and are not deciphered yet, at the most: OpenSSL does not say how much of a record it has."""
        return self._incoming.pending + RECORD

    def room(self) -> memoryview:
        """Where the next ciphered bytes go; `came` must follow before the thread does anything else."""
        return _of_thread.buffer

    def came(self, nbytes: int) -> None:
        """So many of them did."""
        self._incoming.write(_of_thread.buffer[:nbytes])

    def read(self, target: memoryview) -> int:
        """Deciphers what has come into a buffer; returns how many bytes that are, maybe none.

        Raises:
            ConnectionError: The server ended the connection.
            ssl.SSLError: What came was not what the server sent.
        """
        filled, read = 0, self._object.read
        try:
            while filled < len(target):
                count: int = read(len(target) - filled, target[filled:])  # type: ignore[assignment]
                if not count:
                    raise ConnectionResetError("the server closed the connection")
                filled += count
        except ssl.SSLWantReadError:
            pass
        except ConnectionError:
            if not filled:
                raise
        if self._outgoing.pending:  # an answer to a change of keys
            self.below.write(self._outgoing.read())
        return filled

    def read_on(self, nbytes: int, target: memoryview) -> int:
        """Deciphers what came, and what the kernel has beyond that, as far as the target has room."""
        self.came(nbytes)
        filled = self.read(target)
        while nbytes == STEP and filled < len(target):
            try:
                nbytes = os.readv(self._file, [_of_thread.buffer])
            except BlockingIOError:
                break
            self.came(nbytes)
            filled += self.read(target[filled:])
        return filled


def taken_apart(transport: asyncio.Transport) -> Deciphering | None:
    """A TLS connection's parts; None where asyncio is about to do something with them now.

    Raises:
        AttributeError: They are not asyncio's own over a socket, as this module knows them.
    """
    protocol: Any = getattr(transport, "_ssl_protocol", None)
    below = getattr(protocol, "_transport", None)
    if not isinstance(protocol, SSLProtocol) or not isinstance(below, _SelectorSocketTransport):
        raise AttributeError(f"TLS by {type(transport).__name__} is not asyncio's own over a socket")
    parts: Any = protocol
    if not isinstance(parts._incoming, ssl.MemoryBIO) or parts._sslobj is not transport.get_extra_info("ssl_object"):
        raise AttributeError("asyncio keeps its TLS in another way than from Python 3.11 to 3.14")
    at_rest = parts._state.name == "WRAPPED" and not parts._write_backlog and not below.is_closing()
    return Deciphering(parts) if at_rest and below.get_protocol() is protocol else None
