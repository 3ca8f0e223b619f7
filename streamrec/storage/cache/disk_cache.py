"""DiskCache: one directory of the cache, for all streams of a process. All of it is blocking I/O.

Rules:
- A failing disk is no error of a run. The first fault turns the cache off for this process, a full
  disk only its writing, with one warning; what is lost is a miss.
- A block gets its name when it is complete, so that a process that is killed leaves a temporary
  file, which the next one removes.
- Bytes are reserved in the shared count before they are written: the limit holds at all times.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final

from streamrec.display import display_name, mask_name
from streamrec.storage.cache.block_file import (
    Checksums,
    DamagedBlockError,
    OpenBlock,
    file_bytes,
    read_block,
)
from streamrec.storage.cache.directories import Directories
from streamrec.storage.cache.eviction import (
    LOCK_SECONDS,
    RETRY_SECONDS,
    StoredBlock,
    StoredSet,
    choose_victims,
    is_expired,
    room_to_make,
)
from streamrec.storage.cache.files import (
    OneOpenFile,
    create_file,
    exists,
    make_directory,
    open_counter,
    open_directory,
    open_file,
    read_short_file,
    remove_file,
    try_lock,
    write_all,
)
from streamrec.storage.cache.journal import add_line
from streamrec.storage.cache.names import (
    ABOUT,
    JOURNAL,
    MARKER,
    ObjectKey,
    charge_of,
    is_lock,
    is_set,
    parse_block,
    parse_pack,
    writer_of,
)
from streamrec.storage.cache.packs import Packs
from streamrec.storage.cache.runs import Runs
from streamrec.storage.cache.set_index import SetIndex
from streamrec.storage.cache.spans import Span
from streamrec.storage.cache.speed import SpeedComparison
from streamrec.storage.cache.usage import Usage, bytes_ahead
from streamrec.storage.cache_settings import CacheSettings

logger = logging.getLogger("streamrec")

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Faults after which blocks can still be read."""

FULL_SECONDS: Final = 1.0
"""For so long after a block was not admitted, streams do not even copy the next ones."""


ABANDONED_SECONDS: Final = 60.0
"""A lock without progress for so long is removed when the cache is measured."""


class Lock(Enum):
    """The answer to a request for the lock of a block."""

    HELD = "this process fetches it"
    BUSY = "another process, or another stream of this one, fetches it"
    OFF = "the cache is off"


class CacheMode(Enum):
    """What a process does with the cache."""

    ON = "reads and writes"
    READS = "reads only: the disk is full"
    OFF = "off"


