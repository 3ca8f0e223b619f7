"""OpenSSL, called past Python's ssl module: it reads a connection's socket itself, a megabyte a call.

Python's `SSLObject` deciphers one record of 16 KiB a call, and each call takes and gives back the interpreter's lock: a
thread that deciphers so waits for it 64 times a megabyte. OpenSSL's own BIOs do the loop: a buffering BIO over an SSL
BIO reads until the caller's buffer is full or the socket is empty, in one call that holds no lock.

What is private here is CPython's: where an `SSLObject` has its `SSL *`. It is between two members of which one is
known, the context, in all releases from 3.11 to 3.14. Where that is not found, or where the functions are not to be
had (a Python that has OpenSSL built in, as those that uv installs), a `RecordReader` does the same by `SSLObject`.
"""

from __future__ import annotations

import _ssl
import ctypes
import os
import ssl
import sys
import threading
from functools import cache
from typing import Any, Final

__all__ = ["RecordReader", "SocketReader", "decipher", "library", "pointer_of"]

BUFFER: Final = 128 << 10
"""Bytes that are taken off a socket at a time: they stay in the second cache until they are deciphered."""

SET_BUFFER_SIZE: Final = 117
SET_SSL: Final = 109
PENDING: Final = 10
SHOULD_RETRY: Final = 8
"""Numbers of OpenSSL's <openssl/bio.h>, the same in 1.1.1 and 3."""

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
    """The OpenSSL that Python's ssl module is linked with."""
    if sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info < (3, 15):
        raise AttributeError("how this Python keeps an SSL * is not known")
    try:
        found = ctypes.CDLL(_ssl.__file__)
    except OSError as error:
        raise AttributeError(f"OpenSSL cannot be called past Python ({error})") from error
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


class SocketReader:
    """The reading half of one TLS connection, whose handshake is over, given to OpenSSL.

    One thread at a time may use it. Its `close` must come before the socket is closed.

    Args:
        connection: The connection; its memory BIO must be empty.
        file: The descriptor of its socket, which does not block.
    """

    def __init__(self, connection: ssl.SSLObject, file: int) -> None:
        self._openssl = openssl = library()
        self._process = os.getpid()
        self._connection = connection  # its SSL * lives as long
        self._ssl = pointer_of(connection)
        self._before = openssl.SSL_get_rbio(self._ssl)
        openssl.BIO_up_ref(self._before)
        self._waiting = openssl.BIO_new(openssl.BIO_f_buffer())
        openssl.BIO_int_ctrl(self._waiting, SET_BUFFER_SIZE, BUFFER, 0)
        openssl.SSL_set0_rbio(self._ssl, openssl.BIO_push(self._waiting, openssl.BIO_new_socket(file, 0)))
        deciphering = openssl.BIO_new(openssl.BIO_f_ssl())
        openssl.BIO_ctrl(deciphering, SET_SSL, 0, self._ssl)
        self._bio = openssl.BIO_push(openssl.BIO_new(openssl.BIO_f_buffer()), deciphering)

    def read(self, target: memoryview) -> int:
        """Fills a buffer as far as the socket has bytes; the interpreter is free meanwhile.

        Raises:
            ConnectionError: The connection ended, or what came was not what the server sent.
        """
        openssl = self._openssl
        openssl.ERR_clear_error()
        count: int = openssl.BIO_read(self._bio, ctypes.addressof(ctypes.c_char.from_buffer(target)), len(target))
        if count > 0:
            return count
        openssl.ERR_clear_error()
        if not openssl.BIO_test_flags(self._bio, SHOULD_RETRY):
            raise ConnectionResetError("the connection ended, or broke")
        return 0

    def holds_none(self) -> bool:
        """Whether all that was taken off the socket was deciphered and given out."""
        return not any(self._openssl.BIO_ctrl(bio, PENDING, 0, None) for bio in (self._waiting, self._bio))

    def close(self) -> None:
        """OpenSSL looks at the socket no more; the connection reads its memory BIO again. May be called twice."""
        if self._bio:
            openssl, bio, self._bio = self._openssl, self._bio, None
            openssl.SSL_set0_rbio(self._ssl, self._before)
            openssl.SSL_set_quiet_shutdown(self._ssl, 1)  # an SSL BIO that is freed shuts its connection down
            openssl.BIO_free_all(bio)
            openssl.SSL_set_shutdown(self._ssl, 0)
            openssl.SSL_set_quiet_shutdown(self._ssl, 0)
            openssl.ERR_clear_error()

    def __del__(self) -> None:
        if hasattr(self, "_bio") and os.getpid() == self._process:  # a forked child's may be half way through a read
            self.close()


_of_thread = threading.local()


class RecordReader:
    """A SocketReader by Python's ssl module: a call for each record, where OpenSSL cannot be called past it."""

    def __init__(self, connection: ssl.SSLObject, incoming: ssl.MemoryBIO, file: int) -> None:
        self._connection = connection
        self._incoming = incoming
        self._file = file

    def read(self, target: memoryview) -> int:
        """Fills a buffer as far as the socket has bytes.

        Raises:
            OSError: The connection ended, or what came was not what the server sent.
        """
        filled = decipher(self._connection, target)
        buffer = _buffer_of_thread() if filled < len(target) else memoryview(b"")
        while filled < len(target):
            try:
                count = os.readv(self._file, [buffer])
            except BlockingIOError:
                break
            if not count:
                if filled:
                    break
                raise ConnectionResetError("the connection ended")
            self._incoming.write(buffer[:count])
            filled += decipher(self._connection, target[filled:])
        return filled

    def holds_none(self) -> bool:
        """What was taken off the socket is where asyncio goes on with it."""
        return True

    def close(self) -> None:
        """Nothing was changed."""


def _buffer_of_thread() -> memoryview:
    """A buffer for each thread: no other one writes into it between the kernel's doing so and OpenSSL's reading."""
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = memoryview(bytearray(BUFFER))
    buffer: memoryview = _of_thread.buffer
    return buffer


def decipher(connection: ssl.SSLObject, target: memoryview) -> int:
    """Deciphers what is in a connection's memory BIO; returns how many bytes that are, maybe none."""
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
    """The SSL * of a connection, where CPython keeps it."""
    library()
    inner: Any = connection._sslobj  # type: ignore[attr-defined]
    word, head = ctypes.sizeof(Pointer), object.__basicsize__
    if type(inner).__basicsize__ < head + 3 * word:
        raise AttributeError("this Python keeps its TLS connections in another way")
    members = [Pointer.from_address(id(inner) + head + index * word).value for index in range(3)]
    _, pointer, context = members
    if pointer is None or context != id(connection.context):
        raise AttributeError("this Python keeps its TLS connections in another way")
    return pointer
