"""Names, braces and globs."""

from pathlib import Path

import pytest

from streamrec.shards.listing.patterns import expand_braces, glob_prefix, glob_regex, is_glob, listed


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain", ["plain"]),
        ("x-{00000..00002}", ["x-00000", "x-00001", "x-00002"]),
        ("x-{8..11}", ["x-8", "x-9", "x-10", "x-11"]),
        ("x-{08..11}", ["x-08", "x-09", "x-10", "x-11"]),
        ("x-{3..1}", ["x-3", "x-2", "x-1"]),
        ("{train,test}/{0..1}", ["train/0", "train/1", "test/0", "test/1"]),
        ("{a,}b", ["ab", "b"]),
        ("{}{shard}", ["{}{shard}"]),
        ("{shard}-{0..1}", ["{shard}-0", "{shard}-1"]),
        ("x-{5..5}", ["x-5"]),
        ("x-{-1..1}", ["x--1", "x-0", "x-1"]),
    ],
)
def test_braces(pattern: str, names: list[str]) -> None:
    assert list(expand_braces(pattern)) == names


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("s3://b/x-*", ["s3://b/x-", "s3://b/x-1.rec"], ["s3://b/x-1/2", "s3://b/y-1", "S3://b/x-1"]),
        ("s3://b/?.rec", ["s3://b/a.rec"], ["s3://b/ab.rec", "s3://b/.rec", "s3://b//.rec", "s3://b/axrec"]),
        ("s3://b/**/x", ["s3://b/x", "s3://b/1/x", "s3://b/1/2/x"], ["s3://b/yx"]),
        ("s3://b/**", ["s3://b/x", "s3://b/1/x"], ["s3://c/x"]),
        ("s3://b/[ab]", ["s3://b/a", "s3://b/b"], ["s3://b/c"]),
        ("s3://b/[!ab]", ["s3://b/c"], ["s3://b/a"]),
        ("s3://b/[a-c]", ["s3://b/b"], ["s3://b/d"]),
        ("s3://b/[x", ["s3://b/[x"], ["s3://b/x"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    regex = glob_regex(pattern)
    assert [name for name in yes if not regex.fullmatch(name)] == []
    assert [name for name in no if regex.fullmatch(name)] == []
    assert all(name.startswith(glob_prefix(pattern)) for name in yes)


def test_web_urls_are_never_globs() -> None:
    assert not is_glob("https://host/x?versions=[1]")
    assert is_glob("s3://b/x?")
    assert not is_glob("gs://b/x-{0..3}")


def test_listed_keeps_order_and_takes_paths() -> None:
    assert listed(["b", Path("a"), "c-{1..2}"]) == ["b", "a", "c-1", "c-2"]
    assert listed(Path("a")) == ["a"]
    assert listed(name for name in "ba") == ["b", "a"]
