"""RaggedRows: whatever stages make of rows in a column, they make of the same rows as single arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Dataset, RaggedTensor
from streamrec.pipeline.elements.columns import Columns, join_windows, select, window
from streamrec.pipeline.elements.ragged_rows import RaggedRows
from streamrec.pipeline.sources.shuffle.buffer_store import weights_of
from tests.servers.resuming import assert_resumes_everywhere, plain

DTYPES = [np.int64, np.float32, np.uint8, np.bool_, np.dtype(">i4")]


@st.composite
def columns(draw: st.DrawFn) -> RaggedRows:
    """Rows one after the other, with gaps, or out of order; of one dimension or two."""
    lengths = np.array(draw(st.lists(st.integers(0, 5), max_size=9)), np.int64)
    splits = np.concatenate([[0], np.cumsum(lengths)]) + draw(st.integers(0, 3))
    inner = draw(st.sampled_from([(), (2,)]))
    values = np.arange((splits[-1] + 2) * int(np.prod(inner))).reshape(-1, *inner).astype(draw(st.sampled_from(DTYPES)))
    rows = RaggedRows(values, splits[:-1], splits[1:])
    if draw(st.booleans()) and len(rows):
        return rows.take(np.array(draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)), np.int64))
    return rows


def same(found: Any, wanted: list[np.ndarray[Any, Any]]) -> bool:
    return [plain(row) for row in found] == [plain(row) for row in wanted]


@given(columns(), st.data())
def test_they_are_their_rows(rows: RaggedRows, data: st.DataObject) -> None:
    wanted = [rows[index] for index in range(len(rows))]
    first, last = sorted([data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))])
    assert same(rows, wanted)
    assert same(window(rows, first, last), wanted[first:last])
    assert same(rows.compact(), wanted)
    assert rows.nbytes == sum(row.nbytes for row in wanted)
    assert weights_of(rows).tolist() == weights_of(wanted).tolist()
    values, splits = rows.flat()
    assert same([values[start:end] for start, end in zip(splits[:-1], splits[1:], strict=True)], wanted)
    if wanted:
        indices = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1))), np.int64)
        assert same(select(Columns(rows), indices), [wanted[index] for index in indices])


@given(st.lists(columns(), min_size=2, max_size=4))
def test_joined_they_are_all_rows(parts: list[RaggedRows]) -> None:
    found = join_windows([Columns(part) for part in parts])
    assert same(found, [row for part in parts for row in part])
    alike = len({(part.values.dtype, part.values.shape[1:]) for part in parts}) == 1
    assert isinstance(found.nest, RaggedRows) == alike


@given(columns(), st.integers(0, 3), st.sampled_from([0, 1, 2.5, True]))
def test_padding_needs_no_rows(rows: RaggedRows, room: int, fill: Any) -> None:
    if rows.values.ndim > 1 or not len(rows):
        return
    size = int(rows.lengths.max()) + room
    wanted = np.full((len(rows), size), fill, rows.values.dtype.newbyteorder("="))
    for index, row in enumerate(rows):
        wanted[index, : len(row)] = row
    found = rows.pad(size, fill)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    found[...] = 0  # it is writable, and its own
    with pytest.raises(ValueError, match=r"row \d+ is|from 0 to"):
        rows.take(np.array([int(rows.lengths.argmax())] * 2)).pad(int(rows.lengths.max()) - 1, fill)


VALUES = np.arange(200, dtype=np.int64)
SPLITS = np.concatenate([[0], np.cumsum(np.arange(19) * 7 % 12)])


def tokens() -> Dataset[Any]:
    """Rows of a ragged tensor beside numbers, from three batches."""
    batch = {"tokens": RaggedTensor(VALUES[: SPLITS[-1]], (SPLITS,)), "id": np.arange(len(SPLITS) - 1)}
    return Dataset.from_tensor_slices(batch).concatenate(Dataset.from_tensor_slices(batch)).repeat(2)


def one_by_one(element: Any) -> Any:
    return element


CHAINS: dict[str, Callable[[Dataset[Any]], Dataset[Any]]] = {
    "padded": lambda ds: ds.padded_batch(5),
    "to a shape": lambda ds: ds.padded_batch(4, {"tokens": [30], "id": []}, {"tokens": -1, "id": 0}),
    "shuffled": lambda ds: ds.shuffle(7, seed=1).padded_batch(5),
    "ragged": lambda ds: ds.skip(3).ragged_batch(5),
    "rebatched": lambda ds: ds.padded_batch(3, {"tokens": [11], "id": []}).rebatch(7),
    "cached": lambda ds: ds.take(19).cache().repeat(2).padded_batch(4),
    "buckets": lambda ds: ds.bucket_by_sequence_length(lambda row: len(row["tokens"]), [3, 8], [4, 3, 2]),
    "drawn": lambda ds: Dataset.sample_from_datasets([ds, ds.take(9)], [1, 2], seed=3).padded_batch(6),
    "shards in turn": lambda ds: ds.shard(3, 1).padded_batch(2),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_stages_give_what_they_give_of_single_arrays(chain: Callable[[Dataset[Any]], Dataset[Any]]) -> None:
    wanted = [plain(batch) for batch in chain(tokens().map(one_by_one))]
    assert wanted
    assert [plain(batch) for batch in chain(tokens())] == wanted


@pytest.mark.parametrize("name", ["shuffled", "buckets", "cached"])
def test_they_resume_everywhere(name: str) -> None:
    assert_resumes_everywhere(CHAINS[name](tokens()))


def test_a_cache_file_keeps_them(tmp_path: Path) -> None:
    cached = tokens().cache(str(tmp_path / "cache"))
    assert [plain(element) for element in cached] == [plain(element) for element in tokens()]
    assert [plain(batch) for batch in cached.padded_batch(5)] == [plain(batch) for batch in tokens().padded_batch(5)]


def test_nobody_writes_to_what_a_dataset_holds() -> None:
    assert not any(element["tokens"].flags.writeable for element in tokens())


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"element\['tokens'\]: an array of up to \[11\] does not fit into .* \(5,\)"):
        list(tokens().padded_batch(30, {"tokens": (5,), "id": ()}))
    with pytest.raises(ValueError, match=r"element\['tokens'\]: padded_shapes has 2 dimensions"):
        list(tokens().padded_batch(30, {"tokens": (5, 5), "id": ()}))
