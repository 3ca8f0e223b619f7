"""Ranks: what the user says, and what torch, JAX and the environment say; who is told of uneven
loads.
"""

import logging
import sys
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from streamrec.pipeline.engine.ranks import (
    Rank,
    Reader,
    rank_here,
    rank_of,
    reader_here,
    warn_uneven,
)

numbers = count()


def torch_of(rank: int, world_size: int, *, available: bool = True, begun: bool = True) -> Any:
    """What a process has in `sys.modules` as torch.distributed."""
    return SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: begun,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )


def jax_of(rank: int, world_size: int, begun: bool | None = True) -> Any:
    """The module `jax`; without `is_initialized`, as in older versions, if `begun` is None."""
    told = {} if begun is None else {"is_initialized": lambda: begun}
    return SimpleNamespace(
        distributed=SimpleNamespace(**told),
        process_index=lambda: rank,
        process_count=lambda: world_size,
    )


LAUNCHED = {"RANK": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("modules", "environment", "rank"),
    [
        ({}, {}, Rank(0, 1)),
        ({}, LAUNCHED, Rank(1, 4)),
        ({"torch.distributed": torch_of(2, 3)}, LAUNCHED, Rank(2, 3)),
        ({"torch.distributed": torch_of(2, 3), "jax": jax_of(4, 5)}, {}, Rank(2, 3)),
        ({"torch.distributed": torch_of(2, 3, begun=False)}, LAUNCHED, Rank(1, 4)),
        ({"torch.distributed": torch_of(2, 3, available=False)}, LAUNCHED, Rank(1, 4)),
        ({"jax": jax_of(4, 5)}, LAUNCHED, Rank(4, 5)),
        ({"jax": jax_of(4, 5, None)}, LAUNCHED, Rank(4, 5)),
        ({"jax": jax_of(4, 5, False)}, LAUNCHED, Rank(1, 4)),
        ({"jax": jax_of(4, 5, False)}, {}, Rank(0, 1)),
    ],
)
def test_the_first_that_knows_decides(
    modules: dict[str, Any], environment: dict[str, str], rank: Rank
) -> None:
    assert rank_here(environment, modules) == rank


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "4"},
        {"RANK": "one", "WORLD_SIZE": "4"},
        {"RANK": "4", "WORLD_SIZE": "4"},
        {"RANK": "-1", "WORLD_SIZE": "4"},
    ],
)
def test_a_wrong_environment_is_shown(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not a valid rank") as caught:
        rank_here(environment, {})
    assert str(environment) in str(caught.value)


def test_a_user_gives_both_numbers_or_neither() -> None:
    assert rank_of(None, None) is None
    assert rank_of(0, 1) == Rank(0, 1)
    assert rank_of(3, 4) == Rank(3, 4)
    for rank, world_size in ((None, 4), (3, None)):
        with pytest.raises(ValueError, match="pass both, or neither"):
            rank_of(rank, world_size)
    for rank, world_size in ((4, 4), (-1, 4), (0, 0)):
        with pytest.raises(ValueError, match=f"rank={rank} must be at least 0"):
            rank_of(rank, world_size)


@pytest.mark.parametrize(
    ("number", "loads", "said"),
    [
        (0, [5, 0, 0], "of 3 ranks, these get nothing of x: 1, 2."),
        (2, [5, 0, 0], "of 3 ranks, these get nothing of x: 1, 2."),
        (0, [20, 11, 10], "rank 0 of 3 gets 2.0 times as much as rank 2 of x."),
        (0, [19, 11, 10], ""),
        (1, [20, 11, 10], ""),  # the first reader says it for all
        (0, [0, 0, 0], ""),
        (0, [1] + [0] * 12, "these get nothing of x: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...."),
        (0, [1] + [0] * 10, "these get nothing of x: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10. "),
    ],
)
def test_one_reader_warns_of_uneven_loads(
    caplog: pytest.LogCaptureFixture, number: int, loads: list[int], said: str
) -> None:
    remedy = f"Do something about case {next(numbers)}."  # a process says the same text once
    with caplog.at_level(logging.WARNING, "streamrec"):
        warn_uneven(Reader(number, len(loads)), loads, "x", remedy)
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)
    assert (remedy in caplog.text) == bool(said)


def test_workers_without_data_are_named_if_each_rank_has_some(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of two loader workers."""
    worker = SimpleNamespace(get_worker_info=lambda: SimpleNamespace(id=0, num_workers=2))
    monkeypatch.setitem(sys.modules, "torch.utils.data", worker)
    with caplog.at_level(logging.WARNING, "streamrec"):
        warn_uneven(Reader(0, 4), [5, 0, 3, 3], "workers' data", "Do it.")
    assert "of 4 readers (ranks times loader workers), these get nothing" in caplog.text
    assert "workers' data: 1." in caplog.text


def test_readers_of_a_rank_have_consecutive_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2 of 5, worker 1 of 3: reader 7 of 15. Without workers, readers are ranks."""
    monkeypatch.delitem(sys.modules, "torch.utils.data", raising=False)
    assert reader_here(Rank(2, 5)) == Reader(2, 5)
    worker = SimpleNamespace(get_worker_info=lambda: SimpleNamespace(id=1, num_workers=3))
    monkeypatch.setitem(sys.modules, "torch.utils.data", worker)
    assert reader_here(Rank(2, 5)) == Reader(7, 15)
