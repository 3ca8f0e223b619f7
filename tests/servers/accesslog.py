"""What an nginx sent, by its own log: the server's side of how much was read.

    with nginx() as store:
        log = AccessLog(store)
        ...
        log.taken()  # requests and bytes since the last call

nginx writes a line when a request has ended, without a buffer. A client that has all its bytes can
be a moment ahead of it, so `taken` waits until the log is quiet.
"""

import re
import time
from dataclasses import dataclass

from tests.servers.real import Store

_QUIET_SECONDS = 0.15
_LINE = re.compile(r'"(?P<method>[A-Z]+) \S+ HTTP/[\d.]+" (?P<status>\d{3}) (?P<sent>\d+) ')


@dataclass(frozen=True, slots=True)
class Taken:
    """What clients were sent.

    Attributes:
        requests: How many requests they made.
        nbytes: The bytes of all bodies, without headers. A client that leaves early is counted
            with what had been sent by then.
        failed: How many answers had a status of 400 or more.
    """

    requests: int
    nbytes: int
    failed: int


class AccessLog:
    """The log of one server, from here on."""

    def __init__(self, store: Store) -> None:
        self._path = store.directory.parent / "access.log"
        self._read = 0
        # What was asked before is not from here on: the line of the request that found the server
        # ready may still be missing.
        self.taken()

    def taken(self) -> Taken:
        """What was sent since the last call."""
        size = self._size()
        while True:
            time.sleep(_QUIET_SECONDS)
            if size == (size := self._size()):
                break
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read(size - self._read).decode("ascii", "replace")
        self._read = size
        return counted_lines(text)

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0


def counted_lines(text: str) -> Taken:
    r"""What these lines say.

    >>> counted_lines('127.0.0.1 - - [1] "GET /d/a HTTP/1.1" 206 512 "-" "-"\n')
    Taken(requests=1, nbytes=512, failed=0)
    """
    lines = [_LINE.search(line) for line in text.splitlines()]
    found = [line for line in lines if line is not None]
    assert len(found) == len(lines), text
    return Taken(
        requests=len(found),
        nbytes=sum(int(line["sent"]) for line in found),
        failed=sum(int(line["status"]) >= 400 for line in found),
    )
