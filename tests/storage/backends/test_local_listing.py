"""Listings of local trees: only the directories that a pattern can match, and nothing is left out in silence."""

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset, NotFoundError, StorageError, TFRecordDataset, matching_files
from streamrec.tfrecord import encode_records


def tree(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_records([name.encode()]))


def found(root: Path, pattern: str) -> list[str]:
    return [path.removeprefix(f"{root}/") for path in matching_files(f"{root}/{pattern}")]


@pytest.fixture
def looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What is listed and looked at below the test's directory, by the name of the call."""
    seen: dict[str, list[str]] = {}

    def count(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if str(path).startswith(str(tmp_path)):
                seen.setdefault(name, []).append(str(path).removeprefix(str(tmp_path)).strip("/"))
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("scandir", "listdir", "stat", "lstat"):
        count(name)
    return seen


def test_a_pattern_lists_only_the_directories_that_it_can_match(tmp_path: Path, looked: dict[str, list[str]]) -> None:
    tree(tmp_path, *(f"{top}/{below}/x.rec" for top in "abc" for below in ("train", "test", "other")), "top.rec")
    for pattern, listed, matched in (
        ("*.rec", [""], ["top.rec"]),
        ("a/train/*.rec", ["a/train"], ["a/train/x.rec"]),
        ("*/test/*.rec", ["", "a", "b", "c", "a/test", "b/test", "c/test"], [f"{top}/test/x.rec" for top in "abc"]),
        ("[ab]/t*/x.*", ["", "a", "b", *(f"{top}/{x}" for top in "ab" for x in ("train", "test"))], None),
        ("b/**", ["b", "b/train", "b/test", "b/other"], [f"b/{x}/x.rec" for x in ("other", "test", "train")]),
        ("nothing/here/*", [], []),
    ):
        looked.clear()
        names = found(tmp_path, pattern)
        assert sorted(looked.get("scandir", [])) == sorted(listed), pattern
        assert matched is None or names == matched


def test_one_match_among_very_many_files_costs_a_few_calls(tmp_path: Path, looked: dict[str, list[str]]) -> None:
    tree(tmp_path, "x.tfrecord", *(f"{number}.txt" for number in range(300)), *(f"logs/{n}/y" for n in range(30)))
    looked.clear()
    assert found(tmp_path, "*.tfrecord") == ["x.tfrecord"]
    assert sum(map(len, looked.values())) < 5, looked


def test_links(tmp_path: Path) -> None:
    tree(tmp_path, "d/x.rec", "far/y.rec", "far/deep/z.rec")
    for name, target in {
        "unrelated/dangling": "nowhere",
        "d/loop": ".",
        "d/up": "..",
        "d/far": "../far",
        "d/itself": "itself",
        "far/deep/back": "../../d",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)
    assert found(tmp_path, "d/*.rec") == ["d/x.rec"]
    assert found(tmp_path, "*/*.rec") == ["d/x.rec", "far/y.rec"]
    assert found(tmp_path, "d/*/y.rec") == ["d/far/y.rec"]
    # A link is followed, but not into a directory that is being walked: each path is found once, and it ends.
    expected = ["d/far/deep/z.rec", "d/far/y.rec", "d/itself", "d/up/far/deep/z.rec", "d/up/far/y.rec"]
    assert found(tmp_path, "d/**") == sorted([*expected, "d/up/unrelated/dangling", "d/x.rec"])


def test_a_link_that_leads_nowhere_matters_where_it_matches(tmp_path: Path) -> None:
    tree(tmp_path, "a.rec", "c.rec")
    (tmp_path / "b.rec").symlink_to("gone")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").symlink_to("gone")
    assert found(tmp_path, "*.rec") == ["a.rec", "b.rec", "c.rec"]
    assert list(TFRecordDataset(f"{tmp_path}/[ac].rec")) == [b"a.rec", b"c.rec"]
    read = iter(TFRecordDataset(f"{tmp_path}/*.rec"))
    assert next(read) == b"a.rec"
    with pytest.raises(NotFoundError, match=r"b\.rec.*leads nowhere"):
        next(read)


PROGRAM = textwrap.dedent("""
    import os, sys, streamrec
    open_file, *patterns = sys.argv[1:]
    streamrec.matching_files(patterns[0]), list(streamrec.TFRecordDataset(open_file))  # loads all modules
    if not os.geteuid():
        os.setgroups([]), os.setegid(65534), os.seteuid(65534)  # no permission is waived for this user
    for pattern in patterns:
        try:
            names = streamrec.matching_files(pattern)
            print(*names)
            list(streamrec.TFRecordDataset(names))
        except streamrec.errors.PermissionDeniedError as error:
            print("refused:", error)
""")


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that all users may enter; pytest's own are for one user."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def refusals(root: Path, *patterns: str) -> list[str]:
    """What a user of few rights is told of each pattern."""
    urls = [f"{root}/{pattern}" for pattern in patterns]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{root}/top.rec", *urls], capture_output=True, text=True, check=True
    )
    return ran.stdout.replace(f"{root}/", "").splitlines()


def test_a_directory_that_cannot_be_listed_is_an_error_that_names_it(public: Path) -> None:
    tree(public, "open/x.rec", "closed/x.rec", "passed/inner/x.rec", "top.rec")
    (public / "closed").chmod(0)
    (public / "passed").chmod(0o111)
    patterns = ["*.rec", "open/*", "passed/inner/*", "closed/*", "**/x.rec", "[c]*/x.rec", "pass*/inner/*"]
    try:
        lines = refusals(public, *patterns)
    finally:
        for name in ("closed", "passed"):
            (public / name).chmod(0o755)
    assert lines[:3] == ["top.rec", "open/x.rec", "passed/inner/x.rec"]
    for line, directory in zip(lines[3:], ("closed", "", "closed", "passed"), strict=True):
        assert line.startswith("refused: ")
        assert f"'{directory}" in line.partition("Permission denied")[2]


def test_a_file_that_must_not_be_looked_at_is_listed_and_refused_when_it_is_opened(public: Path) -> None:
    tree(public, "d/x.rec", "top.rec")
    (public / "d").chmod(0o744)
    try:
        found, refused = refusals(public, "d/*")
    finally:
        (public / "d").chmod(0o755)
    assert found == "d/x.rec"
    assert refused.startswith("refused: d/x.rec")


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/x-\xff\xfe.rec"
    with open(name, "wb") as file:
        file.write(encode_records([b"here"]))
    assert [os.fsencode(path) for path in matching_files(f"{tmp_path}/x-*")] == [name]
    assert list(Dataset.list_files(f"{tmp_path}/*")) == [name]
    assert list(TFRecordDataset(name)) == list(TFRecordDataset(f"{tmp_path}/*")) == [b"here"]
    with pytest.raises(StorageError, match="UTF-8"):
        list(TFRecordDataset("memory://b/x-\udcff"))
    with pytest.raises(StorageError, match="UTF-8"):
        list(TFRecordDataset(f"{tmp_path}/x-\ud800"))


@pytest.mark.parametrize("url", ["{}/a\0b", "file://{}/a\0b", "memory:/{}/a\0b", "{}/a\0*"])
def test_a_name_with_a_nul(tmp_path: Path, url: str) -> None:
    with pytest.raises(StorageError, match="NUL"):
        list(TFRecordDataset(url.format(tmp_path)))
