"""streamrec.torch.Loader on a GPU: runs where there is one, and is skipped elsewhere.

The staging is tested without one in `test_torch_loader.py`, with a device that is late.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import FixedLenFeature, TFRecordDataset, encode_example, encode_records

torch = pytest.importorskip("torch")

from streamrec.torch import Loader  # noqa: E402

pytestmark = [
    pytest.mark.peer,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

FEATURES = {"id": FixedLenFeature((), np.int64), "pixels": FixedLenFeature((64, 64), np.float32)}
RECORDS, BATCH = 2_000, 100
WORK = 2048


@pytest.fixture
def batches(tmp_path: Path) -> Any:
    """Batches whose pixels are all the record's number: memory that is used too soon shows."""
    for shard in range(2):
        numbers = range(shard * RECORDS // 2, (shard + 1) * RECORDS // 2)
        rows = [encode_example({"id": n, "pixels": np.full((64, 64), n, np.float32)}) for n in numbers]
        (tmp_path / f"train-{shard}").write_bytes(encode_records(rows))
    records = TFRecordDataset(str(tmp_path / "train-*"), num_parallel_reads=2)
    return records.distribute().shuffle(500, seed=1).batch(BATCH).parse_example(FEATURES)


def checked(batch: Any) -> list[int]:
    """The numbers of a batch, whose pixels are looked at behind much other work of the device."""
    busy = torch.ones((WORK, WORK), device="cuda")
    for _ in range(10):
        busy = busy @ busy * 1e-4
    wrong = (batch["pixels"] != batch["id"][:, None, None]).sum()
    assert int(wrong) == 0
    assert batch["pixels"].is_cuda
    numbers: list[int] = batch["id"].tolist()
    return numbers


@pytest.mark.parametrize("prefetch", [0, 2])
def test_each_batch_arrives_whole(batches: Any, prefetch: int) -> None:
    loader = Loader(batches, device="cuda", prefetch=prefetch)
    with torch.cuda.stream(torch.cuda.Stream()):  # not the stream that the loader was made under
        for _ in range(2):
            assert sorted(number for batch in loader for number in checked(batch)) == list(range(RECORDS))
    assert loader._staging is not None
    assert 0 < loader._staging.pinned_bytes <= (prefetch + 1) * BATCH * (64 * 64 * 4 + 8)


def test_a_state_goes_on_exactly(batches: Any) -> None:
    loader = Loader(batches, device="cuda")
    elements = iter(loader)
    for _ in range(7):
        next(elements)
    again = Loader(batches, device="cuda")
    again.load_state_dict(loader.state_dict())
    assert [checked(batch) for batch in again] == [checked(batch) for batch in elements]


def test_bfloat16(batches: Any) -> None:
    types = pytest.importorskip("ml_dtypes")
    halves = batches.map(lambda batch: batch["pixels"].astype(types.bfloat16))
    batch = next(iter(Loader(halves, device="cuda:0")))
    assert batch.dtype == torch.bfloat16
    assert str(batch.device) == "cuda:0"
