"""Names, braces and globs."""

from pathlib import Path

import pytest

from streamrec.shards.patterns import expand_braces, is_glob, is_shard_of, listed, shard_path
from streamrec.storage import Glob


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
        ("x[{]a,b[}]", ["x[{]a,b[}]"]),
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
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [name for name in yes if not glob.matches(name)] == []
    assert [name for name in no if glob.matches(name)] == []
    assert all(name.startswith(glob.prefix.partition("::")[0]) for name in yes)
    assert glob.wants(pattern)


@pytest.mark.parametrize(
    ("pattern", "entered", "passed"),
    [
        ("d/*.rec", ["d/"], ["d/e/", "d/x.rec/", "e/"]),
        ("d/*/x", ["d/", "d/e/", "d/*/"], ["d/e/f/"]),
        ("d/a*/*/x", ["d/", "d/ab/", "d/ab/e/"], ["d/b/", "d/ab/e/f/"]),
        ("d/**/x", ["d/", "d/e/", "d/e/f/"], ["e/"]),
        ("d/a*/**", ["d/", "d/ab/", "d/ab/c/d/"], ["d/b/"]),
        ("d/[x]/y", ["d/", "d/x/", "d/[x]/"], ["d/y/"]),
        ("*", [], ["d/"]),
        ("zip://d/*/x::s3://b/c.zip", ["zip://d/e/::s3://b/c.zip"], ["zip://d/e/f/::s3://b/c.zip"]),
    ],
)
def test_which_directories_a_glob_enters(pattern: str, entered: list[str], passed: list[str]) -> None:
    glob = Glob(pattern)
    assert [name for name in entered if not glob.enters(name)] == []
    assert [name for name in passed if glob.enters(name)] == []


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("x-{shard}", "x-7"),
        ("x-{shard:03d}.rec", "x-007.rec"),
        ("{a}{}{{shard:x}}-{b", "{a}{}{7}-{b"),
        ("{shard:05d}-of-{shards}", "00007-of-{shards}"),
        ("{shard!r}{shard.real}{0}", "{shard!r}{shard.real}{0}"),
        ("%s %(shard)s \\1 \\g<0>-{shard}", "%s %(shard)s \\1 \\g<0>-7"),
    ],
)
def test_a_number_is_put_into_a_name_and_nothing_else_is_changed(pattern: str, path: str) -> None:
    assert shard_path(pattern, 7) == path
    assert is_shard_of(path, pattern)
    assert not is_shard_of(path + "x", pattern)


def test_a_format_that_is_none_of_a_number() -> None:
    with pytest.raises(ValueError, match=r"write \{shard:05d\}"):
        shard_path("x-{shard:zz}", 0)


def test_web_urls_are_never_globs() -> None:
    assert not is_glob("https://host/x?versions=[1]")
    assert is_glob("s3://b/x?")
    assert not is_glob("gs://b/x-{0..3}")


def test_listed_keeps_order_and_takes_paths() -> None:
    assert listed(["b", Path("a"), "c-{1..2}"]) == ["b", "a", "c-{1..2}"]
    assert listed(Path("a")) == ["a"]
    assert listed(name for name in "ba") == ["b", "a"]
