"""list_files: gives the names that patterns match.

Rules:
- The patterns are listed once, so all epochs and runs of a Dataset have the same names.
- A position has the number of names, a digest of all, and the next one. Resuming with other names
  is an error that says what differs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.lowlevel
import numpy as np

from streamrec.display import display_repr
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns, objects
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.elements.specs import record_spec
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.seeds import words
from streamrec.pipeline.engine.session import Memo, SourceStores
from streamrec.pipeline.engine.states import format_names
from streamrec.shards import Filenames
from streamrec.shards.listing import to_names
from streamrec.storage import locate

CHUNK_NAMES = 1 << 12


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class Names(Source):
    """The names that patterns match, as bytes.

    They are sorted for each pattern, or shuffled in each epoch.
    """

    filenames: tuple[str, ...]
    shuffle: bool
    seed: int | None
    stores: SourceStores = field(default=SourceStores(), repr=False)
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    @classmethod
    def of(
        cls, patterns: Filenames, shuffle: bool | None, seed: int | None, stores: SourceStores
    ) -> Names:
        """The names that patterns match; `shuffle=None` shuffles if there is a seed."""
        shuffle = seed is not None if shuffle is None else shuffle
        names = tuple(locate(name, stores.filesystem) for name in to_names(patterns))
        return cls(filenames=names, shuffle=shuffle, seed=seed if shuffle else None, stores=stores)

    def lines(self) -> Iterator[str]:
        yield f"Names({format_names(self.filenames)}, shuffle={self.shuffle!r}, seed={self.seed!r})"

    def element_spec(self) -> Any:
        return record_spec()

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        session = context.session
        opened = await session.open(self, self.stores, 0, self.filenames, self.memo, patterns=True)
        listing = opened.listing
        # All names first: they are sorted or shuffled as a whole, and the digest is of all of them.
        while not listing.complete:
            await listing.until(len(listing.paths) + 1)
        names = [os.fsencode(path) for path in listing.paths]
        if self.shuffle:
            seed = context.seed if self.seed is None else self.seed
            keys = words(seed, context.epoch, 0, len(names))
            names = [names[index] for index in np.argsort(keys, kind="stable")]
        digest = hashlib.blake2b(b"\0".join(names), digest_size=16).hexdigest()
        first = resume(names, digest, state) if state else 0
        for start in range(first, len(names), CHUNK_NAMES):
            elements = Columns(objects(names[start : start + CHUNK_NAMES]))
            await anyio.lowlevel.checkpoint()
            source = partial(describe_names, names, digest)
            yield Chunk.weigh(elements, NumberedPositions(start, source))
        if listing.error is not None:
            raise listing.error


def resume(names: Sequence[bytes], digest: str, state: Mapping[str, Any]) -> int:
    """The index of the name at which a run continues; an error if the names have changed."""
    index: int = state["next"]
    if state["digest"] != digest:
        was = state["name"]
        now = name_at(names, index)
        change = "the next one is the same"
        if was != now:
            change = f"the next one was {was}, and now it is {now}"
        raise PositionMismatchError(
            "the names that list_files found have changed since this state was saved: there were "
            f"{state['names']:,}, and now there are {len(names):,}; {change}; resume with the "
            "same files, or start over without the state"
        )
    return index


def name_at(names: Sequence[bytes], index: int) -> str | None:
    """A name as text, for a state; None after the last one."""
    return os.fsdecode(names[index]) if index < len(names) else None


def describe_names(names: Sequence[bytes], digest: str, index: int) -> dict[str, Any]:
    """The state of the source: the next name and its number, and a digest of all names."""
    return {"next": index, "names": len(names), "digest": digest, "name": name_at(names, index)}
