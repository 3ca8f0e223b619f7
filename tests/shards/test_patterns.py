"""Patterns of names, as text: braces, globs, and the names of a writer's shards."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.shards.patterns import (
    expand_braces,
    fill_total,
    has_braces,
    is_glob,
    is_numbered,
    is_shard_of,
    is_web,
    is_web_glob,
    list_numbered,
    shard_path,
)
from streamrec.storage import Storages


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a", ["a"]),
        ("", [""]),
        ("{a}", ["{a}"]),
        ("{}", ["{}"]),
        ("{a,b}", ["a", "b"]),
        ("{a,}x", ["ax", "x"]),
        ("x{2..4}", ["x2", "x3", "x4"]),
        ("{4..2}", ["4", "3", "2"]),
        ("{3..3}", ["3"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{8..010}", ["008", "009", "010"]),
        ("{0..1}", ["0", "1"]),
        ("{8..11}x", ["8x", "9x", "10x", "11x"]),
        ("{0..10}", [str(number) for number in range(11)]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{-01..1}", ["-01", "000", "001"]),
        ("{1..x}", ["{1..x}"]),
        ("{a,b}-{1..2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("{shard}-{a,b}", ["{shard}-a", "{shard}-b"]),
        ("[{]a,b}", ["[{]a,b}"]),
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
def test_braces_are_those_of_a_shell(pattern: str, names: list[str]) -> None:
    assert list(expand_braces(pattern)) == names
    assert has_braces(pattern) == (names != [pattern])


def test_globs_and_web_urls() -> None:
    assert all(map(is_glob, ["a*", "s3://b/x-?", "d/[ab]", "zip://*::s3://b/c.zip"]))
    assert not any(map(is_glob, ["a", "http://h/a*?b=[c]", "zip://a::s3://b/c*.zip"]))
    assert all(map(is_web, ["http://h/a", "HTTPS://h", "simplecache::https://h/a"]))
    assert not any(map(is_web, ["s3://b/http://h", "http:/h", "zip://a::http://h/c.zip"]))
    assert is_web_glob("http://h/a*b?c")
    assert not any(map(is_web_glob, ["http://h/a?b=*", "s3://b/*", "http://h/a"]))


@given(
    number=st.integers(0, 10**6),
    spec=st.sampled_from(["", ":", ":d", ":05d", ":03x", ":X", ":08X"]),
    around=st.sampled_from(
        [("", ""), ("s3://b/x-", ".tfrecord"), ("{a}.(b)+", "[c]$"), ("a\n", "")]
    ),
)
def test_a_shard_is_recognised_by_its_pattern(
    number: int, spec: str, around: tuple[str, str]
) -> None:
    pattern = f"{around[0]}{{shard{spec}}}{around[1]}"
    path = shard_path(pattern, number)
    assert path == f"{around[0]}{format(number, spec[1:])}{around[1]}"
    assert is_numbered(pattern)
    assert is_shard_of(path, pattern)
    assert not is_shard_of(path + "x", pattern)
    assert not is_shard_of("x" + path, pattern)


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
def test_shard_path_replaces_the_number_and_nothing_else(pattern: str, path: str) -> None:
    assert shard_path(pattern, 7) == path
    assert is_shard_of(path, pattern)
    assert not is_shard_of(path + "x", pattern)


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("x-", "x-{shard}"),
        ("x-a", "x-{shard}"),
        ("x-g", "x-{shard:x}"),
        ("x-1/2", "x-{shard}"),
        ("y-1", "x-{shard}"),
        ("x-1", "x-{number}"),
        ("xx1", "x.{shard}"),
    ],
)
def test_other_names_are_not_shards_of_a_pattern(path: str, pattern: str) -> None:
    assert not is_shard_of(path, pattern)


def test_the_number_of_all_shards() -> None:
    assert fill_total("x-{shard:03d}-of-{shards:03d}", 8) == "x-{shard:03d}-of-008"
    assert fill_total("{shards}/{shards:02x}/{shard}", 17) == "17/11/{shard}"
    assert fill_total("x-{shard}", None) == "x-{shard}"
    assert not is_numbered("x-{shards}")
    with pytest.raises(ValueError, match="not known before they are written"):
        fill_total("x-{shards}", None)
    with pytest.raises(ValueError, match=r"not a format of a number .*: write \{shard:05d\}"):
        shard_path("x-{shard:nonsense}", 1)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("memory://{root}/x-{shard:02d}.a", ["x-00.a", "x-01.a", "x-100.a"]),
        ("memory://{root}/[1]-{shard}", ["[1]-7"]),
        ("memory://{root}/{shard}/{shard:02d}", ["1/01"]),
        ("memory://{root}/x-00.a", []),
    ],
)
async def test_listing_finds_the_shards_of_a_writers_pattern(pattern: str, expected: Any) -> None:
    root = f"patterns/{abs(hash(pattern))}"
    pattern = pattern.replace("{root}", root)
    names = [
        "x-00.a",
        "x-01.a",
        "x-100.a",
        "x-01.b",
        "x-.a",
        "y-01.a",
        "[1]-7",
        "1-7",
        "1/01",
        "1/x",
    ]
    async with Storages() as storages:
        storage = await storages.at(f"memory://{root}")
        for name in names:
            async with await storage.upload(f"memory://{root}/{name}") as upload:
                await upload.write(b"x")
        found = [info.path async for info in list_numbered(storages, pattern)]
    assert sorted(found) == sorted(f"memory://{root}/{name}" for name in expected)
