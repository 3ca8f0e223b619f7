"""The packs that a process writes, one for each data set: short objects, many at a time.

All of it runs in the writer's thread, but for `close`. A pack gets its name when it is full, when
a run ends, or at once if it has a block that other processes may wait for. Until then only this
process reads it, and the next one removes what is left of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from streamrec.storage.cache.block_file import Checksums, file_bytes
from streamrec.storage.cache.files import create_file, remove_file, write_all
from streamrec.storage.cache.names import MIN_CHARGE, ObjectKey, charge_of, pack_of, temporary_pack
from streamrec.storage.cache.pack_file import (
    ENTRY_BYTES,
    PACK_BYTES,
    PackEntry,
    build_table,
)
from streamrec.storage.cache.set_index import SetIndex
from streamrec.storage.cache.usage import Usage

SHORT_BYTES: Final = 256 << 10
"""Objects of up to this many bytes are written into packs, and read many at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortBlock:
    """A whole short object that waits to be written.

    Attributes:
        key: The object.
        pieces: Its bytes.
        checksums: Their CRC32Cs.
        locked: Whether this process has locked it, so that others may wait for it.
        done: Called once, in the writer's thread: whether the bytes were admitted. Other processes
            find them then, if the block is locked.
    """

    key: ObjectKey
    pieces: Sequence[memoryview]
    checksums: Checksums
    locked: bool
    done: Callable[[bool], None]


@dataclass(slots=True, kw_only=True)
class OpenPack:
    """A pack that is being written.

    Attributes:
        name: Its temporary name, and its own when it is complete.
        file: The open file; -1 when it is closed.
        directory: The data set's open directory.
        index: The known blocks of the data set.
        charge: The bytes that are reserved for it.
        length: The bytes that are written.
        entries: The blocks that are written.
    """

    name: str
    file: int
    directory: int
    index: SetIndex
    charge: int
    length: int = 0
    entries: list[PackEntry] = field(default_factory=list)

    def append(self, blocks: Sequence[ShortBlock]) -> None:
        """Writes blocks by one system call, and lets this process read them."""
        pieces: list[memoryview] = []
        entries: list[PackEntry] = []
        length = self.length
        for block in blocks:
            key = block.key
            foot = block.checksums.foot(key.digest, 0)
            pieces += [*block.pieces, memoryview(foot)]
            entries.append(PackEntry(key.path_name, key.version_name, key.size, length))
            length += key.size + len(foot)
        write_all(self.file, pieces)
        self.length = length
        self.entries += entries
        self.index.add_pack(self.name, entries)

    def complete(self) -> int:
        """Writes the table, and gives the file its name; returns its charge."""
        table = build_table(self.entries)
        write_all(self.file, [memoryview(table)])
        self.close()
        length = self.length + len(table)
        name = pack_of(self.name, count=len(self.entries), length=length)
        os.rename(self.name, name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self.index.rename_pack(self.name, name)
        self.name = name
        return charge_of(length)

    def close(self) -> None:
        """Closes the file. May be called twice."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)


class Packs:
    """The packs that a process writes into a cache.

    Args:
        run: What the names of this process's files have.
        usage: Gets back what was reserved and is not on the disk.
        reserve: Reserves bytes; False if there is no room.
        open_set: Returns a data set's open directory, and its known blocks.
        tell: Tells other processes the name of a complete pack in an open directory.
    """

    def __init__(
        self,
        *,
        run: str,
        usage: Usage,
        reserve: Callable[[int], bool],
        open_set: Callable[[str], tuple[int, SetIndex]],
        tell: Callable[[str, int], None],
    ) -> None:
        self._run = run
        self._usage = usage
        self._reserve = reserve
        self._open_set = open_set
        self._tell = tell
        self._open: dict[str, OpenPack] = {}

    def write(self, blocks: Sequence[ShortBlock]) -> None:
        """Writes short objects of one data set, if they are admitted."""
        admitted = False
        try:
            written = self._write(blocks)
            name = blocks[0].key.set_name
            if name in self._open and any(block.locked for block in blocks):
                self._complete(name)
            admitted = written
        finally:
            for block in blocks:
                block.done(admitted)

    def publish(self) -> None:
        """Completes all packs, so that other processes find them."""
        for name in list(self._open):
            self._complete(name)

    def close(self) -> None:
        """Closes the files: in a forked child they are its parent's."""
        for pack in self._open.values():
            pack.close()
        self._open.clear()

    def _write(self, blocks: Sequence[ShortBlock]) -> bool:
        name = blocks[0].key.set_name
        directory, index = self._open_set(name)
        # Two streams of this process may have read the same object at once.
        unique = {block.key: block for block in blocks}.values()
        fresh = [block for block in unique if index.covering(block.key, 0) != (0, block.key.size)]
        if not fresh:
            return True
        pack = self._open.get(name)
        charge = sum(file_bytes(block.key.size) + ENTRY_BYTES for block in fresh)
        if pack is None:
            charge += MIN_CHARGE  # more than the table's end, and than rounding the file's size up
        if not self._reserve(charge):
            return False
        if pack is None:
            pack = self._begin(directory, index, charge)
            self._open[name] = pack
        else:
            pack.charge += charge
        try:
            pack.append(fresh)
        except OSError:
            self._discard(name)
            raise
        if pack.length >= PACK_BYTES:
            self._complete(name)
        return True

    def _begin(self, directory: int, index: SetIndex, charge: int) -> OpenPack:
        temporary = temporary_pack(time.time_ns(), self._run)
        try:
            file = create_file(temporary, directory)
        except BaseException:
            self._usage.release(charge)
            raise
        return OpenPack(name=temporary, file=file, directory=directory, index=index, charge=charge)

    def _complete(self, name: str) -> None:
        pack = self._open[name]
        try:
            charge = pack.complete()
        except OSError:
            self._discard(name)
            raise
        del self._open[name]
        self._usage.release(pack.charge - charge)
        self._tell(pack.name, pack.directory)

    def _discard(self, name: str) -> None:
        """Removes a pack that will not be complete."""
        pack = self._open.pop(name)
        pack.close()
        pack.index.discard_pack(pack.name)
        with suppress(OSError):
            remove_file(pack.name, pack.directory)
            self._usage.release(pack.charge)
