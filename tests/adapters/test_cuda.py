"""streamrec.torch.Loader on a GPU: runs where there is one, and is skipped elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, Frames, RaggedTensor, TFRecordDataset
from tests.adapters.conftest import write_examples

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from streamrec.torch import Loader  # noqa: E402

pytestmark = pytest.mark.peer

FEATURES = {"id": FixedLenFeature((), np.int64), "pixels": FixedLenFeature((64, 64), np.float32)}
RECORDS, BATCH = 2_000, 100
WORK = 2048


@pytest.fixture
def batches(tmp_path: Path) -> Any:
    """Batches whose pixels are all the record's number: memory that is used too soon shows."""
    for shard in range(2):
        numbers = range(shard * RECORDS // 2, (shard + 1) * RECORDS // 2)
        write_examples(
            tmp_path / f"train-{shard}",
            ({"id": n, "pixels": np.full((64, 64), n, np.float32)} for n in numbers),
        )
    records = TFRecordDataset(str(tmp_path / "train-*"), num_parallel_reads=2)
    return records.distribute().shuffle(500, seed=1).batch(BATCH).parse_example(FEATURES)


def checked(batch: Any) -> list[int]:
    """The numbers of a batch, after a check of its pixels that waits for much other work of the
    device.
    """
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
            assert sorted(number for batch in loader for number in checked(batch)) == list(
                range(RECORDS)
            )


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_every_kind_of_column_arrives(ahead: int) -> None:
    types = pytest.importorskip("ml_dtypes")

    def batch(number: int) -> Any:
        rows = number % 4
        return {
            "id": np.full((rows, 2), number),
            "half": np.full(rows, number % 100, types.bfloat16),
            "flag": np.bool_(number % 2),
            "name": np.array([b"x"], object),
            "ragged": RaggedTensor(
                np.arange(number % 5, dtype=">f4"), (np.array([0, number % 5]),)
            ),
            "records": Frames.of([b"r%d" % number]),
        }

    loader = Loader(Dataset.range(50).map(batch), device="cuda", prefetch=ahead)
    for _ in range(2):
        elements = list(loader)
        assert len(elements) == 50
        for number, element in enumerate(elements):
            assert element["id"].is_cuda
            assert element["id"].tolist() == [[number, number]] * (number % 4)
            assert element["half"].dtype == torch.bfloat16
            assert element["half"].tolist() == [number % 100] * (number % 4)
            assert element["flag"].item() == bool(number % 2)
            assert element["name"] == [b"x"]
            assert element["ragged"].flat_values.tolist() == list(range(number % 5))
            assert element["records"] == [b"r%d" % number]


def test_a_state_resumes_exactly(batches: Any) -> None:
    loader = Loader(batches, device="cuda")
    elements = iter(loader)
    for _ in range(7):
        next(elements)
    again = Loader(batches, device="cuda")
    again.load_state_dict(loader.state_dict())
    assert [checked(batch) for batch in again] == [checked(batch) for batch in elements]
