"""A file in the place of a cache may hold anything: it is one CacheError, whatever its CRCs say."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, TFRecordDataset, encode_records
from streamrec.errors import CacheError


def cached(path: Path) -> Dataset[Any]:
    columns = {"a": np.arange(12.0).reshape(6, 2), "b": [b"x", b"yy", b"z"] * 2}
    return Dataset.from_tensor_slices(columns).batch(2).cache(str(path))


@pytest.fixture
def records(tmp_path: Path) -> list[bytes]:
    path = tmp_path / "a.cache"
    assert len(list(cached(path))) == 3
    return list(TFRecordDataset(path))


VALUES = [None, 3, -1, 1e400, [], {}, "x", [1], ["a"], "\ud800", "9" * 5000]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:9])
@pytest.mark.parametrize("name", ["pipeline", "version", "format"])
def test_heads_of_other_kinds(tmp_path: Path, records: list[bytes], name: str, value: Any) -> None:
    path = tmp_path / "a.cache"
    head = json.loads(records[0][1:])
    texts = [
        json.dumps({**head, name: value}),
        json.dumps({key: head[key] for key in head if key != name}),
        json.dumps(head).replace('"version": 1', f'"version": {"1" * 5000}'),
    ]
    for text in texts:
        path.write_bytes(encode_records([b"H" + text.encode(), *records[1:]]))
        with pytest.raises(CacheError):
            list(cached(path))


def test_blocks_with_damage_that_no_crc_shows(tmp_path: Path, records: list[bytes]) -> None:
    path = tmp_path / "a.cache"
    rng = random.Random(7)
    refused = 0
    for _ in range(400):
        changed = [bytearray(record) for record in records]
        for _ in range(rng.randint(1, 3)):
            record = rng.choice(changed)
            record[rng.randrange(len(record))] = rng.randrange(256)
        path.write_bytes(encode_records(list(map(bytes, changed))))
        try:  # any other error fails the test
            list(cached(path))
        except CacheError:
            refused += 1
    assert refused > 100
