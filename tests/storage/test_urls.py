"""URLs of objects, as text: chains, buckets, hidden names and globs."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import StorageError
from streamrec.storage.urls import (
    Glob,
    UrlChain,
    describe_leftover,
    directory_advice,
    hidden_name,
    is_temporary,
    is_url,
    local_name,
    protocol_of,
    secured_object,
    split_chain,
    split_object,
    split_prefix,
    staged_object,
    temporary_name,
    temporary_prefix,
)


@pytest.mark.parametrize(
    ("url", "before", "inner", "after"),
    [
        ("s3://b/k", "", "s3://b/k", ""),
        ("s3://b/a::b", "", "s3://b/a::b", ""),
        ("S3://b/a::zip://b", "", "S3://b/a::zip://b", ""),
        ("/data/a::b", "", "/data/a::b", ""),
        ("folder::more", "", "folder::more", ""),
        ("zip://x::s3://b/c.zip", "", "zip://x", "::s3://b/c.zip"),
        ("zip::s3://b/c.zip", "zip::", "s3://b/c.zip", ""),
        ("simplecache::s3://b/x", "simplecache::", "s3://b/x", ""),
        ("filecache://::zip://x::s3://b/c.zip", "filecache://::", "zip://x", "::s3://b/c.zip"),
        ("blockcache::filecache::s3://b/x", "blockcache::filecache::", "s3://b/x", ""),
        ("simplecache::/data/x", "simplecache::", "/data/x", ""),
        ("tar://a/b::gs://b/c.tar", "", "tar://a/b", "::gs://b/c.tar"),
        ("unknown://x::s3://b/k", "", "unknown://x", "::s3://b/k"),
    ],
)
def test_the_link_with_the_path_names_the_shard(
    url: str, before: str, inner: str, after: str
) -> None:
    assert split_chain(url) == UrlChain(before, inner, after)
    assert split_chain(url).is_chain == bool(before or after)


def test_protocols_come_from_the_outside_in() -> None:
    assert split_chain("filecache::zip://x::S3://b/c.zip").protocols == ["filecache", "zip", "s3"]
    assert split_chain("simplecache::/data/x").protocols == ["simplecache", "file"]
    assert split_chain("s3://b/k").protocols == ["s3"]
    assert split_chain("/data/k").protocols == ["file"]
    assert protocol_of("GS://b/k") == "gs"
    assert protocol_of("zip://x::s3://b/c.zip") == "zip"
    assert protocol_of("C:/x") == protocol_of("data/http://x") == "file"


def test_only_the_beginning_makes_a_url() -> None:
    assert all(map(is_url, ["s3://b", "a+b.c-d://x", "HTTP://h"]))
    assert not any(map(is_url, ["", "x", "1s://b", "/a/s3://b", "s3:/b", "://b"]))


def test_bucket_and_key() -> None:
    assert split_prefix("s3://b/d//k ?#") == ("s3", "b", "d//k ?#")
    assert split_prefix("gs://b") == ("gs", "b", "")
    assert split_object("gs://b/d/k") == ("b", "d/k")
    with pytest.raises(StorageError, match="names no bucket: write gs://bucket/key"):
        split_prefix("gs:///k")
    for url in ("gs://b", "gs://b/"):
        with pytest.raises(StorageError, match=r"write gs://b/key, or gs://b/\*\.tfrecord\*"):
            split_object(url)


def test_local_names_are_taken_byte_for_byte() -> None:
    assert local_name("file:///d/a%20b#1?") == "/d/a%20b#1?"
    assert local_name("FILE://localhost/d//x") == "/d//x"
    assert local_name("local:///d") == "/d"
    assert local_name("file://localhosts/d") == "localhosts/d"
    assert local_name("~/x") == os.path.expanduser("~") + "/x"


def test_advice_for_a_directory_is_a_glob_in_it() -> None:
    assert "write d/*.tfrecord* for" in directory_advice("d///")
    assert "write zip://d/*.tfrecord*::s3://b/c.zip for" in directory_advice(
        "zip://d/::s3://b/c.zip"
    )


NAMES = ["shard", "d/shard", "s3://b/d/shard", "s3://b/.hidden", "/d/a\nb", "d/ü" + "x" * 40]


@pytest.mark.parametrize("name", NAMES)
def test_a_hidden_name_leads_back_to_its_object(name: str) -> None:
    """Each kind to the question that is for it, and to no other."""
    plain = hidden_name(name)
    new = hidden_name(name, "new-")
    old = hidden_name(name, "old-")
    assert [staged_object(hidden) for hidden in (plain, new, old)] == [name, name, None]
    assert [secured_object(hidden) for hidden in (plain, new, old)] == [None, None, name]
    assert all(map(is_temporary, (plain, new, old, temporary_name(name))))
    assert not is_temporary(name)
    assert secured_object(name) is staged_object(name) is describe_leftover(name) is None
    assert len({plain, new, old, temporary_name(name), temporary_name(name)}) == 5
    for hidden in (plain, new, old):
        assert hidden.rpartition("/")[0] == name.rpartition("/")[0]


def test_hidden_names_within_a_chain() -> None:
    url = "zip://d/x::s3://b/c.zip"
    assert hidden_name(url, "new-", "f" * 16) == (
        "zip://d/.x.streamrec-new-ffffffffffffffff::s3://b/c.zip"
    )


@pytest.mark.parametrize(
    "name",
    [
        ".x.streamrec-0123456789abcde",
        ".x.streamrec-0123456789abcdef0",
        ".x.streamrec-0123456789abcdeg",
        "x.streamrec-0123456789abcdef",
        ".x.streamrec-odd-0123456789abcdef",
        ".x.streamrec-0123456789abcdef/y",
    ],
)
def test_names_that_only_look_alike_are_not_hidden(name: str) -> None:
    assert not is_temporary(name)
    assert describe_leftover(f"d/{name}") is None


def test_a_hidden_name_tells_which_run_removes_it() -> None:
    removed = "the next run that replaces d/x removes it"
    assert describe_leftover(hidden_name("d/x", "new-")) == removed
    assert describe_leftover(hidden_name("d/x")) == removed
    assert describe_leftover(hidden_name("d/x", "old-")) is None
    assert str(describe_leftover(temporary_name("d/x"))).startswith("no run removes it")
    of_a_machine = "d/.x.streamrec-0a1b2c3d-0123456789abcdef"
    assert describe_leftover(of_a_machine) == (
        "the next run that writes d/x on the same machine removes it"
    )
    inner = hidden_name("x", "new-")
    assert describe_leftover(f"d/.{inner}.streamrec-0a1b2c3d-0123456789abcdef") == (
        "the next run that writes d/x on the same machine removes it"
    )


@given(
    name=st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1),
    times=st.integers(1, 60),
    most=st.integers(60, 255),
    writer=st.sampled_from(["", "new-", "old-", "0a1b2c3d-"]),
)
def test_temporary_names_fit_and_stay_apart(name: str, times: int, most: int, writer: str) -> None:
    name *= times
    prefix = temporary_prefix(name, most, writer)
    room = most - 16
    assert len(os.fsencode(prefix)) <= room
    assert is_temporary(prefix + "0" * 16)
    ending = f".streamrec-{writer}"
    assert prefix.endswith(ending)
    if len(os.fsencode(f".{name}{ending}")) <= room:
        assert prefix == f".{name}{ending}"
    else:
        assert temporary_prefix(name + "x", most, writer) != prefix
        assert len(os.fsencode(prefix)) > room - 4  # a cut character has up to four bytes


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (
            "s3://b/x-*",
            ["s3://b/x-", "s3://b/x-1.rec"],
            ["s3://b/x-1/2", "s3://b/y-1", "S3://b/x-1"],
        ),
        (
            "s3://b/?.rec",
            ["s3://b/a.rec"],
            ["s3://b/ab.rec", "s3://b/.rec", "s3://b//.rec", "s3://b/axrec"],
        ),
        ("s3://b/**/x", ["s3://b/x", "s3://b/1/x", "s3://b/1/2/x"], ["s3://b/yx"]),
        ("s3://b/**", ["s3://b/x", "s3://b/1/x"], ["s3://c/x"]),
        ("s3://b/[ab]", ["s3://b/a", "s3://b/b"], ["s3://b/c"]),
        ("s3://b/[!ab]", ["s3://b/c"], ["s3://b/a"]),
        ("s3://b/[a-c]", ["s3://b/b"], ["s3://b/d"]),
        ("s3://b/[x", ["s3://b/[x"], ["s3://b/x"]),
        ("s3://b/[^ab]", ["s3://b/c"], ["s3://b/a"]),
        ("s3://b/[!/]x", [], ["s3://b//x", "s3://b/ax"]),
        ("s3://b/[!a]x", ["s3://b/bx"], ["s3://b//x"]),
        ("s3://b/a[*]b[?]c[[]d[]]", ["s3://b/a*b?c[d]"], ["s3://b/axb?c[d]"]),
        ("s3://b/[]a]", ["s3://b/]", "s3://b/a"], ["s3://b/[]a]", "s3://b/b"]),
        ("s3://b/[!]a]", ["s3://b/b"], ["s3://b/]", "s3://b/a"]),
        ("s3://b/[a-]", ["s3://b/a", "s3://b/-"], ["s3://b/b"]),
        ("s3://b/[z-a]", [], ["s3://b/z", "s3://b/a", "s3://b/-"]),
        ("s3://b/[--0]", ["s3://b/.", "s3://b/0"], ["s3://b//", "s3://b/1"]),
        ("s3://b/[&&~~||]", ["s3://b/&", "s3://b/~", "s3://b/|"], ["s3://b/x"]),
        ("s3://b/x.{1}+(2)$^", ["s3://b/x.{1}+(2)$^"], ["s3://b/xx{1}+(2)$^"]),
        ("s3://b/x**", ["s3://b/x", "s3://b/x1/2"], ["s3://b/1/x"]),
        ("s3://b/a**/x", ["s3://b/a/x", "s3://b/ab/c/x"], ["s3://b/ax"]),
        ("zip://x-*::s3://b/c*.zip", ["zip://x-1::s3://b/c*.zip"], ["zip://x-1::s3://b/c1.zip"]),
        ("d/?", ["d/a", "d/?"], ["d/", "d/ab", "d//"]),
        ("d/**/x", ["d/x", "d/a/x", "d/a/b/x"], ["d/ax", "x"]),
        ("d/a.b", ["d/a.b"], ["d/axb"]),
    ],
)
def test_a_glob_matches_only_the_names_that_it_describes(
    pattern: str, yes: list[str], no: list[str]
) -> None:
    glob = Glob(pattern)
    assert [name for name in yes if not glob.matches(name)] == []
    assert [name for name in no if glob.matches(name)] == []
    assert all(name.startswith(glob.prefix.partition("::")[0]) for name in yes)
    assert glob.wants(pattern)


def test_a_listing_begins_at_the_first_wildcard() -> None:
    assert Glob("s3://b/d/x-[0-9]*").prefix == "s3://b/d/x-"
    assert Glob("s3://b/d/x").prefix == "s3://b/d/x"
    assert Glob("zip://d/x?::s3://b/c.zip").prefix == "zip://d/x::s3://b/c.zip"
    assert Glob("simplecache::s3://b/*").prefix == "simplecache::s3://b/"


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (
            "s3://b/*/x/y-*",
            ["s3://b/", "s3://b/d/", "s3://b/d/x/"],
            ["s3://b/d/z/", "s3://b/d/x/y/"],
        ),
        ("s3://b/d/**/x", ["s3://b/d/", "s3://b/d/a/b/c/"], ["s3://b/e/", "s3://c/d/"]),
        ("s3://b/d/x", ["s3://b/", "s3://b/d/"], ["s3://b/e/", "s3://b/d/e/"]),
        ("s3://b/[*]/x", ["s3://b/*/"], ["s3://b/d/"]),
        ("zip://d/*::s3://b/c.zip", ["zip://d/::s3://b/c.zip"], ["zip://e/::s3://b/c.zip"]),
    ],
)
def test_directories_that_a_listing_enters(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [url for url in yes if not glob.enters(url)] == []
    assert [url for url in no if glob.enters(url)] == []
