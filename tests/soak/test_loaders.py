"""The soak of DataLoaders, for as long as a test may take; `make soak` goes on for longer."""

from __future__ import annotations

from typing import Any

import pytest

from streamrec import TFRecordDataset
from tests.effort import THOROUGH, few
from tests.servers.real import Store

pytest.importorskip("torch")

from streamrec.torch import IterableDataset
from tests.soak.loaders import check, drawn, exits, put, repetition

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork"),
]


@pytest.fixture
def repeated(s3_store: Store) -> Any:
    put(s3_store, "loaders", [[b"%d" % number for number in range(50)]] * 3)
    records = TFRecordDataset(f"{s3_store.url}/loaders/*", storage_options=s3_store.options)
    return IterableDataset(records.distribute().batch(4))


@pytest.mark.parametrize("workers", [2, None])
def test_each_record_comes_once_an_epoch(s3_store: Store, workers: int | None) -> None:
    for number in range(few(24) // 2):
        check(s3_store, f"combination-{workers}-{number}", drawn(number, workers))


def test_loaders_end_when_they_are_left(repeated: Any) -> None:
    for number in range(few(60)):
        repetition(repeated, number)


def test_programs_end_with_a_loader_open(s3_store: Store, repeated: Any) -> None:
    for number in range(3 if THOROUGH else 1):
        exits(s3_store, "loaders", number)
