"""The reader that iterates: which rank of how many, and which loader worker of how many. Looked up where a
pipeline runs.

Rules:
- Nothing heavy is imported for it: a process that runs under torch or JAX has them in `sys.modules`.
- The first that knows counts: torch.distributed, where its process group is set up; JAX, where it runs distributed;
  `RANK` and `WORLD_SIZE`, as torchrun and others set them; else there is one process.
- Within a rank the workers of a torch `DataLoader` are told apart by `torch.utils.data.get_worker_info()`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from streamrec.arguments import integer

__all__ = ["Rank", "Reader", "rank_here", "rank_of", "reader_here", "warn_once", "warn_uneven", "worker_here"]

logger = logging.getLogger("streamrec")


@dataclass(frozen=True, slots=True)
class Rank:
    """One of the processes that share the data.

    Args:
        rank: Its number, from 0.
        world_size: How many there are.
    """

    rank: int
    world_size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} must be at least 0 and less than world_size={self.world_size}")


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader: a rank's only process, or one of its loader workers.

    Args:
        number: Its number, from 0; those of a rank follow each other.
        readers: How many there are in all.
    """

    number: int
    readers: int


def rank_of(rank: int | None, world_size: int | None) -> Rank | None:
    """A rank that was given, or None.

    Raises:
        ValueError: One of the two is missing, or they make no sense.
    """
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ValueError(f"rank={rank} and world_size={world_size}: pass both, or neither")
    return Rank(integer("rank", rank), integer("world_size", world_size))


def reader_here(rank: Rank | None = None) -> Reader:
    """The reader that iterates here.

    Args:
        rank: The rank, where it is known; None to look.

    Raises:
        ValueError: `RANK` and `WORLD_SIZE` make no sense.
    """
    rank = rank or rank_here()
    worker, workers = worker_here()
    return Reader(rank.rank * workers + worker, rank.world_size * workers)


def warn_uneven(reader: Reader, loads: Sequence[int], what: str, remedy: str) -> None:
    """Says where a plan leaves readers without data, or one rank with far less than another; once in a process.

    The first reader says it, and each that has nothing.

    Args:
        reader: The one that has worked the plan out.
        loads: For each reader, how much it has: bytes, or records.
        what: What is divided.
        remedy: What to do.
    """
    if (reader.number and loads[reader.number]) or not any(loads):
        return
    workers = worker_here()[1]
    ranks = [sum(loads[first : first + workers]) for first in range(0, len(loads), workers)]
    unit, name = (ranks, "ranks") if 0 in ranks else (loads, "readers (ranks times loader workers)")
    empty = [number for number, load in enumerate(unit) if not load]
    if empty:
        numbers = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
        warn_once(f"of {len(unit)} {name}, these get nothing of {what}: {numbers}. {remedy}")
    elif max(ranks) >= 2 * min(ranks):
        most, least = ranks.index(max(ranks)), ranks.index(min(ranks))
        times = max(ranks) / min(ranks)
        warn_once(f"rank {most} of {len(ranks)} gets {times:.1f} times as much as rank {least} of {what}. {remedy}")


@cache
def warn_once(text: str) -> None:
    """Logs a warning, the first time that this process has it."""
    logger.warning("%s", text)


def worker_here() -> tuple[int, int]:
    """Which loader worker of a rank iterates here, from 0, and of how many; 0 of 1 where there are none."""
    torch = sys.modules.get("torch.utils.data")
    info = None if torch is None else torch.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def rank_here(environ: Mapping[str, str] = os.environ, modules: Mapping[str, Any] = sys.modules) -> Rank:
    """This process's rank, as torch.distributed, JAX or the environment tell it; else the only one.

    Args:
        environ: The environment.
        modules: What has been imported.

    Raises:
        ValueError: `RANK` and `WORLD_SIZE` make no sense.
    """
    distributed = modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Rank(distributed.get_rank(), distributed.get_world_size())
    jax = modules.get("jax")
    if jax is not None and getattr(jax.distributed, "is_initialized", lambda: True)():  # older ones do not tell
        return Rank(jax.process_index(), jax.process_count())
    told = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if name in environ}
    if not told:
        return Rank(0, 1)
    try:
        return Rank(int(told["RANK"]), int(told["WORLD_SIZE"]))
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"the environment has {told}, which names no rank ({error}): set both RANK, from 0, and WORLD_SIZE, "
            "or neither, or pass rank= and world_size="
        ) from error