class DiskCache:
    """A directory of the cache; made by `open_cache`.

    Attributes:
        settings: Where it is, and its limit.
        state: What this process does with it.
        speeds: The measured rates of the disk and of the stores.
        runs: The processes that use it.
        usage: How many bytes it takes.
        packs: The packs that this process writes.
        full_until: When the next block may be admitted, as `time.monotonic`.
    """

    def __init__(self, settings: CacheSettings) -> None:
        self.settings = settings
        self.state = CacheMode.ON
        self.speeds = SpeedComparison()
        self.full_until = 0.0
        self._directories = Directories(settings.directory)
        try:
            self.usage = Usage(self._directories.root, bytes_ahead(settings.limit))
            self.runs = Runs(self._directories.runs)
        except BaseException:
            self._directories.close()
            raise
        self.packs = Packs(
            run=self.runs.token,
            usage=self.usage,
            reserve=self.reserve,
            open_set=self._open_set,
            tell=self._tell,
        )
        self._opening = threading.Lock()
        self._indexes: dict[str, tuple[int, SetIndex]] = {}

    def begin(self) -> None:
        """Counts what is on the disk, unless another process does, and keeps it to the limit."""
        if not self.usage.is_known() or not self.runs.has_others():
            self.usage.measure(self._measure)
        exceeding = self.usage.used() - self.settings.limit
        if exceeding > 0:
            self._make_room(exceeding)

    def index(self, key: ObjectKey) -> SetIndex | None:
        """Returns the known blocks of a data set, and notes that this process uses it."""
        name = key.set_name
        with self._opening:
            known = self._indexes.get(name)
            if known is not None:
                return known[1]
            try:
                make_directory(name, self._directories.sets)
                directory = open_directory(name, self._directories.sets)
                self._describe_set(key, directory)
                self.runs.use(name)
                index = SetIndex()
                damaged = index.list_directory(directory)
            except OSError as error:
                self.fail(error, "opening a data set")
                return None
            self._indexes[name] = directory, index
        self._drop_packs(name, damaged)
        self._remove_superseded_packs(name)
        return index

    def _open_set(self, set_name: str) -> tuple[int, SetIndex]:
        """Returns the open directory and the known blocks of a data set that `index` has opened."""
        return self._indexes[set_name]

    def follow(self, key: ObjectKey) -> None:
        """Learns of the blocks that other processes have completed by now."""
        directory, index = self._indexes[key.set_name]
        try:
            damaged = index.follow(directory)
        except OSError as error:
            self.fail(error, "looking for blocks of other processes")
        else:
            self._drop_packs(key.set_name, damaged)

    def _tell(self, name: str, directory: int) -> None:
        """Tells the other processes of a complete file."""
        try:
            add_line(name, directory)
        except OSError as error:
            self.fail(error, "telling other processes of a block")

    def has_others(self) -> bool:
        """Whether other processes use the cache."""
        try:
            return self.runs.has_others()
        except OSError as error:
            self.fail(error, "looking for other processes")
            return False

    def may_have_others(self) -> bool:
        """Whether other processes use the cache, or may be starting to with this one."""
        return self.runs.is_young() or self.has_others()

    def open_block(self, key: ObjectKey, span: Span) -> OpenBlock | None:
        """Opens a block; None if it is gone, damaged or cannot be read."""
        directory, index = self._indexes[key.set_name]
        name, offset = index.place(key, span)
        try:
            return OpenBlock(open_file(name, directory), key.digest, *span, at=offset)
        except FileNotFoundError:
            self._forget(key.set_name, name)
        except DamagedBlockError as damage:
            self.drop(key, span, damage)
        except OSError as error:
            self.give_up_block(key, span, error)
        return None

    def open_ahead(self, key: ObjectKey, span: Span) -> OpenBlock | None:
        """Opens a block before its turn; None if `open_block` shall say why it cannot be read.

        So too many open files turn no cache off.
        """
        directory, index = self._indexes[key.set_name]
        name, offset = index.place(key, span)
        with suppress(OSError, DamagedBlockError):
            return OpenBlock(open_file(name, directory), key.digest, *span, at=offset)
        return None

    def read_whole(self, keys: Sequence[ObjectKey]) -> list[bytearray | None]:
        """Reads objects that are one block each; None for those that are gone, damaged or cannot
        be read. Each pack is opened once for those that are next to each other in it.
        """
        with OneOpenFile() as opened:
            return [self._read_whole(key, opened) for key in keys]

    def _read_whole(self, key: ObjectKey, opened: OneOpenFile) -> bytearray | None:
        if self.state is CacheMode.OFF:
            return None
        span = Span(0, key.size)
        directory, index = self._indexes[key.set_name]
        name, offset = index.place(key, span)
        try:
            return read_block(opened.open(name, directory), key.digest, *span, at=offset)
        except FileNotFoundError:
            self._forget(key.set_name, name)
        except DamagedBlockError as damage:
            self.drop(key, span, damage)
        except OSError as error:
            self.give_up_block(key, span, error)
        return None

    def give_up_block(self, key: ObjectKey, span: Span, error: OSError) -> None:
        """Forgets a block that cannot be read, so that it is a miss whatever the fault means."""
        _, index = self._indexes[key.set_name]
        self._forget(key.set_name, index.place(key, span).pack)
        self.fail(error, "reading a block")

    def drop(self, key: ObjectKey, span: Span, damage: DamagedBlockError) -> None:
        """Removes a damaged block, and says so in the log; the store has its bytes."""
        logger.warning(
            "the cache in %s has a damaged block of %s, bytes %s to %s: %s; it is removed and read "
            "from the store",
            display_name(self.settings.directory),
            display_name(key.path),
            f"{span.start:,}",
            f"{span.end:,}",
            damage,
        )
        _, index = self._indexes[key.set_name]
        self._remove_known(key.set_name, index.place(key, span).pack)

    def remove_superseded(self, key: ObjectKey) -> None:
        """Removes the blocks of earlier versions of an object, and packs that have little else."""
        _, index = self._indexes[key.set_name]
        for version, span in index.other_versions(key):
            if index.is_packed(key.path_name, version):
                continue
            name = f"{key.path_name}-{version}-{span.start:x}-{span.length:x}.block"
            self._remove(key.set_name, name, charge_of(file_bytes(span.length)))
            index.discard(key.path_name, version, span)
        self._remove_superseded_packs(key.set_name)

    def _remove_superseded_packs(self, set_name: str) -> None:
        for name in self._indexes[set_name][1].superseded_packs():
            self._remove_known(set_name, name)

    def _drop_packs(self, set_name: str, damaged: Sequence[tuple[str, DamagedBlockError]]) -> None:
        """Removes packs that cannot be read, and says so in the log."""
        for name, damage in damaged:
            logger.warning(
                "the cache in %s has a damaged pack of short objects, %s: %s; it is removed, and "
                "they are read from the store",
                display_name(self.settings.directory),
                name,
                damage,
            )
            self._remove_known(set_name, name)

    def _remove_known(self, set_name: str, name: str) -> None:
        """Removes a block's or a pack's file, and forgets what is in it.

        What this process is still writing is only forgotten.
        """
        charge = charge_of_name(name)
        if charge is not None:
            self._remove(set_name, name, charge)
        self._forget(set_name, name)

    # Fetching once: locks.

    def lock(self, key: ObjectKey, start: int) -> Lock:
        """Locks the block that begins at `start`; a holder without progress is overtaken."""
        if self.state is not CacheMode.ON:
            return Lock.OFF
        directory, _ = self._indexes[key.set_name]
        name = key.lock(start)
        try:
            for _ in range(2):
                try:
                    os.close(create_file(name, directory))
                    return Lock.HELD
                except FileExistsError:
                    if not self._is_expired(name, directory):
                        return Lock.BUSY
                    remove_file(name, directory)
            return Lock.BUSY
        except OSError as error:
            self.fail(error, "locking a block")
            return Lock.OFF

    def is_locked(self, key: ObjectKey, start: int) -> bool:
        """Whether the block that begins at `start` is locked."""
        try:
            return exists(key.lock(start), self._indexes[key.set_name][0])
        except OSError as error:
            self.fail(error, "looking for a lock")
            return False

    def touch(self, key: ObjectKey, start: int) -> None:
        """Shows that the fetch of a block makes progress."""
        with suppress(OSError):
            os.utime(key.lock(start), dir_fd=self._indexes[key.set_name][0], follow_symlinks=False)

    def unlock(self, key: ObjectKey, start: int) -> None:
        """Frees the lock of a block. If another process has overtaken this one, it is that one's,
        and two processes fetch the block: that costs time, and nothing else.
        """
        with suppress(OSError):
            remove_file(key.lock(start), self._indexes[key.set_name][0])

    # Writing.

    def admit(self, key: ObjectKey, start: int, length: int) -> BlockWriter | None:
        """Begins to write a block of at most `length` bytes; None if it is not admitted."""
        if self.state is not CacheMode.ON or time.monotonic() < self.full_until:
            return None
        directory, _ = self._indexes[key.set_name]
        charge = charge_of(file_bytes(length))
        try:
            if not self.reserve(charge):
                return None
            try:
                file = create_file(key.temporary(start, self.runs.token), directory)
            except BaseException:
                self.usage.release(charge)
                raise
        except FileExistsError:
            return None  # another stream of this process writes it
        except OSError as error:
            self.fail(error, "making a block")
            return None
        return BlockWriter(self, key, start, charge, file)

    def reserve(self, charge: int) -> bool:
        """Reserves bytes that will be written, and makes room for them; False if there is none."""
        if self.state is not CacheMode.ON or time.monotonic() < self.full_until:
            return False
        return not self.usage.reserve(charge, self.settings.limit) or self._admit_after(charge)

    def commit(self, block: BlockWriter, checksums: Checksums, last: list[memoryview]) -> None:
        """Writes the last bytes of a block, and gives it its name; its charge becomes that of its
        bytes.
        """
        key = block.key
        directory, index = self._indexes[key.set_name]
        span = Span(block.start, checksums.length)
        name = key.block(*span)
        temporary = key.temporary(block.start, self.runs.token)
        foot = checksums.foot(key.digest, block.start)
        write_all(block.file, [*last, memoryview(foot)])
        block.close()
        charge = charge_of(file_bytes(span.length))
        if exists(name, directory):
            remove_file(temporary, directory)
            charge = 0  # its writer counted it
        else:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        block.settle(charge)
        index.add(key.path_name, key.version_name, span)
        self._tell(name, directory)

    def discard(self, block: BlockWriter) -> None:
        """Removes a block that will not be complete."""
        block.close()
        directory, _ = self._indexes[block.key.set_name]
        with suppress(OSError):
            remove_file(block.key.temporary(block.start, self.runs.token), directory)
            block.settle(0)

    # Failing.

    def fail(self, error: OSError, doing: str) -> None:
        """Turns the cache off for this process, or its writing, with one warning."""
        if self.state is CacheMode.OFF or (self.state is CacheMode.READS and error.errno in FULL):
            return
        full = error.errno in FULL
        self.state = CacheMode.READS if full else CacheMode.OFF
        logger.warning(
            "the cache in %s failed (%s: %s): this process goes on %s",
            display_name(self.settings.directory),
            doing,
            error.strerror or error,
            "without adding to it" if full else "without it, and reads the store",
        )

    def close(self, *, ends: bool = True) -> None:
        """Closes all files. In a forked child, the run is its parent's and does not end."""
        self.state = CacheMode.OFF
        if ends:
            with suppress(OSError):
                self.usage.settle()
                self.runs.end()
        self.packs.close()
        self.runs.close()
        self.usage.close()
        for directory, _ in self._indexes.values():
            os.close(directory)
        self._indexes.clear()
        self._directories.close()

    def stored_sets(self) -> Iterator[StoredSet]:
        """Yields what is on the disk."""
        for name in sorted(os.listdir(self._directories.sets)):
            if not is_set(name):
                continue
            try:
                directory = open_directory(name, self._directories.sets)
            except OSError:
                continue
            try:
                yield _stored_set(name, directory)
            finally:
                os.close(directory)

    def about(self, set_name: str) -> str:
        """Returns the URL of a data set; "" if nothing says it."""
        try:
            directory = open_directory(set_name, self._directories.sets)
        except OSError:
            return ""
        try:
            return str(json.loads(read_short_file(ABOUT, directory))["url"])
        except (OSError, ValueError, LookupError, TypeError):
            return ""
        finally:
            os.close(directory)

    def remove_blocks(self, needed: int, *, except_used: bool = True) -> int:
        """Removes blocks of data sets until `needed` bytes are free; returns how many are."""
        in_use = self.runs.in_use() if except_used else set()
        freed = 0
        for set_name, block in choose_victims(self.stored_sets(), in_use, needed):
            if self._remove(set_name, block.name, block.charge):
                freed += block.charge
                self._forget(set_name, block.name)
        self._remove_empty_sets(in_use)
        return freed

    def _admit_after(self, charge: int) -> bool:
        """Makes room for a block and reserves it; False if there is none."""
        needed = room_to_make(self.usage.used(), charge, self.settings.limit)
        freed = self._make_room(needed)
        if freed and not self.usage.reserve(charge, self.settings.limit):
            return True
        wait = RETRY_SECONDS if freed == 0 else FULL_SECONDS
        self.full_until = time.monotonic() + wait
        return False

    def _make_room(self, needed: int) -> int | None:
        """Removes blocks that no running job uses, and returns how many bytes are free now.

        None if another process is at it.
        """
        file = open_counter(MARKER, self._directories.root)
        try:
            return self.remove_blocks(needed) if try_lock(file) else None
        finally:
            os.close(file)

    def _remove(self, set_name: str, name: str, charge: int) -> bool:
        """Removes a block's file; the process that really removed it takes it from the count."""
        try:
            directory = open_directory(set_name, self._directories.sets)
            try:
                removed = remove_file(name, directory)
            finally:
                os.close(directory)
            if removed:
                self.usage.free(charge)
            return removed
        except FileNotFoundError:
            return False
        except OSError as error:
            self.fail(error, "removing a block")
            return False

    def _forget(self, set_name: str, name: str) -> None:
        known = self._indexes.get(set_name)
        if known is None:
            return
        block = parse_block(name)
        if block is None:
            known[1].discard_pack(name)
        else:
            known[1].discard(block.path, block.version, Span(block.start, block.length))

    def _remove_empty_sets(self, in_use: set[str]) -> None:
        """Removes directories without blocks that no running job uses."""
        for stored in list(self.stored_sets()):
            if stored.blocks or stored.name in in_use:
                continue
            with suppress(OSError):
                directory = open_directory(stored.name, self._directories.sets)
                try:
                    names = os.listdir(directory)
                    if set(names) <= {ABOUT, JOURNAL}:
                        for name in names:
                            remove_file(name, directory)
                finally:
                    os.close(directory)
                os.rmdir(stored.name, dir_fd=self._directories.sets)

    def _measure(self) -> int:
        """Counts the blocks, and removes what processes that have ended were writing."""
        alive = self.runs.alive()
        total = 0
        for name in os.listdir(self._directories.sets):
            if is_set(name):
                directory = open_directory(name, self._directories.sets)
                try:
                    total += _measure_set(directory, alive)
                finally:
                    os.close(directory)
        return total

    def _describe_set(self, key: ObjectKey, directory: int) -> None:
        """Writes which data set this is, or says that it is used again."""
        try:
            os.utime(ABOUT, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            about = {"url": mask_name(key.directory), "store": mask_name(key.store)}
            with suppress(FileExistsError):
                file = create_file(ABOUT, directory)
                try:
                    write_all(file, [memoryview(json.dumps(about).encode())])
                finally:
                    os.close(file)

    def _is_expired(self, name: str, directory: int) -> bool:
        try:
            touched = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mtime
        except FileNotFoundError:
            return True
        return is_expired(touched, time.time(), LOCK_SECONDS)


class BlockWriter:
    """A block that is being written; `commit` or `discard` of its cache ends it.

    Attributes:
        key, start: The object, and the block's first byte.
        file: The temporary file.
    """

    def __init__(
        self, cache: DiskCache, key: ObjectKey, start: int, charge: int, file: int
    ) -> None:
        self.key = key
        self.start = start
        self.file = file
        self._cache = cache
        self._charge = charge

    def settle(self, charge: int) -> None:
        """Returns what was reserved, but for the charge of what stays on the disk."""
        reserved, self._charge = self._charge, charge
        self._cache.usage.release(reserved - charge)

    def close(self) -> None:
        """Closes the file. May be called twice."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)


def charge_of_name(name: str) -> int | None:
    """Returns what the file of a block or a complete pack counts; None for any other file.

    >>> charge_of_name("0000000000000001-0123456789abcdef-3-100000.pack")
    1048576
    """
    block = parse_block(name)
    if block is not None:
        return charge_of(file_bytes(block.length))
    pack = parse_pack(name)
    return None if pack is None else charge_of(pack.length)


def _stored_set(name: str, directory: int) -> StoredSet:
    blocks = []
    for entry in sorted(os.listdir(directory)):
        charge = charge_of_name(entry)
        if charge is not None:
            blocks.append(StoredBlock(entry, charge))
    try:
        used = os.stat(ABOUT, dir_fd=directory, follow_symlinks=False).st_mtime
    except OSError:
        used = 0.0
    return StoredSet(name, used, blocks)


def _measure_set(directory: int, alive: set[str]) -> int:
    """Counts the blocks of a data set, and removes what is left of processes that have ended."""
    total = 0
    for name in os.listdir(directory):
        charge = charge_of_name(name)
        writer = writer_of(name)
        if charge is not None:
            total += charge
        elif (
            name == JOURNAL  # who has the data set open lists it again
            or (writer is not None and writer not in alive)
            or (is_lock(name) and _is_abandoned(name, directory))
        ):
            remove_file(name, directory)
    return total


def _is_abandoned(lock: str, directory: int) -> bool:
    try:
        touched = os.stat(lock, dir_fd=directory, follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return False
    return is_expired(touched, time.time(), ABANDONED_SECONDS)
