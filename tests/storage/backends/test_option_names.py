"""Storage options that a client does not know, or that name nothing: one error of ours, with the URL and what to do."""

import re
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import StorageError, StreamrecError, TFRecordDataset
from streamrec.errors import MissingExtraError

WRONG: list[tuple[str, dict[str, Any], str]] = [
    (
        "s3://b/k",
        {"acces_key": "x"},
        "storage_options has 'acces_key', which the client does not know: did you mean 'key'?",
    ),
    ("s3://b/k", {"endpoint_ur": "x"}, "did you mean 'endpoint_url'?"),
    ("s3://b/k", {"client_kwargs": {"endpont_url": "http://h"}}, "client_kwargs has 'endpont_url', which the client"),
    ("s3://b/k", {"config_kwargs": {"conect_timeout": 1}}, "config_kwargs has 'conect_timeout', which the client"),
    ("s3://b/k", {"endpoint_url": "127.0.0.1:9000"}, "endpoint_url has no scheme: write 'http://127.0.0.1"),
    ("s3://b/k", {"client_kwargs": {"endpoint_url": "h:1"}}, "client_kwargs['endpoint_url'] has no scheme"),
    ("s3://b/k", {"aws_access_key_id": "k"}, "'aws_access_key_id', which the client does not know: write key="),
    ("s3://b/k", {"region_name": "eu"}, "does not know: write client_kwargs={'region_name': ...}"),
    ("gs://b/k", {"tokn": "anon"}, "storage_options has 'tokn', which the client does not know: did you mean 'token'?"),
    ("gs://b/k", {"session_kwargs": {"trust_en": True}}, "session_kwargs has 'trust_en', which the client does not"),
    ("gs://b/k", {"token": "anon", "endpoint_url": "h:1"}, "endpoint_url has no scheme"),
    ("http://127.0.0.1:1/k", {"headrs": {}}, "storage_options has 'headrs', which the client does not know: did you"),
    ("http://127.0.0.1:1/k", {"client_kwargs": {"headrs": {}}}, "client_kwargs has 'headrs', which the client does"),
    ("s4://b/k", {}, "no filesystem is known for s4://: did you mean 's3'?"),
]


@pytest.mark.parametrize(("url", "options", "message"), WRONG)
def test_wrong_names(url: str, options: dict[str, Any], message: str) -> None:
    """In a run, and in a writer."""
    with pytest.raises(StorageError, match=re.escape(message)) as caught:
        list(TFRecordDataset(url, storage_options=options))
    assert caught.value.path == url
    with (
        pytest.raises(StorageError, match=re.escape(message)),
        streamrec.TFRecordWriter(url, storage_options=options) as w,
    ):
        w.write(b"x")


def test_a_profile_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[profile ours]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(StorageError, match=r"profile \(nope\) could not be found; profiles in the AWS .* files: ours"):
        list(TFRecordDataset("s3://b/k", storage_options={"profile": "nope"}))


def test_what_to_install_is_said() -> None:
    with pytest.raises(MissingExtraError, match="dropbox:// URLs need a package: pip install dropboxdrivefs"):
        list(TFRecordDataset("dropbox://datasets/x"))


def test_no_groups_of_exceptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in one of several tasks."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(streamrec.encode_records([b"x"]))
    with pytest.raises(StorageError, match="acces_key"):
        streamrec.write_manifest_sync(
            ["s3://b/k", "s3://b/l"], f"{tmp_path}/m.json", storage_options={"acces_key": "x"}
        )

    def fails(*_: Any, **__: Any) -> Any:
        raise RuntimeError("of another kind")

    monkeypatch.setattr("streamrec.shards.manifest_files.scan", fails)
    with pytest.raises(RuntimeError, match="of another kind"):
        streamrec.write_manifest_sync([f"{tmp_path}/?"], f"{tmp_path}/m.json")


def test_a_client_that_cannot_be_made_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it raises."""

    def fails(*_: Any, **__: Any) -> Any:
        raise KeyError("deep inside")

    monkeypatch.setattr("streamrec.storage.backends.s3.backend.S3FileSystem.set_session", fails)
    with pytest.raises(StreamrecError, match=r"no client can be made from these storage options \(KeyError"):
        list(TFRecordDataset("s3://b/k"))
