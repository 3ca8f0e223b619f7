"""TLS reader: OpenSSL decrypts a connection directly into the caller's buffer.

asyncio gives each TLS connection a buffer of 256 KiB, copies it into OpenSSL's, and calls back for
each TLS record. Python's `SSLObject` decrypts one record of 16 KiB per call, and each call takes
and releases the GIL: a thread that decrypts so waits for it 64 times per megabyte. Here OpenSSL's
own BIOs read the socket: a buffering BIO over an SSL BIO reads until the caller's buffer is full or
the socket is empty, in one call without the GIL.

The handshake is over by then: the client's own SSL context has verified the connection, whose
`SSLObject` stays in use. asyncio's TLS protocol is put into its final state, so that it neither
reads the connection nor shuts it down. After the body's last byte asyncio takes over again; if the
body is closed earlier, the connection is closed.

Private details, which are checked first:
- asyncio's: a TLS transport's protocol, its state, the transport below it, and the memory BIOs
  between them. They are the same from Python 3.11 to 3.14. If one is not as expected (uvloop, a
  proxy over TLS), the client library reads.
- CPython's: where an `SSLObject` keeps its `SSL *`. In all releases from 3.11 to 3.14 it is the
  member before the context, which is known. If it is not found there, or if the functions are not
  available (a Python with OpenSSL built in, like those that uv installs), `SSLObject` decrypts
  record by record.
"""

from __future__ import annotations

import _ssl
import asyncio
import ctypes
import os
import ssl
import sys
import threading
from asyncio.sslproto import SSLProtocol, SSLProtocolState
from functools import cache
from typing import Any, Final

from streamrec.storage.backend import FastPath

BUFFER: Final = 128 << 10
"""Bytes per read of a socket: they stay in the L2 cache until they are decrypted."""

SET_BUFFER_SIZE: Final = 117
SET_SSL: Final = 109
PENDING: Final = 10
SHOULD_RETRY: Final = 8
"""Constants of OpenSSL's <openssl/bio.h>, the same in 1.1.1 and 3."""

Pointer = ctypes.c_void_p
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "BIO_new": (Pointer, Pointer),
    "BIO_f_buffer": (Pointer,),
    "BIO_f_ssl": (Pointer,),
    "BIO_up_ref": (ctypes.c_int, Pointer),
    "BIO_new_socket": (Pointer, ctypes.c_int, ctypes.c_int),
    "BIO_push": (Pointer, Pointer, Pointer),
    "BIO_ctrl": (ctypes.c_long, Pointer, ctypes.c_int, ctypes.c_long, Pointer),
    "BIO_int_ctrl": (ctypes.c_long, Pointer, ctypes.c_int, ctypes.c_long, ctypes.c_int),
    "BIO_read": (ctypes.c_int, Pointer, Pointer, ctypes.c_int),
    "BIO_test_flags": (ctypes.c_int, Pointer, ctypes.c_int),
    "BIO_free_all": (None, Pointer),
    "SSL_get_rbio": (Pointer, Pointer),
    "SSL_set_quiet_shutdown": (None, Pointer, ctypes.c_int),
    "SSL_set_shutdown": (None, Pointer, ctypes.c_int),
    "SSL_set0_rbio": (None, Pointer, Pointer),
    "ERR_clear_error": (None,),
}


