"""What a process knows of the blocks of one data set, so that a read lists no directory."""

from __future__ import annotations

import os
import threading
import time

from streamrec.storage.cache.eviction import should_rescan
from streamrec.storage.cache.names import ObjectKey, parse_block
from streamrec.storage.cache.spans import Span, SpanMap


class SetIndex:
    """The blocks of a data set, as of the last listing and with what this process wrote since.

    The loop's thread asks, and the cache's writer adds.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], SpanMap] = {}
        self._versions: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._changed = -1
        self._scanned = 0.0
        self._seconds = 0.0

    def covering(self, key: ObjectKey, position: int) -> Span | None:
        """Returns a block with this byte."""
        with self._lock:
            spans = self._spans.get((key.path_name, key.version_name))
            return None if spans is None else spans.covering(position)

    def next_start(self, key: ObjectKey, position: int) -> int | None:
        """Returns where the next block after a byte begins."""
        with self._lock:
            spans = self._spans.get((key.path_name, key.version_name))
            return None if spans is None else spans.next_start(position)

    def has_path(self, path_name: str) -> bool:
        """Whether there is a block of any version of an object."""
        with self._lock:
            return path_name in self._versions

    def other_versions(self, key: ObjectKey) -> list[tuple[str, Span]]:
        """Returns the blocks of other versions of the same object, each with its version."""
        with self._lock:
            others = self._versions.get(key.path_name, set()) - {key.version_name}
            return [
                (version, span)
                for version in others
                for span in self._spans.get((key.path_name, version), ())
            ]

    def add(self, path_name: str, version_name: str, span: Span) -> None:
        """Adds a block."""
        with self._lock:
            self._add(path_name, version_name, span)

    def discard(self, path_name: str, version_name: str, span: Span) -> None:
        """Removes a block that is gone."""
        with self._lock:
            spans = self._spans.get((path_name, version_name))
            if spans is None:
                return
            spans.discard(span)
            if not spans:
                del self._spans[path_name, version_name]
                versions = self._versions[path_name]
                versions.discard(version_name)
                if not versions:
                    del self._versions[path_name]

    def refresh(self, directory: int, *, always: bool = False) -> None:
        """Lists the directory again if it has changed since, but not too often."""
        changed = os.fstat(directory).st_mtime_ns
        began = time.monotonic()
        if not always and (
            changed == self._changed or not should_rescan(began, self._scanned, self._seconds)
        ):
            return
        found = [block for name in os.listdir(directory) if (block := parse_block(name))]
        with self._lock:
            self._spans.clear()
            self._versions.clear()
            for block in found:
                self._add(block.path, block.version, Span(block.start, block.length))
        self._changed = changed
        self._scanned = time.monotonic()
        self._seconds = self._scanned - began

    def _add(self, path_name: str, version_name: str, span: Span) -> None:
        self._spans.setdefault((path_name, version_name), SpanMap()).add(span)
        self._versions.setdefault(path_name, set()).add(version_name)
