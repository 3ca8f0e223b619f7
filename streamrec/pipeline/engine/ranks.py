"""Looks up the rank and the loader worker where a pipeline runs.

Rules:
- No large package is imported: a process that runs under torch or JAX has them in `sys.modules`.
- The first of these decides: torch.distributed, if its process group is set up; JAX, if it runs
  distributed; `RANK` and `WORLD_SIZE`, as torchrun and others set them; otherwise there is one
  process.
- Within a rank, `torch.utils.data.get_worker_info()` identifies the workers of a torch
  `DataLoader`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamrec.arguments import check_integer
from streamrec.display import logger, warn_once


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the processes that share the data: `rank`, from 0, of `world_size`."""

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank={self.rank} must be at least 0 and less than world_size={self.world_size}"
            )


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader: a rank's only process, or one of its loader workers.

    A rank's readers have consecutive numbers.
    """

    number: int
    readers: int


def rank_of(rank: int | None, world_size: int | None) -> Rank | None:
    """The rank of a user's arguments; None if both are None."""
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ValueError(f"rank={rank} and world_size={world_size}: pass both, or neither")
    return Rank(check_integer("rank", rank), check_integer("world_size", world_size))


def reader_here(rank: Rank | None = None) -> Reader:
    """The reader that iterates here; `rank=None` looks the rank up."""
    rank = rank or rank_here()
    worker, workers = worker_here()
    return Reader(rank.rank * workers + worker, rank.world_size * workers)


def warn_uneven(reader: Reader, loads: Sequence[int], what: str, remedy: str) -> None:
    """Warns once in a process if readers get no data, or one rank far more than another.

    It compares the bytes or records of each reader. The first reader warns, and each reader without
    data.
    """
    if (reader.number and loads[reader.number]) or not any(loads):
        return
    # Sizes are compared by rank: the loader workers of a rank share its work, so a difference
    # between them costs nothing, unless one has no data at all.
    workers = worker_here()[1]
    ranks = [sum(loads[first : first + workers]) for first in range(0, len(loads), workers)]
    unit, name = (ranks, "ranks") if 0 in ranks else (loads, "readers (ranks times loader workers)")
    empty = [number for number, load in enumerate(unit) if not load]
    if empty:
        numbers = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        warn_once(f"of {len(unit)} {name}, these get nothing of {what}: {numbers}. {remedy}")
    elif max(ranks) >= 2 * min(ranks):
        most = ranks.index(max(ranks))
        least = ranks.index(min(ranks))
        times = max(ranks) / min(ranks)
        warn_once(
            f"rank {most} of {len(ranks)} gets {times:.1f} times as much as rank {least} of "
            f"{what}. {remedy}"
        )


def log_reader(reader: Reader, what: str) -> None:
    """Logs which part is read here. Other code that divides the data once more can be seen from
    it.
    """
    if reader.readers > 1:
        message = "reader %d of %d (ranks times loader workers) reads its part of %s"
        logger.info(message, reader.number, reader.readers, what)


def worker_here() -> tuple[int, int]:
    """The number of this loader worker, and how many the rank has; (0, 1) without workers."""
    torch = sys.modules.get("torch.utils.data")
    info = None if torch is None else torch.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def rank_here(
    environ: Mapping[str, str] = os.environ, modules: Mapping[str, Any] = sys.modules
) -> Rank:
    """This process's rank according to torch.distributed, JAX or the environment.

    Without these it is 0 of 1.
    """
    distributed = modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size())
    jax = modules.get("jax")
    # older versions have no `is_initialized`
    if jax is not None and getattr(jax.distributed, "is_initialized", lambda: True)():
        return Rank(jax.process_index(), jax.process_count())
    variables = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if name in environ}
    if not variables:
        return Rank(0, 1)
    try:
        return Rank(int(variables["RANK"]), int(variables["WORLD_SIZE"]))
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"the environment has {variables}, which is not a valid rank ({error}): set both "
            "RANK, from 0, and WORLD_SIZE, or neither, or pass rank= and world_size="
        ) from error
