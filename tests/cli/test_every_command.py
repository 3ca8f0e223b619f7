"""Every command on SeaweedFS, fake-gcs-server and local files: nothing there, a wrong key, damage.

Each ends with the exit code that says what is wrong, a message that helps, no traceback, and nothing left behind.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.registry import _registry
from gcsfs.core import GCSFileSystem

from tests.cli.conftest import Bucket, Call, typed
from tests.servers.real import Store

READING = ["ls", "info", "head", "cat", "count", "verify", "stat", "bench", "doctor"]
REWRITING = [
    "index {source} {new}a.index",
    "verify --repair {new}",
    "stat --html {new}page.html",
    "reshard {source} {new}",
    "convert {source} {new}a.jsonl",
]


@pytest.fixture(params=["local", "s3", "gcs"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Bucket, Any]]:
    """A place of its own in each kind of store, and a filesystem that looks at it."""
    for protocol in ("gs", "gcs"):  # no probes for buckets of other kinds, as in the program's environment
        monkeypatch.setitem(_registry, protocol, GCSFileSystem)
    if request.param == "local":
        yield Bucket(f"{tmp_path}/{uuid4()}/", ()), fsspec.filesystem("file")
        return
    store: Store = request.getfixturevalue(f"{request.param}_store")
    filesystem = fsspec.filesystem(request.param, **store.options, use_listings_cache=False)
    yield Bucket(f"{store.url}/{uuid4()}/", typed(store.options)), filesystem


def arguments(command: str, bucket: Bucket, source: str) -> list[str]:
    """What is typed: the command, its options, where to look, and where a new copy would go."""
    name, *rest = command.replace("{new}", f"{bucket.url}new/").replace("{source}", source).split()
    where = [] if source in rest else [source]
    return [name, *bucket.options, *rest, *where]


def below(filesystem: Any, url: str) -> list[str]:
    filesystem.invalidate_cache()
    return sorted(filesystem.find(url))


@pytest.mark.parametrize("command", [*READING, *REWRITING])
@pytest.mark.parametrize("missing", ["nothing.tfrecord", "*.tfrecord", ""])
def test_nothing_is_there(place: tuple[Bucket, Any], called: Call, command: str, missing: str) -> None:
    """A missing object, a pattern that matches none, and an empty directory or bucket."""
    bucket, filesystem = place
    source = bucket.url if command == "doctor" and "*" in missing else f"{bucket.url}{missing}"  # it looks at places
    done = called(*arguments(command, bucket, source))
    empty = command == "doctor" and done.code == 0 and "0 objects" in done.out  # a store that works, with nothing in it
    assert empty or done.code == 3, done
    assert command == "doctor" or done.err.startswith("streamrec: "), done.err
    assert empty or bucket.url.partition("://")[2] in done.err + done.out or bucket.url in done.err + done.out
    assert "Traceback" not in done.err
    assert below(filesystem, bucket.url) == []


@pytest.mark.parametrize("command", [*READING, *REWRITING])
def test_a_wrong_key(s3_store: Store, called: Call, command: str) -> None:
    bucket = Bucket(f"{s3_store.url}/{uuid4()}/", typed({**s3_store.options, "secret": "wrong"}))
    filesystem = fsspec.filesystem("s3", **s3_store.options, use_listings_cache=False)
    with filesystem.open(f"{bucket.url}a.tfrecord", "wb") as file:
        file.write(b"")
    done = called(*arguments(command, bucket, f"{bucket.url}a.tfrecord"))
    assert done.code == 3, done
    assert "check the credentials" in done.err + done.out
    assert "Traceback" not in done.err
    assert "wrong" not in done.err + done.out
    assert len(below(filesystem, bucket.url)) == 1


@pytest.mark.parametrize("command", ["count", "doctor"])
def test_a_wrong_token_is_not_shown(gcs_store: Store, called: Call, command: str) -> None:
    """A client asks Google about a token, and its error names the URL with the token in it: not in what we say."""
    bucket = Bucket(f"{gcs_store.url}/{uuid4()}/", typed({**gcs_store.options, "token": "ya29.wrong"}))
    done = called(*arguments(command, bucket, f"{bucket.url}a.tfrecord"))
    assert done.code == 3, done
    assert "Traceback" not in done.err
    assert "ya29" not in done.err + done.out


@pytest.mark.parametrize("command", ["info", "head", "cat", "count", "verify", "stat", *REWRITING])
def test_damage(place: tuple[Bucket, Any], called: Call, damaged: Path, command: str) -> None:
    """A damaged record and an end that is cut off: the exit code is 1 for all that read so far."""
    bucket, filesystem = place
    source = f"{bucket.url}bad.tfrecord"
    if not bucket.options:
        Path(bucket.url).mkdir()
    filesystem.put_file(str(damaged), source)
    done = called(*arguments(command, bucket, source))
    reads_all = command != "head"
    assert done.code == (1 if reads_all else 0), done
    assert "Traceback" not in done.err
    if reads_all and not command.startswith("verify"):
        lengths_only = command.startswith(("count", "index"))  # payloads are not checked
        assert ("record 239, byte " if lengths_only else "record 100, byte ") in done.err
    copy = ["new/bad.tfrecord"] if command.startswith("verify --repair") else []
    left = [name.partition(bucket.url.partition("://")[2] or bucket.url)[2] for name in below(filesystem, bucket.url)]
    assert [name for name in left if name] == ["bad.tfrecord", *copy]


def test_options_are_typed_as_they_are_given(place: tuple[Bucket, Any], shard: Path, called: Call) -> None:
    """With what the other tests type, all is well where all is well."""
    bucket, filesystem = place
    if not bucket.options:
        Path(bucket.url).mkdir()
    filesystem.put_file(str(shard), f"{bucket.url}good.tfrecord")
    for command in ("ls", "info", "head", "cat", "count", "verify", "stat"):
        done = called(*arguments(command, bucket, bucket.url))
        assert done.code == 0, done
    assert json.loads(called("count", *bucket.options, "--json", bucket.url).out)
