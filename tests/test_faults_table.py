"""docs/faults.md says what benchmarks/results/faults.json says, and the program can still measure it."""

import json

import pytest

from benchmarks.faults import DOCS, ROWS, STORES, Cell, measure_all, tables, with_tables, words
from benchmarks.machine import RESULTS


def test_the_page_is_made_from_the_data() -> None:
    page = DOCS.read_text()
    assert with_tables(page, tables(json.loads((RESULTS / "faults.json").read_text()))) == page


def test_the_data_is_whole() -> None:
    results = json.loads((RESULTS / "faults.json").read_text())
    measured = {(row["store"], row["fault"], row["client"]) for row in results["rows"]}
    assert measured == {
        (store, name, client) for store, clients in STORES.items() for name in ROWS for client in clients
    }


def test_streamrec_never_hands_on_wrong_data() -> None:
    results = json.loads((RESULTS / "faults.json").read_text())
    ours = [row for row in results["rows"] if row["client"] == "streamrec"]
    assert len(ours) == 2 * len(ROWS)
    assert {row["outcome"] for row in ours} <= {"data", "error"}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (Cell("data", "", 0.21, 2), "all data, 0.2 s, 2"),
        (Cell("wrong data", "", 1.0, 3), "**wrong data, no error**, 1.0 s, 3"),
        (Cell("error", "OSError", 5.0, None), "`OSError`, 5.0 s"),
    ],
)
def test_words(cell: Cell, text: str) -> None:
    assert words(cell) == text


@pytest.mark.thorough
def test_it_measures() -> None:
    found = {(row["store"], row["client"]): row for row in measure_all(["reset"], parallel=3)}
    assert found.keys() == {(store, client) for store, clients in STORES.items() for client in clients}
    assert {row["outcome"] for row in found.values()} == {"data"}
    assert found["s3", "streamrec"]["requests"] == found["gcs", "streamrec"]["requests"] == 2
