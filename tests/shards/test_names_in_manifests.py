"""Names in manifests, as text: which URL a name stands for, and which places one may name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ManifestError
from streamrec.shards.places import (
    absolute,
    check_name,
    check_named_once,
    check_places,
    find_repeated,
    is_below,
    location_of,
    portable,
    relative,
)


@pytest.mark.parametrize(
    ("path", "name", "url"),
    [
        ("s3://b/d/m.json", "x", "s3://b/d/x"),
        ("s3://b/d/m.json", "e/x", "s3://b/d/e/x"),
        ("s3://b/d/m.json", "./x", "s3://b/d/x"),
        ("s3://b/d/m.json", ".//x", "s3://b/d//x"),
        ("s3://b/d/m.json", "./s3://c/x", "s3://b/d/s3://c/x"),
        ("s3://b/d/m.json", "s3://c/x", "s3://c/x"),
        ("s3://b/d/m.json", "/x", "/x"),
        ("m.json", "x", "x"),
        ("HTTPS://h/d/m.json?v=a/b", "x", "HTTPS://h/d/x"),
        ("http://h/d/m.json#a/b", "x", "http://h/d/x"),
        ("s3://b/d?e/m.json", "x", "s3://b/d?e/x"),
        ("zip://d/m.json::s3://b/c.zip", "x", "zip://d/x::s3://b/c.zip"),
        ("simplecache::s3://b/m.json", "x", "simplecache::s3://b/x"),
    ],
)
def test_a_name_stands_for_a_url(path: str, name: str, url: str) -> None:
    assert absolute(path, name) == url
    assert absolute(path, relative(path, url)) == url


@pytest.mark.parametrize(
    ("path", "url", "name"),
    [
        ("s3://b/d/m.json", "s3://b/d/x", "x"),
        ("s3://b/d/m.json", "s3://b/d/./x", "././x"),
        ("s3://b/d/m.json", "s3://b/d//x", ".//x"),
        ("s3://b/d/m.json", "s3://b/d/s3://c/x", "./s3://c/x"),
        ("s3://b/d/m.json", "s3://c/d/x", "s3://c/d/x"),
        ("s3://b/d/m.json", "s3://b/d/../x", "s3://b/d/../x"),
        ("s3://b/d/m.json", "s3://b/d/%2e%2e/x", "s3://b/d/%2e%2e/x"),
        ("s3://b/d/m.json", "s3://b/d/a..b", "a..b"),
        ("m.json", "/x", "/x"),
        ("m.json", "s3://b/x", "s3://b/x"),
        (
            "zip://d/m.json::s3://b/c.zip",
            "zip://d/x::s3://b/other.zip",
            "zip://d/x::s3://b/other.zip",
        ),
    ],
)
def test_a_url_gets_the_shortest_name_that_leads_back(path: str, url: str, name: str) -> None:
    assert relative(path, url) == name
    assert absolute(path, name) == url


@given(
    path=st.text("ab/.:~", max_size=12).map("s3://b/".__add__),
    url=st.text("ab/.:~", max_size=12).map("s3://b/".__add__),
)
def test_any_url_leads_back(path: str, url: str) -> None:
    assert absolute(path, relative(path, url)) == url


def test_a_local_name_elsewhere_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert portable("d/m.json", "d/x") == "d/x"
    assert portable("m.json", "x") == "x"
    assert portable("d/m.json", "x") == f"{tmp_path}/x"
    assert portable("d/m.json", "d/../x") == f"{tmp_path}/x"
    assert portable("m.json", "~/x") == "/home/me/x"
    assert portable("d/m.json", "s3://b/x") == "s3://b/x"


@pytest.mark.parametrize("name", ["x", "a..b", "é", "s3://b/x", "/x"])
def test_names_of_objects(name: str) -> None:
    assert check_name(name, "s3://b/m.json") == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (5, "not a name of an object"),
        ("", "not a name of an object"),
        ("a\0b", "not a name of an object"),
        ("a\ud800", "holds half a character"),
        ("../x", "leads out of the manifest's directory"),
        ("a/..", "leads out"),
        ("a\\..\\x", "leads out"),
        ("%2E%2e/x", "leads out"),
    ],
)
@pytest.mark.parametrize("path", ["s3://b/m.json", "m.json"])
def test_a_name_that_no_object_can_have_is_refused(name: object, message: str, path: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_name(name, path)


def test_half_a_character_is_a_byte_of_a_local_name() -> None:
    """As the operating system reports names that are not UTF-8."""
    assert check_name("a\udcff", "m.json") == "a\udcff"
    with pytest.raises(ValueError, match="half a character"):
        check_name("a\udcff", "s3://b/m.json")


SPELLINGS = [
    ("s3://b/x", "s3a://b/x"),
    ("s3://b/x", "S3:///b/x"),
    ("gs://b/x", "gcs://b/x"),
    ("HTTP://Host:80/x", "http://host/x"),
    ("https://host:443/x", "https://HOST/x"),
    ("/d/x", "file:///d/./x"),
    ("/d/x", "/d//e/../x"),
    ("zip://x::s3://b/c.zip", "ZIP://x::s3://b/c.zip"),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_a_location_is_the_same_in_all_spellings(one: str, other: str) -> None:
    assert location_of(one) == location_of(other)
    assert find_repeated(["s3://other/y", one, "z", other, one]) == other
    with pytest.raises(ManifestError, match="named twice"):
        check_named_once([one, other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/x", "gs://b/x"),
        ("s3://b/x", "s3://b/X"),
        ("http://h/x", "https://h/x"),
        ("http://h:443/x", "http://h/x"),
        ("http://h:8080/x", "http://h/x"),
        ("http://u:80@h/x", "http://h/x"),
        ("az://one/x", "az://two/x"),
        ("zip://x::s3://b/c.zip", "zip://x::s3://b/d.zip"),
    ],
)
def test_names_of_different_places_may_stand_in_one_manifest(one: str, other: str) -> None:
    assert location_of(one) != location_of(other)
    assert find_repeated([one, other]) is None
    check_named_once([one, other])


@pytest.mark.parametrize(
    ("url", "directory", "below"),
    [
        ("s3://b/d/x", "s3://b/d", True),
        ("s3a://b/d/x", "s3://b/d/", True),
        ("s3://b/x", "s3://b", True),
        ("s3://b/d/", "s3://b/d/", False),
        ("s3://b/d", "s3://b/d", False),
        ("s3://b/dx", "s3://b/d", False),
        ("s3://b/d/../x", "s3://b/d", False),
        ("s3://b/d/%2e%2e/x", "s3://b/d", False),
        ("s3://b/d/a\0b", "s3://b/d", False),
        ("gs://b/d/x", "s3://b/d", False),
        ("/nowhere/d/x", "/nowhere/d", True),
        ("/nowhere/dx", "/nowhere/d", False),
        ("/nowhere/d", "/nowhere/d", False),
    ],
)
def test_below_a_directory(url: str, directory: str, below: bool) -> None:
    assert is_below(url, directory) == below


def test_below_a_directory_through_links(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "d")
    (tmp_path / "d" / "out").symlink_to(tmp_path)
    assert is_below(f"{tmp_path}/link/x", f"{tmp_path}/d")
    assert is_below(f"{tmp_path}/d/x", f"{tmp_path}/link")
    assert not is_below(f"{tmp_path}/d/out/x", f"{tmp_path}/d")


@pytest.mark.parametrize(
    ("path", "url", "root"),
    [
        ("s3://b/d/m.json", "s3://b/d/x", None),
        ("s3://b/d/m.json", "s3a://b/d/e/x", None),
        ("s3://b/d/m.json", "s3://b/e/x", "s3://b/e"),
        ("s3://b/d/m.json", "s3://c/x", "s3://c"),
        ("m.json", "s3://c/e/x", "s3://c/e/"),
        ("s3://b/d/m.json", "/data/x", "/data"),
        ("zip://d/m.json::s3://b/c.zip", "zip://d/x::s3://b/c.zip", None),
    ],
)
def test_places_that_a_manifest_may_name(path: str, url: str, root: str | None) -> None:
    check_places(path, [url], root)


@pytest.mark.parametrize(
    ("path", "url", "root", "message"),
    [
        ("s3://b/d/m.json", "s3://b/x", None, "which is not below .* shard_root='s3://b/'"),
        ("s3://b/d/m.json", "s3://b/dx", None, "not below"),
        ("s3://b/d/m.json", "s3://b/d/../x", None, "not below"),
        ("s3://b/d/m.json", "s3://c/ex", "s3://c/e", "not below"),
        ("s3://b/d/m.json", "s3://b/d/x/../../y", "s3://b", "not below"),
        ("zip://d/m.json::s3://b/c.zip", "zip://e/x::s3://b/c.zip", None, "shard_root='zip://e/'"),
        ("s3://b/m.json", "gs://c/x", "gs://c", "is in another store"),
        ("https://h/m.json", "https://i/x", "https://i", "is in another store"),
    ],
)
def test_places_that_a_manifest_must_not_name(
    path: str, url: str, root: str | None, message: str
) -> None:
    with pytest.raises(ManifestError, match=message):
        check_places(path, ["s3://b/d/fine"] * (path == "s3://b/d/m.json") + [url], root)
