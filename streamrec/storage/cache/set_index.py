"""What a process knows of the blocks of one data set, so that a read lists no directory."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

from streamrec.storage.cache.block_file import DamagedBlockError
from streamrec.storage.cache.files import open_file
from streamrec.storage.cache.journal import JournalReader
from streamrec.storage.cache.names import ObjectKey, PackName, parse_block, parse_pack
from streamrec.storage.cache.pack_file import PackEntry, parse_table, table_bytes
from streamrec.storage.cache.spans import Span, SpanMap


class PackPlace(NamedTuple):
    """Where the block of a short object is: in which pack, and at which offset."""

    pack: str
    offset: int


class SetIndex:
    """The blocks of a data set: those of one listing, and what its processes have added since.

    The loop's thread asks, and the cache's writer adds; others read what other processes add.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], SpanMap] = {}
        self._versions: dict[str, set[str]] = {}
        self._packs: dict[str, list[PackEntry]] = {}
        self._places: dict[tuple[str, str], PackPlace] = {}
        self._lock = threading.Lock()
        self._journal = JournalReader()
        self._following = threading.Lock()

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

    def place(self, key: ObjectKey, span: Span) -> PackPlace:
        """Returns the file of a block, and the offset in it: in a pack, or in a file of its own."""
        with self._lock:
            place = self._places.get((key.path_name, key.version_name))
        if place is not None and span == (0, key.size):
            return place
        return PackPlace(key.block(*span), 0)

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

    def is_packed(self, path_name: str, version_name: str) -> bool:
        """Whether a version of an object is in a pack, and so has no file of its own."""
        with self._lock:
            return (path_name, version_name) in self._places

    def superseded_packs(self) -> list[str]:
        """Returns the packs of which at least half of the objects have newer versions here.

        What is superseded within a pack stays until then: all else in it would go with it.
        """
        with self._lock:
            return [
                name
                for name, entries in self._packs.items()
                if parse_pack(name) is not None
                and 2 * sum(self._is_superseded(name, entry) for entry in entries) >= len(entries)
            ]

    def add(self, path_name: str, version_name: str, span: Span) -> None:
        """Adds a block that has a file of its own."""
        with self._lock:
            self._add(path_name, version_name, span)

    def add_pack(self, name: str, entries: Sequence[PackEntry]) -> None:
        """Adds blocks to a pack, and the pack if it is new."""
        with self._lock:
            self._add_pack(name, entries)

    def rename_pack(self, name: str, new: str) -> None:
        """The pack has another name from now on."""
        with self._lock:
            self._add_pack(new, self._packs.pop(name, []))

    def discard(self, path_name: str, version_name: str, span: Span) -> None:
        """Removes a block that is gone."""
        with self._lock:
            self._discard(path_name, version_name, span)

    def discard_pack(self, name: str) -> None:
        """Removes all blocks of a pack that is gone."""
        with self._lock:
            for entry in self._packs.pop(name, []):
                place = self._places.get((entry.path, entry.version))
                if place is not None and place.pack == name:
                    del self._places[entry.path, entry.version]
                    self._discard(entry.path, entry.version, Span(0, entry.length))

    def list_directory(self, directory: int) -> list[tuple[str, DamagedBlockError]]:
        """Lists the directory; returns the packs that cannot be read."""
        self._journal.skip(directory)
        names = os.listdir(directory)
        with self._lock:
            # what this process is writing has its entries here only
            mine = {name: known for name, known in self._packs.items() if not parse_pack(name)}
            for known in (self._spans, self._versions, self._packs, self._places):
                known.clear()
            for name, entries in mine.items():
                self._add_pack(name, entries)
        return self._add_names(names, directory)

    def follow(self, directory: int) -> list[tuple[str, DamagedBlockError]]:
        """Adds what other processes have added since; returns the packs that cannot be read."""
        with self._following:  # until what another thread has read is here, too
            names = self._journal.new_lines(directory)
            if names is None:
                return self.list_directory(directory)
            return self._add_names(names, directory) if names else []

    def _add_names(
        self, names: Sequence[str], directory: int
    ) -> list[tuple[str, DamagedBlockError]]:
        """Adds files by their names, and of packs what is in them; returns those that cannot be
        read. Other names are passed over. A pack never changes, and is read once.
        """
        packs: list[tuple[str, list[PackEntry]]] = []
        damaged: list[tuple[str, DamagedBlockError]] = []
        for name in sorted(names):
            parsed = parse_pack(name)
            if parsed is None or name in self._packs:
                continue
            try:
                packs.append((name, read_entries(name, parsed, directory)))
            except FileNotFoundError:
                pass  # another process has removed it, or it is not a file
            except DamagedBlockError as damage:
                damaged.append((name, damage))
        with self._lock:
            for block in filter(None, map(parse_block, names)):
                self._add(block.path, block.version, Span(block.start, block.length))
            for name, entries in packs:
                if name not in self._packs:  # another thread may have been faster
                    self._add_pack(name, entries)
        return damaged

    def _is_superseded(self, pack: str, entry: PackEntry) -> bool:
        """Whether another version of the object is not in an older pack."""
        for version in self._versions.get(entry.path, ()):
            place = self._places.get((entry.path, version))
            if version != entry.version and (place is None or place.pack > pack):
                return True
        return False

    def _add(self, path_name: str, version_name: str, span: Span) -> None:
        self._spans.setdefault((path_name, version_name), SpanMap()).add(span)
        self._versions.setdefault(path_name, set()).add(version_name)

    def _add_pack(self, name: str, entries: Sequence[PackEntry]) -> None:
        self._packs.setdefault(name, []).extend(entries)
        for entry in entries:
            self._places[entry.path, entry.version] = PackPlace(name, entry.offset)
            self._add(entry.path, entry.version, Span(0, entry.length))

    def _discard(self, path_name: str, version_name: str, span: Span) -> None:
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


def read_entries(name: str, parsed: PackName, directory: int) -> list[PackEntry]:
    """Reads the table of a pack; DamagedBlockError if it is not what was written."""
    file = open_file(name, directory)
    try:
        size = table_bytes(parsed.blocks)
        if size > parsed.length:
            raise DamagedBlockError("no pack has such a name")
        return parse_table(os.pread(file, size, parsed.length - size), parsed.blocks)
    finally:
        os.close(file)