@cache
def library() -> Any:
    """Returns the OpenSSL with which Python's ssl module is linked; AttributeError if it cannot be
    called.
    """
    if sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 15):
        raise AttributeError("where this Python keeps an SSL * is not known")
    try:
        found = ctypes.CDLL(_ssl.__file__)
    except OSError as error:
        raise AttributeError(f"OpenSSL cannot be called directly ({error})") from error
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class SocketReader:
    """Reads a TLS connection, whose memory BIO is empty, by OpenSSL from the descriptor of its
    non-blocking socket.

    One thread at a time may use it. Close it before the socket.
    """

    def __init__(self, connection: ssl.SSLObject, file: int) -> None:
        self._openssl = openssl = library()
        self._process = os.getpid()
        self._connection = connection  # keeps its SSL * alive
        self._ssl = pointer_of(connection)
        self._before = openssl.SSL_get_rbio(self._ssl)
        openssl.BIO_up_ref(self._before)
        self._waiting = openssl.BIO_new(openssl.BIO_f_buffer())
        openssl.BIO_int_ctrl(self._waiting, SET_BUFFER_SIZE, BUFFER, 0)
        openssl.SSL_set0_rbio(
            self._ssl, openssl.BIO_push(self._waiting, openssl.BIO_new_socket(file, 0))
        )
        decrypting = openssl.BIO_new(openssl.BIO_f_ssl())
        openssl.BIO_ctrl(decrypting, SET_SSL, 0, self._ssl)
        self._bio = openssl.BIO_push(openssl.BIO_new(openssl.BIO_f_buffer()), decrypting)

    def read(self, target: memoryview) -> int:
        """Reads the bytes available on the socket into a buffer, without the GIL; returns their
        number.

        Raises ConnectionError if the connection ended, or its data does not verify.
        """
        openssl = self._openssl
        openssl.ERR_clear_error()
        count: int = openssl.BIO_read(
            self._bio, ctypes.addressof(ctypes.c_char.from_buffer(target)), len(target)
        )
        if count > 0:
            return count
        openssl.ERR_clear_error()
        if not openssl.BIO_test_flags(self._bio, SHOULD_RETRY):
            raise ConnectionResetError("the connection ended, or broke")
        return 0

    def holds_none(self) -> bool:
        """Whether no bytes are left in its buffers."""
        return not any(
            self._openssl.BIO_ctrl(bio, PENDING, 0, None) for bio in (self._waiting, self._bio)
        )

    def close(self) -> None:
        """Detaches the socket, so that the connection reads its memory BIO again. May be called
        twice.
        """
        if self._bio:
            openssl, bio, self._bio = self._openssl, self._bio, None
            openssl.SSL_set0_rbio(self._ssl, self._before)
            openssl.SSL_set_quiet_shutdown(
                self._ssl, 1
            )  # freeing an SSL BIO shuts its connection down
            openssl.BIO_free_all(bio)
            openssl.SSL_set_shutdown(self._ssl, 0)
            openssl.SSL_set_quiet_shutdown(self._ssl, 0)
            openssl.ERR_clear_error()

    def __del__(self) -> None:
        if (
            hasattr(self, "_bio") and os.getpid() == self._process
        ):  # in a forked child a read may be in progress
            self.close()


_of_thread = threading.local()


def _buffer_of_thread() -> memoryview:
    """Returns a buffer of the calling thread: no other thread overwrites it before OpenSSL has read
    it.
    """
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = memoryview(bytearray(BUFFER))
    buffer: memoryview = _of_thread.buffer
    return buffer


def decrypt(connection: ssl.SSLObject, target: memoryview) -> int:
    """Decrypts the data in a connection's memory BIO; returns the number of bytes, possibly 0."""
    filled = 0
    try:
        while filled < len(target):
            count: int = connection.read(len(target) - filled, target[filled:])  # type: ignore[assignment]
            if not count:
                raise ConnectionResetError("the server closed the connection")
            filled += count
    except ssl.SSLWantReadError:
        pass
    except ConnectionError:
        if not filled:
            raise
    return filled


def pointer_of(connection: ssl.SSLObject) -> int:
    """Returns the SSL * of a connection from where CPython keeps it; AttributeError if it is
    elsewhere.
    """
    library()
    inner: Any = connection._sslobj  # type: ignore[attr-defined]
    word, head = ctypes.sizeof(Pointer), object.__basicsize__
    if type(inner).__basicsize__ >= head + 3 * word:
        _, pointer, context = (
            Pointer.from_address(id(inner) + head + index * word).value for index in range(3)
        )
        if pointer is not None and context == id(connection.context):
            return pointer
    raise AttributeError("this Python keeps its TLS connections in another way")


