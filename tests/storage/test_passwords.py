"""Messages of errors: what they must not show."""

import pickle

import pytest

from streamrec import ManifestError, NotFoundError, StreamrecError, TruncatedShardError

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
        assert SHOWN in str(same)
        assert "se:cr" not in str(same)
        assert "et@" not in str(same)


@pytest.mark.parametrize("url", ["s3://bucket/a:b@c", "http://host:80/a@b", "sftp://user@host/x", "/tmp/a:b@c"])
def test_urls_without_a_password_are_shown_as_they_are(url: str) -> None:
    assert str(NotFoundError("there is none", url)) == f"{url}: there is none"
