"""Bad input through `for`, `async for`, Arrow and each way to load in PyTorch: one clear error, and no hang.

`grain_cases.py` and `jax_cases.py` test their adapters in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset
from tests.adapters.conftest import (
    LOADER_WARNINGS,
    Leaving,
    Load,
    check_damage,
    check_leaving,
    check_missing_feature,
)

pytestmark = LOADER_WARNINGS


def on_the_loop(dataset: Dataset[Any]) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(batches, None)

    batches = dataset.aiterate()
    with asyncio.Runner() as runner:
        while (batch := runner.run(following())) is not None:
            yield batch


def through_arrow(dataset: Dataset[Any]) -> Iterator[Any]:
    for batch in dataset.to_arrow():
        yield {"id": batch["id"].to_numpy()}


def with_the_loader(dataset: Dataset[Any]) -> Iterable[Any]:
    from streamrec.torch import Loader

    return Loader(dataset)


def in_one_process(dataset: Dataset[Any], workers: int = 0, loader: Any = None) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    from streamrec.torch import IterableDataset

    batches: Iterable[Any] = (loader or DataLoader)(IterableDataset(dataset), batch_size=None, num_workers=workers)
    return batches


def in_workers(dataset: Dataset[Any]) -> Iterable[Any]:
    return in_one_process(dataset, workers=2)


def in_stateful_workers(dataset: Dataset[Any]) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return in_one_process(dataset, workers=2, loader=StatefulDataLoader)


def needs(package: str, *marks: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"), *marks]


ways = pytest.mark.parametrize(
    "way",
    [
        iter,
        on_the_loop,
        pytest.param(through_arrow, marks=needs("pyarrow")),
        pytest.param(with_the_loader, marks=needs("torch", pytest.mark.peer)),
        pytest.param(in_one_process, marks=needs("torch", pytest.mark.peer)),
        pytest.param(in_workers, marks=needs("torch", pytest.mark.peer)),
        pytest.param(in_stateful_workers, marks=needs("torchdata", pytest.mark.peer)),
    ],
)


@ways
def test_damage_is_one_error(tmp_path: Path, way: Load) -> None:
    check_damage(tmp_path, way, alone=way not in (in_workers, in_stateful_workers))


@ways
def test_a_missing_feature_is_one_error(tmp_path: Path, way: Load) -> None:
    check_missing_feature(tmp_path, way)


@ways
def test_a_server_that_goes_away_is_one_error(leaving: Leaving, way: Load) -> None:
    check_leaving(leaving, way)
