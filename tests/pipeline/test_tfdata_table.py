"""docs/tfdata.md has a row for each name of tf.data and tf.io: a counterpart that exists, or why there is none."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import streamrec

TEXT = (Path(__file__).parents[2] / "docs" / "tfdata.md").read_text()

TABLES = {
    heading: dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", rows, re.MULTILINE))
    for heading, rows in re.findall(r"^### (\S+)\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
"""By the module's or class's name: of each name what is said of it."""

RECORDS = {"Example", "SequenceExample"} | {"BytesList", "FloatList", "Int64List"}
RECORDS |= {"Feature", "Features", "FeatureList", "FeatureLists"}


@pytest.mark.parametrize("heading", TABLES)
def test_counterparts_exist(heading: str) -> None:
    for name, said in TABLES[heading].items():
        if not said.startswith("none: "):
            assert re.search(r"`|above", said), f"{heading}.{name}: which name stands for it?"
        for found in re.findall(r"`(Dataset|streamrec)\.(\w+)", said):
            there = hasattr(streamrec.Dataset if found[0] == "Dataset" else streamrec, found[1])
            assert there or find_spec(f"streamrec.{found[1]}"), found


def test_what_dataset_has_is_not_said_to_be_missing() -> None:
    missing = {name for name, said in TABLES["tf.data.Dataset"].items() if said.startswith("none: ")}
    assert not missing & set(dir(streamrec.Dataset))


@pytest.mark.peer
def test_no_name_is_missing() -> None:
    tf = pytest.importorskip("tensorflow")
    modules = {"tf.data.Dataset": tf.data.Dataset, "tf.data": tf.data, "tf.io": tf.io}
    modules["tf.data.experimental"] = tf.data.experimental
    for heading, module in modules.items():
        assert set(TABLES[heading]) == {name for name in dir(module) if not name.startswith("_")}
    assert set(TABLES["tf.train"]) == {name for name in dir(tf.train) if name in RECORDS} == RECORDS
