"""Messages of errors: what they must not show."""

import logging
import pickle
from typing import Any

import pytest

from streamrec import Dataset, NotFoundError, StreamrecError, TFRecordDataset, TFRecordWriter
from streamrec.errors import ManifestError, TruncatedShardError
from streamrec.shards import ShardInfo
from streamrec.tfrecord import Loss

URL = "sftp://user:se:cr@et@host:22/a.tfrecord"
SHOWN = "sftp://user:***@host:22/a.tfrecord"


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("there is no such file", URL, 0, 8),
        NotFoundError(f"there is none ({URL})"),
        TruncatedShardError("the shard ends early", URL, 12, 1),
        ManifestError(f"{URL}: this is no manifest"),
        NotFoundError("there is no such member", f"zip://a.tfrecord::{URL}"),
    ],
)
def test_passwords_in_urls_are_hidden(error: StreamrecError) -> None:
    for same in (error, pickle.loads(pickle.dumps(error))):
        for shown in (str(same), repr(same)):
            assert SHOWN in shown
            assert "se:cr" not in shown
            assert "et@" not in shown


@pytest.mark.parametrize("url", ["s3://bucket/a:b@c", "http://host:80/a@b", "sftp://user@host/x", "/tmp/a:b@c"])
def test_urls_without_a_password_are_shown_as_they_are(url: str) -> None:
    assert str(NotFoundError("there is none", url)) == f"{url}: there is none"


def test_passwords_are_hidden_wherever_a_url_is_shown() -> None:
    dataset = TFRecordDataset(URL).shuffle(9).batch(3)
    with dataset.iterate() as run:
        state, stats = run.state_dict(), run.stats()
    changed = TFRecordDataset(URL.replace("se:cr@et", "another")).shuffle(9).batch(3)
    loss = Loss(URL, 0, 8, "the CRC32C is wrong", 0)
    shown: list[Any] = [dataset, Dataset.list_files(URL), dataset.cache(URL), state, stats, dataset.chain, loss]
    for each in [*shown, str(loss), ShardInfo(URL, 1, 17, 0, 17), dataset.fingerprint()]:
        assert "et@" not in repr(each)
    assert SHOWN in repr(dataset)
    assert SHOWN in repr(loss)
    changed.iterate(state).close()  # a password that was changed makes no other pipeline


def test_passwords_are_hidden_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "streamrec"):
        writer = TFRecordWriter(URL.replace("sftp", "memory"))
        writer.write(b"a record")
        del writer
    assert "user:***@host" in caplog.text
    assert "et@" not in caplog.text
