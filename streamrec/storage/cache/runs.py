"""Which processes use the cache, and which data sets: what a running job uses is never removed.

Each process has a file in `runs`, locked as long as it lives, with a line for each data set. The
processes that a job starts for each epoch (the workers of a DataLoader) name the process that
started them; what they used stays in use until that one has ended, too.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import secrets
import time
from contextlib import suppress
from typing import Any, Final

from streamrec.storage.cache.files import create_file, open_file, remove_file, try_lock, write_all
from streamrec.storage.cache.names import is_set, run_of

YOUNG: Final = 10.0
"""A file that is younger may not be locked yet."""

YOUNG_SECONDS: Final = 1.0
"""How long the other processes of a job may take to start after the first one."""

OTHERS_SECONDS: Final = 5.0
"""How long the answer whether there are other processes is kept while none comes or goes."""

_MOST_BYTES: Final = 16 << 20


class Runs:
    """The processes that use a cache; made by each when it opens the cache."""

    def __init__(self, directory: int) -> None:
        self.token = secrets.token_hex(8)
        self._directory = directory
        self._used: set[str] = set()
        self._file = create_file(f"{self.token}.run", directory)
        self._others = True
        self._seen = 0
        self._until = 0.0
        self._young_until = time.monotonic() + YOUNG_SECONDS
        while not try_lock(self._file):  # another process looks at it this moment
            time.sleep(0.001)
        main = json.dumps(describe_main_process())
        write_all(self._file, [memoryview(f"{main}\n".encode())])

    def use(self, set_name: str) -> bool:
        """Notes that this process uses a data set; returns whether that is new."""
        if set_name in self._used:
            return False
        write_all(self._file, [memoryview(f"{set_name}\n".encode())])
        self._used.add(set_name)
        return True

    def in_use(self) -> set[str]:
        """Returns the data sets that processes use, and removes the files of those that ended."""
        found = set(self._used)
        for name in os.listdir(self._directory):
            token = run_of(name)
            if token is not None and token != self.token:
                found |= self._sets_of(name) or set()
        return found

    def has_others(self) -> bool:
        """Whether other processes use the cache."""
        changed = os.fstat(self._directory).st_mtime_ns
        now = time.monotonic()
        if changed != self._seen or now >= self._until:
            names = os.listdir(self._directory)
            others = [name for name in names if run_of(name) not in (None, self.token)]
            self._others = any(self._sets_of(name) is not None for name in others)
            self._seen = changed
            self._until = now + OTHERS_SECONDS
        return self._others

    def is_young(self) -> bool:
        """Whether this process began to use the cache a moment ago.

        The processes of a job start together: others of them may not be seen yet.
        """
        return time.monotonic() < self._young_until

    def alive(self) -> set[str]:
        """Returns the names of the processes that live."""
        names = os.listdir(self._directory)
        tokens = {token for name in names if (token := run_of(name)) is not None}
        return {token for token in tokens if self._lives(token)}

    def end(self) -> None:
        """Removes this process's file."""
        remove_file(f"{self.token}.run", self._directory)
        self.close()

    def close(self) -> None:
        """Closes the file without removing it: in a forked child it is its parent's."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _lives(self, token: str) -> bool:
        return token == self.token or self._sets_of(f"{token}.run") is not None

    def _sets_of(self, name: str) -> set[str] | None:
        """Returns the data sets of another process; None if it has ended."""
        try:
            file = open_file(name, self._directory)
        except FileNotFoundError:
            return None
        try:
            lives = not try_lock(file, shared=True)
            young = time.time() - os.fstat(file).st_mtime < YOUNG
            head, *lines = os.read(file, _MOST_BYTES).decode(errors="replace").splitlines() or [""]
        finally:
            os.close(file)
        if lives or (young and not head) or is_running(parse_head(head)):
            return {line for line in lines if is_set(line)}
        remove_file(name, self._directory)
        return None


def parse_head(head: str) -> dict[str, Any]:
    """Returns the description of a main process; {} if the line is none."""
    with suppress(ValueError):
        found = json.loads(head)
        if isinstance(found, dict):
            return found
    return {}


def describe_main_process() -> dict[str, Any]:
    """Returns what identifies the process whose end ends this one's work: {} for this one itself,
    whose lock tells.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return {}
    return {"pid": parent.pid, "started": started(parent.pid), "system": system()}


def is_running(main: dict[str, Any]) -> bool:
    """Whether a process of this description runs."""
    pid = main.get("pid")
    if not isinstance(pid, int) or main.get("system") != system():
        return False
    return started(pid) is not None and started(pid) == main.get("started")


def started(pid: int) -> str | None:
    """Returns what tells a process from an earlier one of the same number; None without one."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name of the program is in parentheses, and may contain any character
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return None
    try:
        os.kill(pid, 0)
    except OSError:
        return None
    return ""


def system() -> str:
    """Returns what identifies this system, and its numbers of processes, since it started."""
    parts = [platform.node()]
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
