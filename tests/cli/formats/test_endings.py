"""The endings of files in a tar of WebDataset, and the key of a sample."""

import pytest

from streamrec.cli.formats.webdataset import ending_of, join_endings, key_in
from streamrec.example.feature_values import BYTES, FLOAT, INT64, NO_KIND, FeatureValues


@pytest.mark.parametrize(
    ("values", "ending"),
    [
        (FeatureValues(INT64, [1]), "npy"),
        (FeatureValues(FLOAT, []), "npy"),
        (FeatureValues(BYTES, [b"\xff\xd8\xff\xe0"]), "jpg"),
        (FeatureValues(BYTES, [b"\x89PNG\r\n\x1a\n"]), "png"),
        (FeatureValues(BYTES, [b"text"]), "txt"),
        (FeatureValues(BYTES, [b"\x00\xff"]), "bin"),
        (FeatureValues(BYTES, [b"a", b"b"]), "json"),
        (FeatureValues(BYTES, []), "json"),
        (NO_KIND, "json"),
    ],
)
def test_the_ending_says_what_a_file_holds(values: FeatureValues, ending: str) -> None:
    assert ending_of(values) == ending


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        ("txt", "txt", "txt"),
        ("txt", "bin", "bin"),
        ("jpg", "png", "bin"),
        ("txt", "json", "json"),
        ("json", "bin", "json"),
        ("npy", "txt", "json"),
    ],
)
def test_two_parts_of_the_data_agree_on_an_ending(one: str, other: str, joined: str) -> None:
    assert join_endings({"x": one, "a": "txt"}, {"x": other, "b": "npy"}) == {
        "x": joined,
        "a": "txt",
        "b": "npy",
    }
    assert join_endings({"x": other}, {"x": one}) == {"x": joined}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([b"train/a-1"], "train/a-1"),
        ([b"0012"], None),  # a number would be taken for the one that the writer counts
        ([b"a.b"], None),
        ([b"../a"], None),
        ([b"a", b"b"], None),
        ([], None),
    ],
)
def test_a_key_is_kept_if_it_can_be_a_name(values: list[bytes], key: str | None) -> None:
    assert key_in({"__key__": FeatureValues(BYTES, values)}) == key


def test_a_key_of_another_kind_is_none() -> None:
    assert key_in({"__key__": FeatureValues(INT64, [5])}) is None
    assert key_in({}) is None
