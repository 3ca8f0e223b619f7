"""What was found out already: a local file that lets a pass over shards go on where an earlier one was ended.

The file is a TFRecord file: each record is the index of one shard. What an interrupted write left at its
end is cut off.
"""

from __future__ import annotations

from pathlib import Path

from streamrec.errors import StorageError, StreamrecError
from streamrec.shards.index.encoder import IndexedShard, decode_index, encode_index
from streamrec.tfrecord import Framer, encode_record

__all__ = ["Journal"]


class Journal:
    """The shards that are known, by their URLs.

    Args:
        path: The file; it is made where there is none.

    Raises:
        StorageError: It cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, IndexedShard] = {}
        try:
            data = path.read_bytes() if path.exists() else b""
            self._file = path.open("r+b" if data else "wb")
            self._file.truncate(self._file.seek(self._take(data)))
        except OSError as error:
            raise StorageError(f"this file cannot be used to resume from ({error})", str(path)) from error

    def add(self, shard: IndexedShard) -> None:
        """Notes a shard: it is in the file when this returns."""
        self.known[shard.info.path] = shard
        self._file.write(encode_record(encode_index("", [shard])))
        self._file.flush()

    def close(self) -> None:
        """Closes the file, and leaves it."""
        self._file.close()

    def remove(self) -> None:
        """All is done: nobody needs it any more."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _take(self, data: bytes) -> int:
        """Takes what is whole; returns where it ends."""
        framer = Framer()
        frames = framer.feed(data)
        for number, record in enumerate(frames):
            try:
                for shard in decode_index("", record):
                    self.known[shard.info.path] = shard
            except StreamrecError:
                return frames.offset(number)
        if data and not len(frames):
            raise StorageError(
                "this file is not one to resume from: name one that is not there yet, or the one of an earlier run",
                str(self._path),
            )
        return framer.position
