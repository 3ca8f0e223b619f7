"""Folders in what takes any Dataset: the disk cache, torch, Arrow, and other processes."""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec.tfds
from streamrec import Dataset
from streamrec.storage.cache import close_caches
from tests.servers.hub import small_hub
from tests.servers.small_store import SmallStore, small_store
from tests.tfds.compare import assert_same
from tests.tfds.folders import KINDS_URL, ROBOT_URL

FEATURES = ["label", "array", "scalar_int64", "objects/box"]


def step_batches() -> Dataset[Any]:
    return streamrec.tfds.open_sync(ROBOT_URL).steps("train", batch_size=8, history=2)


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """The columns of nested dicts, by their names."""
    if not isinstance(value, dict):
        return {name: value}
    found = {}
    for key, each in value.items():
        found |= leaves(each, f"{name}/{key}")
    return found


@pytest.fixture
def store() -> Iterator[SmallStore]:
    files = {f"kinds/1.0.0/{path.name}": path.read_bytes() for path in Path(KINDS_URL).iterdir()}
    with small_store(files) as running:
        yield running
    close_caches()


@pytest.mark.parametrize("scheme", ["s3", "gs", "http"])
def test_disk_cache_serves_the_second_epoch(store: SmallStore, tmp_path: Path, scheme: str) -> None:
    wanted = list(streamrec.tfds.open_sync(KINDS_URL).records("train"))
    options = store.options(scheme) | {"cache_dir": tmp_path / "cache", "cache_bytes": 1 << 26}
    folder = streamrec.tfds.open_sync(store.url(scheme, "kinds/1.0.0"), storage_options=options)
    records = folder.records("train")
    assert list(records) == wanted
    before = len(store.asked)
    assert list(records) == wanted
    assert "get" not in {store.kind(asked) for asked in store.asked[before:]}


@pytest.mark.peer
def test_torch_loader_gives_the_same_steps() -> None:
    pytest.importorskip("torch")
    from streamrec.torch import Loader

    for ours, theirs in zip(step_batches(), Loader(step_batches()), strict=True):
        found = leaves(theirs)
        for name, column in leaves(ours).items():
            if np.asarray(column).dtype == object:
                assert list(found[name]) == list(column), name
            else:
                np.testing.assert_array_equal(found[name].numpy(), column, name)


@pytest.mark.peer
def test_workers_of_torch_give_every_example_once() -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    from streamrec.torch import IterableDataset

    kinds = streamrec.tfds.open_sync(KINDS_URL)
    decoded = kinds.records("train").distribute().batch(4).map(kinds.decoder(features=FEATURES[:3]))
    loader = DataLoader(IterableDataset(decoded), batch_size=None, num_workers=2)
    found = [int(number) for batch in loader for number in batch["scalar_int64"]]
    wanted = [int(one["scalar_int64"]) for one in kinds.read("train", features=["scalar_int64"])]
    assert sorted(found) == sorted(wanted)


@pytest.mark.peer
def test_arrow_table_has_the_same_columns() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    table = pyarrow.table(kinds.read("train", batch_size=8, features=FEATURES))
    rows = table.to_pylist()
    examples = list(kinds.read("train", features=FEATURES))
    assert len(rows) == len(examples) == 23
    for row, example in zip(rows, examples, strict=True):
        for name, column in leaves(example).items():
            found = leaves(row)[name]
            assert np.asarray(found, np.asarray(column).dtype).tolist() == column.tolist(), name
    steps = pyarrow.table(step_batches())
    wanted = [number for batch in step_batches() for number in batch["step"].tolist()]
    assert steps["step"].to_pylist() == wanted


def labels_of(folder: streamrec.tfds.Folder, split: str) -> list[int]:
    return [int(one["label"]) for one in folder.read(split, features=["label"])]


def test_folder_is_read_in_another_process() -> None:
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert pool.apply(labels_of, (kinds, "train[:10]")) == labels_of(kinds, "train[:10]")


def test_columns_are_the_same_by_way_of_the_disk(tmp_path: Path) -> None:
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    kept = kinds.records("train").cache(str(tmp_path / "kept")).batch(5).map(kinds.decoder())
    for _ in range(2):
        for ours, batch in zip(kept, kinds.read("train", batch_size=5), strict=True):
            assert_same(ours["array"], batch["array"])
            assert_same(ours["label"], batch["label"])


@pytest.mark.peer
def test_folder_on_a_hub_of_data_sets_is_read() -> None:
    pytest.importorskip("huggingface_hub")
    files = {f"kinds/1.0.0/{path.name}": path.read_bytes() for path in Path(KINDS_URL).iterdir()}
    with small_hub("someone/robots", {**files, "README.md": b"# robots"}) as hub:
        options = {"endpoint": hub.endpoint, "token": False, "skip_instance_cache": True}
        url = "hf://datasets/someone/robots/kinds"
        folder = streamrec.tfds.open_sync(url, storage_options=options)
        assert folder.url == f"{url}/1.0.0"
        local = streamrec.tfds.open_sync(KINDS_URL)
        assert folder.features == local.features
        assert list(folder.records("train[30%:]+test")) == list(local.records("train[30%:]+test"))
        assert folder.read("test").cardinality() == 5
