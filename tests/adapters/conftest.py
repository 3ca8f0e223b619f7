"""Shared by the tests of all adapters: bad input and its checks, and the environment of programs
that use a store.
"""

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    StreamrecError,
    TFRecordDataset,
    TFRecordWriter,
    encode_example,
    encode_records,
)
from streamrec.errors import PositionMismatchError
from tests.servers.faults import Faults
from tests.servers.program import ServerProcess
from tests.servers.real import Store

QUICK_RETRIES = streamrec.RetryPolicy(
    attempts=2, backoff_base=0.01, connect_timeout=2.0, first_byte_timeout=2.0, stall_timeout=2.0
)
RECORDS = 160
FEATURES = {"id": streamrec.FixedLenFeature((), np.int64)}
Load = Callable[[Dataset[Any]], Iterable[Any]]
ROOT = Path(__file__).parents[2]

LOADER_WARNINGS = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # by torchdata, of torch
    pytest.mark.filterwarnings(
        "ignore:This DataLoader will create"
    ),  # more workers than there are cores
    pytest.mark.filterwarnings(
        "ignore:.*is multi-threaded, use of fork"
    ),  # Python 3.12 says so of any DataLoader
]


def needs(package: str, *marks: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    return [
        pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"),
        *marks,
    ]


def write_examples(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    """Writes a shard with an Example for each row; returns its path."""
    path.write_bytes(encode_records([encode_example(row) for row in rows]))
    return str(path)


def write_numbered(path: Path, count: int) -> str:
    """Writes a shard of Examples whose "id" counts from 0."""
    return write_examples(path, ({"id": number} for number in range(count)))


def store_examples(
    store: Store, folder: str, shards: int, rows: Iterable[Mapping[str, Any]]
) -> str:
    """Writes Examples in turn to shards in a bucket; returns the pattern of their URLs."""
    records = [encode_example(row) for row in rows]
    for shard in range(shards):
        with TFRecordWriter(
            f"{store.url}/{folder}/train-{shard}", storage_options=store.options
        ) as writer:
            for record in records[shard::shards]:
                writer.write(record)
    return f"{store.url}/{folder}/train-*"


def ids_of(batches: Iterable[Any]) -> list[int]:
    """The ids of all batches, in order."""
    return [number for batch in batches for number in batch["id"].tolist()]


def check_states(make: Callable[[], Any]) -> None:
    """A loader resumes after each batch from its state, and its next iteration is the next
    epoch.
    """
    whole = ids_of(make())
    first = make()
    before = list[int]()
    assert first.state_dict() == {}
    assert ids_of(first) == whole
    second = ids_of(first)
    assert second != whole
    first.set_epoch(0)
    for batch in first:
        before += batch["id"].tolist()
        again = make()
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + ids_of(again) == whole
        assert ids_of(again) == second
    assert before == whole
    with pytest.raises(PositionMismatchError, match="it must be a dict that `state_dict"):
        first.load_state_dict({"step": 3})
    first.load_state_dict({})
    assert sorted(ids_of(first)) == sorted(whole)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@dataclass(frozen=True)
class LeavingServer:
    """A server that can be closed, and batches of one record from it, with "id" alone, that wait
    for its bytes.
    """

    server: ServerProcess
    dataset: Dataset[dict[str, np.ndarray]]


@pytest.fixture
def leaving_server(tmp_path: Path) -> Iterator[LeavingServer]:
    """A server with two shards of 32 MB: more than the kernel's buffers hold when the server is
    closed.
    """
    (tmp_path / "bucket").mkdir()
    for shard in range(2):
        rows = ({"id": number, "filler": bytes(400_000)} for number in range(RECORDS // 2))
        write_examples(tmp_path / "bucket" / f"train-{shard}", rows)
    with ServerProcess(
        "tests.servers.objectstore", ("--root", str(tmp_path)), Faults(rate=8e6)
    ) as server:
        options = {"endpoint_url": server.url, "anon": True}
        records = TFRecordDataset(
            "s3://bucket/train-*", storage_options=options, retry=QUICK_RETRIES
        ).distribute()
        batches = records.batch(1).parse_example(FEATURES)
        yield LeavingServer(server, batches.with_options(memory_budget=2 << 20))


def count_and_error(
    batches: Iterable[Any], between: Callable[[], object] = lambda: None
) -> tuple[int, str]:
    """The number of ids, and the one error after them, with its notes."""
    seen = 0
    with pytest.raises((StreamrecError, OSError)) as caught:
        for batch in batches:
            seen += len(batch["id"])
            between()
    return seen, "\n".join(
        [f"{caught.type.__name__}: {caught.value}", *getattr(caught.value, "__notes__", [])]
    )


def check_bad_input(folder: Path, leaving: LeavingServer, load: Load, alone: bool = True) -> None:
    """Damage, a missing feature and a server that goes away are each one clear error, after all
    that came before.

    Of several readers, which are not `alone`, each numbers its own records.
    """
    data = bytearray(encode_records([encode_example({"id": number}) for number in range(64)]))
    data[len(data) * 50 // 64] ^= 1
    (folder / "damaged").write_bytes(data)
    dataset = TFRecordDataset(str(folder / "damaged")).distribute().batch(4).parse_example(FEATURES)
    seen, message = count_and_error(load(dataset))
    assert "CorruptRecordError: " in message
    assert f"{folder / 'damaged'}, " + "record 50, byte" * alone in message
    assert seen == 50 or not alone
    write_examples(
        folder / "shard", ({"id": number} if number != 10 else {"other": 1} for number in range(21))
    )
    dataset = (
        TFRecordDataset(str(folder / "shard"))
        .distribute()
        .shuffle(8)
        .batch(4)
        .parse_example(FEATURES)
    )
    _, message = count_and_error(load(dataset))
    assert "FeatureError: " in message
    assert "feature 'id': found nothing" in message
    assert f"{folder / 'shard'}, record 10" in message
    seen, message = count_and_error(load(leaving.dataset), leaving.server.close)
    assert 0 < seen < RECORDS
    assert "StorageError: " in message
    assert "s3://bucket/train-" in message


def client_environment(store: Store) -> dict[str, str]:
    """The environment in which a program finds a store of S3 without storage options, and this
    package.
    """
    return {
        "PYTHONPATH": str(ROOT),
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_ACCESS_KEY_ID": store.options["key"],
        "AWS_SECRET_ACCESS_KEY": store.options["secret"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