BLOCKS: Final = "a block over TLS by one call of OpenSSL"
"""The key that disables only the calls of OpenSSL: Python's ssl module then decrypts each record,
past aiohttp."""


class TLSReader:
    """Decrypts one connection over asyncio's TLS transport; `transport` is the one below, over the
    socket.

    Raises AttributeError if a private detail is not as this module expects. If OpenSSL cannot be
    called, it disables the fast path for BLOCKS.
    """

    def __init__(self, transport: asyncio.Transport, fast_path: FastPath) -> None:
        protocol: Any = getattr(transport, "_ssl_protocol", None)
        below = getattr(protocol, "_transport", None)
        if (
            not isinstance(protocol, SSLProtocol)
            or below is None
            or below.get_extra_info("sslcontext")
        ):
            raise AttributeError(
                f"TLS by {type(transport).__name__} is not asyncio's own over a socket"
            )
        self.transport: asyncio.Transport = below
        parts: Any = protocol
        self._protocol = parts
        self._connection: ssl.SSLObject = parts._sslobj
        self._incoming: ssl.MemoryBIO = parts._incoming
        self._answers: ssl.MemoryBIO = parts._outgoing
        self._fast_path = fast_path
        self._reader: SocketReader | None = None
        self._drained = False  # whether the bytes that asyncio read before were returned
        known = transport.get_extra_info("ssl_object")
        if not isinstance(self._incoming, ssl.MemoryBIO) or self._connection is not known:
            raise AttributeError(
                "asyncio keeps its TLS in another way than from Python 3.11 to 3.14"
            )

    def is_idle(self) -> bool:
        """Whether asyncio has no pending work on the connection."""
        state, backlog = self._protocol._state, self._protocol._write_backlog
        return state is SSLProtocolState.WRAPPED and not backlog and not self.transport.is_closing()

    def begin(self) -> None:
        """Switches off asyncio's TLS."""
        self._protocol._state = SSLProtocolState.UNWRAPPED

    def read(self, target: memoryview, file: int) -> int:
        """Reads the available bytes: those that asyncio read before, then those of the socket
        `file`.
        """
        count = 0
        if not self._drained:
            count = decrypt(self._connection, target)
            if count == len(target):
                return count
            self._drained, self._reader = True, self._make_reader(file)
        rest = target[count:]
        count += self._read_records(rest, file) if self._reader is None else self._reader.read(rest)
        if self._answers.pending:  # to a change of keys
            self.transport.write(self._answers.read())
        return count

    def holds_none(self) -> bool:
        return self._reader is None or self._reader.holds_none()

    def close(self) -> None:
        """Stops reading the socket. May be called twice."""
        if self._reader is not None:
            self._reader.close()

    def release(self) -> None:
        """Switches on asyncio's TLS again."""
        self._protocol._state = SSLProtocolState.WRAPPED

    def _make_reader(self, file: int) -> SocketReader | None:
        """Returns a reader that calls OpenSSL directly, if that is possible."""
        if self._fast_path.is_enabled(BLOCKS):
            try:
                return SocketReader(self._connection, file)
            except AttributeError as error:
                self._fast_path.disable(BLOCKS, error)
        return None

    def _read_records(self, target: memoryview, file: int) -> int:
        """Reads as `SocketReader.read` by Python's ssl module, one call per record."""
        filled = decrypt(self._connection, target)
        buffer = _buffer_of_thread() if filled < len(target) else memoryview(b"")
        while filled < len(target):
            try:
                count = os.readv(file, [buffer])
            except BlockingIOError:
                break
            if not count:
                if filled:
                    break
                raise ConnectionResetError("the connection ended")
            self._incoming.write(buffer[:count])
            filled += decrypt(self._connection, target[filled:])
        return filled
