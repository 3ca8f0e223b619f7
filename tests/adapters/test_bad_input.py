"""Bad input through `for`, `async for`, Arrow and each way to load in PyTorch: one clear error, and
no hang.

`grain_cases.py` and `jax_cases.py` test their adapters in the same way.
"""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset
from tests.adapters.conftest import LOADER_WARNINGS, LeavingServer, Load, check_bad_input, needs

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

    batches: Iterable[Any] = (loader or DataLoader)(
        IterableDataset(dataset), batch_size=None, num_workers=workers
    )
    return batches


def in_workers(dataset: Dataset[Any]) -> Iterable[Any]:
    return in_one_process(dataset, workers=2)


def in_stateful_workers(dataset: Dataset[Any]) -> Iterable[Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return in_one_process(dataset, workers=2, loader=StatefulDataLoader)


TORCH = needs("torch", pytest.mark.peer)


@pytest.mark.parametrize(
    ("way", "alone"),
    [
        (iter, True),
        (on_the_loop, True),
        pytest.param(through_arrow, True, marks=needs("pyarrow")),
        pytest.param(with_the_loader, True, marks=TORCH),
        pytest.param(in_one_process, True, marks=TORCH),
        pytest.param(in_workers, False, marks=TORCH),
        pytest.param(in_stateful_workers, False, marks=needs("torchdata", pytest.mark.peer)),
    ],
)
def test_bad_input_is_one_error(
    tmp_path: Path, leaving_server: LeavingServer, way: Load, alone: bool
) -> None:
    check_bad_input(tmp_path, leaving_server, way, alone)
