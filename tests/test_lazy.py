"""Lazy patterns: what they have in common with compiled ones, and when they are compiled."""

import copy
import re

import pytest

from streamrec import lazy
from streamrec.lazy import lazy_pattern
from tests.runs import in_new_interpreter


def test_a_lazy_pattern_gives_what_a_compiled_one_gives() -> None:
    late, compiled = lazy_pattern(r"(\w+)=(\d+)", re.IGNORECASE), re.compile(r"(?i)(\w+)=(\d+)")
    text = "a=1, B=22"
    assert late.findall(text) == compiled.findall(text)
    assert late.sub(r"\2", text) == compiled.sub(r"\2", text) == "1, 22"
    assert late.groups == 2
    found = late.search(text)
    assert found is not None
    assert found.span() == (0, 3)


def test_a_lazy_pattern_is_compiled_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = lazy_pattern("(")  # it could not be compiled
    with pytest.raises(re.error):
        wrong.search("x")
    late = lazy_pattern("x+")
    assert late.search("axxb")
    monkeypatch.setattr(lazy, "re", None)  # each method is looked up once
    assert late.search("axxxb")


def test_a_lazy_pattern_has_no_attribute_that_a_compiled_one_lacks() -> None:
    late = lazy_pattern(b"x")
    with pytest.raises(AttributeError, match="nothing"):
        late.nothing  # type: ignore[attr-defined]  # noqa: B018
    assert copy.copy(late).fullmatch(b"x")


def test_a_read_compiles_only_the_patterns_that_it_asks() -> None:
    """The module that masks secrets in messages has fourteen patterns, and a read asks none."""
    code = (
        "import streamrec, streamrec.display as display\n"
        "with streamrec.TFRecordWriter('memory://lazy/a') as writer: writer.write(b'x')\n"
        "list(streamrec.TFRecordDataset('memory://lazy/a').batch(2))\n"
        "lazy = [p for p in vars(display).values() if type(p).__name__ == '_LazyPattern']\n"
        "print(len(lazy) > 10, sum(len(vars(p)) > 2 for p in lazy))"
    )
    assert in_new_interpreter(code).split()[0] == "True"
    assert int(in_new_interpreter(code).split()[1]) <= 3
