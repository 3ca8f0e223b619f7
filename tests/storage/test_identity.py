"""Which spellings name one object, and which are others."""

import os
from pathlib import Path

import pytest

from streamrec.storage.identity import identities, is_special


def are_one_object(
    one: str, other: str, endpoint: str = "", other_endpoint: str | None = None
) -> bool:
    first = identities(one, endpoint)
    second = identities(other, endpoint if other_endpoint is None else other_endpoint)
    return bool(first & second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/k", "s3a://b/k"),
        ("gs://b/k", "gcs://b/k"),
        ("s3://b/d/k", "S3://b/d//k"),
        ("s3://b/d/k", "s3://b/d/./e/../k"),
        ("memory://d/k", "memory:///d/k"),
        ("memory://d/k", "memory:////d//k"),
        ("ftp://me:secret@host/d/k", "ftp://host/d/k"),
        ("simplecache::s3://b/k", "s3://b/k"),
        ("filecache::simplecache::s3://b/k", "s3a://b/k"),
        ("zip://x::s3://b/c.zip", "s3://b/c.zip"),
        ("zip://x::s3://b/c.zip", "zip://y::s3a://b/c.zip"),
        ("zip://x::simplecache::s3://b/c.zip", "s3://b/c.zip"),
    ],
)
def test_spellings_of_one_object(one: str, other: str) -> None:
    assert are_one_object(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/k", "s3://b/K"),
        ("s3://b/k", "s3://c/k"),
        ("s3://b/k", "gs://b/k"),
        ("s3://b/k", "b/k"),
        ("s3://b/k", "s3://b/k%20"),
        ("memory://k", "k"),
        ("zip://x::s3://b/c.zip", "s3://b/x"),
        ("zip://x::s3://b/c.zip", "zip://x::s3://b/d.zip"),
    ],
)
def test_urls_of_different_objects_are_not_one_object(one: str, other: str) -> None:
    assert not are_one_object(one, other)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("http://localhost:9000", "http://127.0.0.1:9000/", True),
        ("http://LOCALHOST:80", "http://[::1]", True),
        ("http://0.0.0.0", "http://localhost:80/", True),
        ("https://store:443", "https://store", True),
        ("https://store:80", "http://store", True),
        ("https://store", "http://store", False),
        ("http://store:9000", "http://store:9001", False),
        ("http://store/a/", "http://store/a", True),
        ("http://store/a", "http://store/b", False),
        ("https://s3.eu-west-1.amazonaws.com", "", True),
        ("https://storage.googleapis.com", "", True),
        ("https://amazonaws.com.example.org", "", False),
        ("http://store", "", False),
    ],
)
def test_the_same_key_is_one_object_only_at_one_server(
    one: str, other: str, expected: bool
) -> None:
    assert are_one_object("s3://b/k", "s3://b/k", one, other) == expected


def test_local_files_are_one_in_all_spellings_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"1")
    (tmp_path / "soft").symlink_to("a")
    os.link(tmp_path / "a", tmp_path / "hard")
    (tmp_path / "folder").symlink_to(tmp_path)
    spellings = ["a", "./a", f"{tmp_path}//a", f"file://{tmp_path}/a", "soft", "hard", "folder/a"]
    assert all(are_one_object("a", name) for name in spellings)
    assert not any(are_one_object("b", name) for name in spellings)


def test_a_file_that_does_not_exist_yet_is_known_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(tmp_path)
    assert are_one_object(f"{tmp_path}/new", f"{tmp_path}/folder/new")
    assert not are_one_object(f"{tmp_path}/new", f"{tmp_path}/newer")


def test_devices_and_pipes_have_no_identity(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert identities("/dev/null") == identities(f"{tmp_path}/pipe") == frozenset()
    assert is_special(Path("/dev/null"))
    assert is_special(tmp_path / "pipe")
    (tmp_path / "file").touch()
    assert not is_special(tmp_path / "file")
    assert not is_special(tmp_path)
    assert not is_special(tmp_path / "missing")
    with (tmp_path / "file").open() as file:
        assert is_special(Path(f"/proc/self/fd/{file.fileno()}"))
